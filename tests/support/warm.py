"""Python programs in processes forked from one with the slow imports done.

``warm.Popen([sys.executable, "-c", code, ...])`` and ``warm.run`` are those of `subprocess`, as far as tests use them,
for programs whose start is not what is tested: a fresh interpreter takes half a second of CPU time until it
has looptap, and three until torch has made an optimizer. The only difference is which modules are already imported.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slowness import SLOWNESS

PIPE, DEVNULL, STDOUT = subprocess.PIPE, subprocess.DEVNULL, subprocess.STDOUT
FRAMEWORKS = "keras", "transformers", "lightning", "accelerate", "hugging_face"
"""What programs say that load a training framework."""
LOOK_SECONDS = 0.005
"""Between two looks whether a program has ended."""


class Popen:
    """A running program, started cold where a warm start is impossible."""

    def __new__(cls, command: Sequence[str], **how: Any) -> Any:
        if sys.platform != "linux" or command[0] != sys.executable or "-W" in command:
            return subprocess.Popen(command, **how)
        return super().__new__(cls)

    def __init__(
        self, command: Sequence[str], *, stdin: Any = None, stdout: Any = None, stderr: Any = None, text: bool = False,
        env: dict[str, str] | None = None, cwd: Any = None, start_new_session: bool = False,
    ) -> None:  # fmt: skip
        self.args, self.returncode = list(command), None
        sys.audit("subprocess.Popen", command[0], self.args, cwd, env)  # as that one does
        words = [word for word in self.args[1:] if word != "-u"]
        given: list[int] = []
        with contextlib.ExitStack() as opened:

            def place(wanted: Any, writes: bool, default: int) -> tuple[int, Any]:
                if wanted is None:
                    return default, None
                if wanted == DEVNULL:
                    opened.callback(os.close, fd := os.open(os.devnull, os.O_RDWR))
                    return fd, None
                if wanted != PIPE:
                    return (wanted if isinstance(wanted, int) else wanted.fileno()), None
                read, write = os.pipe()
                ours, theirs = (read, write) if writes else (write, read)
                opened.callback(os.close, theirs)
                mode = "r" if writes else "w"
                return theirs, open(ours, mode if text else mode + "b", buffering=1 if text else -1)

            fd, self.stdin = place(stdin, False, 0)
            given.append(fd)
            fd, self.stdout = place(stdout, True, 1)
            given.append(fd)
            fd, self.stderr = (given[1], None) if stderr == STDOUT else place(stderr, True, 2)
            given.append(fd)
            self._status, theirs = os.pipe()
            opened.callback(os.close, theirs)
            how = {
                "words": words, "env": dict(os.environ if env is None else env), "cwd": os.fspath(cwd or os.getcwd()),
                "unbuffered": "-u" in self.args, "session": start_new_session,
            }  # fmt: skip
            self.pid = _server(_kind(words, how["cwd"])).start(how, [*given, theirs])
        os.set_blocking(self._status, False)

    def poll(self) -> int | None:
        """Return the exit code as `subprocess` does, None while the program runs."""
        if self.returncode is None:
            with contextlib.suppress(BlockingIOError):
                self.returncode = int(os.read(self._status, 100) or -signal.SIGKILL)
                os.close(self._status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended. Raises subprocess.TimeoutExpired."""
        deadline = time.monotonic() + timeout * SLOWNESS if timeout is not None else float("inf")
        while self.poll() is None:
            if time.monotonic() > deadline:
                self.send_signal(signal.SIGUSR2)  # it writes the stacks of its threads to stderr
                time.sleep(1.0)
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            time.sleep(LOOK_SECONDS)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[Any, Any]:
        """Return its output once it ends. Raises subprocess.TimeoutExpired."""
        found: dict[str, Any] = {"stdout": None, "stderr": None}

        def read(name: str) -> None:
            found[name] = getattr(self, name).read()

        open_ = [name for name in found if (file := getattr(self, name)) is not None and not file.closed]
        readers = [threading.Thread(target=read, args=(name,)) for name in open_]
        for reader in readers:
            reader.start()
        if self.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                if input is not None:
                    self.stdin.write(input)
                self.stdin.close()
        code = self.wait(timeout)
        for reader in readers:
            reader.join()
        self._close()
        assert code is not None
        return found["stdout"], found["stderr"]

    def _close(self) -> None:
        for file in (self.stdin, self.stdout, self.stderr):
            if file is not None:
                with contextlib.suppress(BrokenPipeError):
                    file.close()

    def __enter__(self) -> Popen:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:  # a test that has failed does not wait for what it has not asked to end
            self.kill()
        self._close()
        self.wait()


def run(
    command: Sequence[str], *, capture_output: bool = False, check: bool = False, timeout: float | None = None,
    input: Any = None, **how: Any,
) -> subprocess.CompletedProcess[Any]:  # fmt: skip
    """Run a program to its end. Raises what `subprocess.run` raises."""
    if capture_output:
        how |= {"stdout": PIPE, "stderr": PIPE}
    if input is not None:
        how["stdin"] = PIPE
    with Popen(command, **how) as program:
        try:
            out, err = program.communicate(input, timeout)
        except BaseException:
            program.kill()
            raise
    done = subprocess.CompletedProcess(command, program.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def _kind(words: list[str], folder: str) -> str:
    """Return which libraries a program loads besides looptap."""
    if words[0] == "-m" and words[1] in ("looptap", "looptap.cli") and [*words, ""][2] not in ("run", "replay"):
        return "looptap"
    names = [os.path.join(folder, name) for word in words for name in (word, f"{word}.py") if name.endswith(".py")]
    source = " ".join([*words, *(Path(name).read_text() for name in names if os.path.isfile(name))])
    if any(name in source for name in FRAMEWORKS):
        return "frameworks"
    if any(name in source for name in ("torch", "looptap.examples", "page_job")):
        return "torch"
    return "nbclient" if "nbclient" in source else "looptap"


# ------------------------------------------------------------ the process that is forked from


class _Server:
    """A process that has imported looptap (and torch) and forks for each program.

    The workers of a test run share it; it ends with the last of them.
    """

    def __init__(self, kind: str) -> None:
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        address = f"\0looptap-warm-{_RUN}-{kind}"
        while not self._connected(address):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
                try:
                    listener.bind(address)
                except OSError:  # another worker was faster, and is about to listen
                    time.sleep(LOOK_SECONDS)
                    continue
                listener.listen(64)
                program = str(Path(__file__).with_name("warm_server.py"))
                command = [sys.executable, program, str(listener.fileno()), kind]
                process = subprocess.Popen(command, pass_fds=[listener.fileno()], stdin=DEVNULL, cwd="/")
                process.returncode = 0  # this process does not wait for it, since others may need it for longer
        self._door.settimeout(300)
        atexit.register(self._door.close)

    def _connected(self, address: str) -> bool:
        with contextlib.suppress(ConnectionRefusedError):
            self._door.connect(address)
            return True
        return False

    def start(self, how: dict[str, Any], fds: list[int]) -> int:
        """Start a program with these descriptors; return its process id."""
        with open(os.memfd_create("program"), "wb+") as file:  # of any size
            file.write(json.dumps(how).encode())
            file.flush()
            socket.send_fds(self._door, [b"!"], [file.fileno(), *fds])
        return int(self._door.recv(100))


_RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID") or secrets.token_hex(16)
_servers: dict[str, _Server] = {}


def _server(kind: str) -> _Server:
    if kind not in _servers:
        _servers[kind] = _Server(kind)
    return _servers[kind]
