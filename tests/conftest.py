"""What all tests rely on."""

import signal
import time

import pytest

# A shell that starts a job in the background has it ignore Ctrl-C, and whatever that starts inherits it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def progress(capsys):
    """Tell how far a long count has come, twice a minute; a short one is over before."""
    told = time.monotonic()

    def tell(count, what):
        nonlocal told
        if time.monotonic() - told > 30:
            told = time.monotonic()
            with capsys.disabled():
                print(f"\n{count:,} {what}", end="", flush=True)

    return tell


@pytest.fixture
def directory(tmp_path, monkeypatch):
    """Where the runs of this test announce themselves."""
    tmp_path.chmod(0o700)
    monkeypatch.setenv("LOOPTAP_DIR", str(tmp_path))
    return tmp_path
