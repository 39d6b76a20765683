"""A run behind a command, such as ``ssh://login/node/run`` or ``command:srun …``.

There is one mechanism: a command that ends in `looptap bridge` somewhere, whose stdin and stdout carry one connection;
``ssh://`` is short for such a command. It passes jump hosts, needs no port anywhere, and permissions are those of the
user who starts the command. Encryption and keys are the run's own, from end to end.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as TooLate

from looptap.client.transport.timeouts import REPLY_SECONDS
from looptap.client.transport.tunnel.framing import (
    Heading,
    copy_inward,
    copy_outward,
    heading_of,
    read_heading,
)
from looptap.client.transport.tunnel.running_command import RunningCommand
from looptap.protocol.errors import LinkError, NoAnswer, NoSuchRun, RunEnded
from looptap.protocol.files.connection import IPC, private_dir

SSH, COMMAND = "ssh://", "command:"
START_TIMEOUT_SECONDS = 30.0
"""Timeout for a command's heading: logins, queues and slow file systems take time."""
_HOST = re.compile(r"(?:[\w.%+][\w.%+-]*@)?(?:[\w.%][\w.%-]*|\[[0-9A-Fa-f:.%\w]+\])(?::\d{1,5})?")  # not -option
_SSH = ("ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20")
_EXIT_GRACE_SECONDS = 0.5  # seconds in which a command may end by itself


def is_remote(name: object) -> bool:
    """Return True if ``name`` is a run behind a command."""
    return isinstance(name, str) and name.startswith((SSH, COMMAND))


def command_to_run(name: str, rank: int | None = None) -> list[str]:
    """Return the command that leads to the run. Raises NoSuchRun for a bad name.

    >>> command_to_run("ssh://login/node7/digits")[-4:]
    ['-J', 'login', 'node7', 'looptap bridge digits']
    >>> command_to_run("command:srun --jobid=17 looptap bridge digits")
    ['srun', '--jobid=17', 'looptap', 'bridge', 'digits']
    """
    if name.startswith(COMMAND):
        try:
            command = shlex.split(name.removeprefix(COMMAND))
        except ValueError as error:
            raise NoSuchRun(f"{name!r} is no command: {error}.") from None
        if not command:
            raise NoSuchRun(f"{name!r} has no command. Write 'command:ssh host looptap bridge digits-cnn'.")
        return command
    *hosts, run = (name if "/" in name.removeprefix(SSH) else f"{name}/").removeprefix(SSH).split("/")
    which = [] if rank is None else ["--rank", str(rank)]
    words = ["bridge", *which, *(["--", run] if run[:1] == "-" else [run])]
    return over_ssh(hosts, [word for word in words if word])


def over_ssh(hosts: Sequence[str], words: Iterable[str]) -> list[str]:
    """Return the command that runs looptap on the last of ``hosts``, via the others.

    Raises NoSuchRun for what is no host, such as an option of ssh.
    """
    if strange := [host for host in hosts if not _HOST.fullmatch(host)]:
        raise NoSuchRun(
            f"{strange[0]!r:.80} is no host. Write 'ssh://host/run', or 'ssh://login/host/run' by way of login."
        )
    via, host = hosts[:-1], hosts[-1]
    jumps = ["-J", ",".join(via)] if via else []
    far = f"{SSH}{host}" if ":" in host else host
    return [*_SSH, *jumps, far, shlex.join(["looptap", *words])]


def relay_of(name: str, run_id: str, ranks: str) -> list[str]:
    """Return the command that starts a relay for ``ranks``. Raises NoSuchRun.

    >>> relay_of("ssh://login/node7/digits", "digits-17", "0,1")[-4:]
    ['-J', 'login', 'node7', 'looptap relay digits-17 --ranks 0,1']
    >>> relay_of("command:srun --jobid=17 looptap bridge digits", "digits-17", "0,1")[2:]
    ['looptap', 'relay', 'digits-17', '--ranks', '0,1']
    """
    words = ["relay", *(["--ranks", ranks, "--", run_id] if run_id[:1] == "-" else [run_id, "--ranks", ranks])]
    if name.startswith(SSH):
        return over_ssh(name.removeprefix(SSH).split("/")[:-1] or [name.removeprefix(SSH)], words)
    command = command_to_run(name)
    for place in range(1, len(command)):
        if command[place] == "bridge" and "looptap" in command[place - 1]:
            return [*command[:place], *words]
    raise NoSuchRun(
        f"{name!r} lacks the words looptap bridge, which a relay would replace; name it so, or ask without relay=True."
    )


class CommandRoute:
    """The way to one run by a command, which is started for each connection."""

    longest = 10.0
    """Maximum seconds between two attempts to reconnect."""

    def __init__(self, name: str, rank: int | None = None) -> None:
        self.name, self._command = name, command_to_run(name, rank)
        self._lock = threading.Lock()
        self._starting: _ProcessPipe | None = None
        self._pipe: _ProcessPipe | None = None
        self._next_pipe: _ProcessPipe | None = None
        self._server = ""
        self._closed = False

    def open(self, timeout: float) -> Heading:
        """Start the command for its first connection; return its heading or raise."""
        pipe = _ProcessPipe(self._command, self.name)
        with self._lock:
            self._starting = pipe
            if self._closed:
                pipe.close()
        try:
            heading = pipe.heading(timeout)
        except BaseException:
            pipe.close()
            raise
        finally:
            with self._lock:
                self._starting = None
        assert heading.file is not None
        self._server = self._server or heading.file.server_public
        self._next_pipe = pipe
        return heading

    def endpoint(self) -> str:
        """Return an endpoint for one connection, now.

        Raises RunEnded if the command reports that the run has ended, or leads to another one, and NoAnswer if another
        attempt may succeed.
        """
        self._end()
        if self._next_pipe is None:
            try:
                heading = self.open(START_TIMEOUT_SECONDS)
            except NoSuchRun as error:
                raise RunEnded(f"The run has ended. {error}") from None
            assert heading.file is not None
            if heading.file.server_public != self._server:
                raise RunEnded(f"The run has ended; {self.name} leads to another one now: {heading.file.run.id}.")
        self._pipe, self._next_pipe = self._next_pipe, None
        assert self._pipe is not None
        try:
            return self._pipe.listen()
        except OSError as error:
            raise NoAnswer(f"No socket can be made for the connection to {self.name}: {error}.") from None

    def broken(self, error: LinkError) -> NoAnswer:
        """Return why the newest endpoint led to no link."""
        words = self._pipe.quoted_stderr() if self._pipe is not None else ""
        return NoAnswer(f"The connection through {self.name} broke off at its beginning.{words}")

    def cancel(self) -> None:
        """Cancel a start of the command."""
        with self._lock:
            if self._starting is not None:
                self._starting.close()

    def close(self) -> None:
        """End the command, and start no other."""
        with self._lock:
            self._closed = True
        self.cancel()
        self._end()
        if self._next_pipe is not None:
            self._next_pipe.close()
            self._next_pipe = None

    def _end(self) -> None:
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            pipe.close()


class _ProcessPipe:
    """One start of the command, and the one connection that it carries."""

    def __init__(self, command: list[str], name: str) -> None:
        self._command = RunningCommand(command, "looptap-bridge", f"{name}: ")
        self._name = name
        self._heading_line: Future[bytes | None] = Future()
        self._peer: Future[socket.socket] = Future()
        self._connected = False
        self._threads = [self._thread(self._copy_from_command)]

    def heading(self, timeout: float) -> Heading:
        """Read the command's heading. Raises the LinkError in it, or NoAnswer."""
        try:
            line = self._heading_line.result(timeout)
        except TooLate:
            raise NoAnswer(
                f"{self._name}: `{self._shown}` did not say within {timeout:.0f} s which run it leads to."
                f"{self.quoted_stderr()}"
            ) from None
        if line is None:
            raise self._failure()
        return heading_of(line, self._name)

    def listen(self) -> str:
        """Open a short-lived local endpoint for the connection; return it."""
        if hasattr(socket, "AF_UNIX"):
            path = private_dir() / f"bridge-{os.urandom(6).hex()}.sock"
            server = socket.socket(socket.AF_UNIX)
            server.bind(str(path))
            endpoint, remove = f"{IPC}{path}", lambda: path.unlink(missing_ok=True)
        else:
            server = socket.socket()
            server.bind(("127.0.0.1", 0))
            endpoint, remove = f"tcp://127.0.0.1:{server.getsockname()[1]}", lambda: None
        server.listen(1)
        server.settimeout(REPLY_SECONDS)
        self._connected = True
        self._threads.append(self._thread(lambda: self._copy_to_command(server, remove)))
        return endpoint

    def quoted_stderr(self) -> str:
        """Quote the last lines of the command's stderr; empty if there are none."""
        return self._command.quoted_stderr()

    def close(self) -> None:
        """End the command: by itself if its connection is over, else by a signal."""
        self._command.end(_EXIT_GRACE_SECONDS if self._connected else 0.0)
        self._peer.cancel()
        if not self._connected:
            self._command.close_stdin()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_EXIT_GRACE_SECONDS)

    @property
    def _shown(self) -> str:
        return shlex.join(word for word in self._command.command if word not in _SSH[1:])

    def _failure(self) -> NoAnswer:
        """Return the error of a command that ended before its heading."""
        code = self._command.exit_code()
        ended = f"{self._name}: `{self._shown}` ended with exit code {code} and named no run.{self.quoted_stderr()}"
        if code == 127:
            ended += (
                " If looptap is installed there, but not on the PATH of such a command, name it in full: "
                "'command:ssh host /path/to/looptap bridge run'"
            )
        elif code == 255 and self._command.command[0] == "ssh":
            ended += " ssh must connect without asking for a password: try it by hand first."
        return NoAnswer(ended)

    # ------------------------------------------------------------ threads

    @staticmethod
    def _thread(work: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=work, name="looptap-bridge", daemon=True)
        thread.start()
        return thread

    def _copy_from_command(self) -> None:
        """Copy from the command to our socket."""
        with self._command.stdout as stream, contextlib.suppress(CancelledError, OSError):
            line = None
            try:
                line = read_heading(stream)
            finally:
                self._heading_line.set_result(line)
            peer = self._peer.result()
            copy_inward(stream, peer)
            peer.shutdown(socket.SHUT_RDWR)

    def _copy_to_command(self, server: socket.socket, remove: Callable[[], None]) -> None:
        """Copy from our socket to the command."""
        peer: socket.socket | None = None
        with contextlib.suppress(OSError):
            peer = server.accept()[0]
        server.close()
        remove()
        if peer is None:
            self._peer.cancel()
            self._command.process.terminate()
        else:
            peer.settimeout(None)
            if self._peer.set_running_or_notify_cancel():
                self._peer.set_result(peer)
            copy_outward(peer, self._command.stdin)
        self._command.close_stdin()
        if peer is not None:
            self._threads[0].join(REPLY_SECONDS)
            peer.close()
