"""The decoders under a coverage-guided fuzzer (S17)."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from looptap.protocol import messages as m
from looptap.protocol.codec import encode
from looptap.protocol.values.packing import pack, pack_values

SECONDS = float(os.environ.get("FUZZ_SECONDS", "300"))


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 120)
def test_no_bytes_make_a_decoder_raise_anything_but_a_message_error(tmp_path, capsys):
    if importlib.util.find_spec("atheris") is None:
        with capsys.disabled():
            print("\n*** NOT FUZZED: atheris is not installed. Do: pip install atheris ***", flush=True)
        pytest.skip("atheris is not installed, so the decoders were NOT fuzzed: pip install atheris")
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    seeds = [
        b"\x00" + encode(m.Attach(1, 1, m.Code("loss"), "batch")),
        b"\x30" + encode(m.Beat({"batch": 1}, 0.5)),
        b"\x50" + pack({"a": [np.arange(3), {1, 2}, 1 + 2j, 2**70], 3: (None, "x", b"y")}),
        b"\xa1" + pack_values([(1, 2.5), (2, 3.5)])[1],
    ]
    for number, seed in enumerate(seeds):
        (corpus / str(number)).write_bytes(seed)
    program = Path(__file__).with_name("fuzzing_codec.py")
    limits = [f"-max_total_time={SECONDS:.0f}", "-max_len=4096", "-rss_limit_mb=2048", "-timeout=20"]
    command = [sys.executable, str(program), *limits, str(corpus)]
    with capsys.disabled():
        print(f"\nThe decoders are fuzzed for {SECONDS:.0f} s.", end="", flush=True)
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS + 60, cwd=tmp_path)
    tail = "\n".join(done.stderr.splitlines()[-30:])
    print(tail.splitlines()[-1] if tail else "")
    assert done.returncode == 0, tail
    assert "Done " in done.stderr
