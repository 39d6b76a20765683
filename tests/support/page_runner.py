"""Runs the programs that a page shows, in order, against a training job.

python page_runner.py PAGE [LINE]: in an empty folder, with LOOPTAP_DIR set. The job `digits-cnn` trains on a thread
of this process, unless it is there already, as where it has several ranks. A Python block is executed statement by
statement, in one namespace for the page; whatever stream it makes has to yield a value without an error, whatever plot
has to draw. The lines of a shell block are commands; one that does not end gets a Ctrl-C after its first lines. Exits
with the first failure, which names page and line.
"""

from __future__ import annotations

import ast
import contextlib
import doctest
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

import page_preludes
import torch
import warm
from documented import ROOT, Block, programs
from page_job import NAME, Job
from waiting import soon

import looptap
from looptap.agent.server import recording
from looptap.streams.stream.state_and_cost import LIVE

ENDLESS = {"watch", "plot", "top", "web", "guard", "progress", "demo", "relay"}
"""Commands of looptap that end with the run, and not before."""
PRESS_SECONDS = 20.0
"""Until Ctrl-C is pressed again: Python drops the exception of one that comes in the callback of a weak reference."""
PRESSES = 6
LOST = r"(?s)Exception ignored in.*?\nKeyboardInterrupt[^\n]*"
"""What Python prints of such an exception."""
ENDS = {"--count", "--save"}
"""Options with which they end."""
STORED = (
    "looptap-runs/digits-cnn-20260102-030405-1a2b.looptap", "looptap-runs/digits-cnn-….looptap",
    "looptap-runs/digits-….looptap", "digits.looptap", "sweep/one.looptap", "sweep/two.looptap", "FILE", "FILE.looptap",
)  # fmt: skip
"""Names that the pages give to stored runs."""
DIVERGING = "diverging"
"""A second job, whose loss is NaN at times as well."""
PENDING = "5f0c…"
"""The id of a command that waits."""
VIEWER = "digits-cnn-….viewer-1a2b3c4d.json"
ELSEWHERE = "\n".join([
    "#!/bin/sh", 'while [ $# -gt 0 ]; do case "$1" in', "-L|-J|-o|-p|-w) shift 2 ;;",
    "-N) echo forwarding; exec sleep 1000 ;;", "-*) shift ;;", "*) break ;;", "esac; done", "",
])  # fmt: skip
"""The beginning of commands that stand for ssh and srun: they skip options, and go on in this machine."""
HERE = {
    "tcp://node7": "tcp://127.0.0.1",
    "--tcp node7": "--tcp 127.0.0.1",
    "guard.wait()": "guard.wait(1)",
    "every=500": "every=2",
    ".show()": ".show(place='browser')",
}
"""What only exists elsewhere, and what is taken for it here."""


class World:
    """The folder, the job and the names that the programs of a page find."""

    def __init__(self, page: Path) -> None:
        self.page = str(page.relative_to(ROOT))
        self.ranks = self.page in page_preludes.RANKS
        self.job: Job | None = None
        self.script: warm.Popen | None = None
        self.apart = Path("apart").resolve()
        self.apart.mkdir(mode=0o700)
        self.opened = Path("opened").resolve()
        self._commands()
        self.checked: set[int] = set()
        if not self.ranks:
            source = page.read_text()
            if any(name in source for name in (*STORED, "tensorboard", "looptap open", "looptap compare", "SELECT")):
                self._files()
            self._train()
            if DIVERGING in source:
                Job(DIVERGING).thread.start()
        self.names: dict[str, Any] = {"looptap": looptap, "torch": torch, "socket": socket, "NAME": NAME}
        self.names["run"] = looptap.attach(NAME, wait=300)
        soon(lambda: self.names["run"].events().get("epoch", 0) > 1, detail="the job trains")
        if self.job is not None:
            self.names["agent"] = self.job.agent
        exec(page_preludes.COMMON, self.names)
        exec(page_preludes.OWN.get(self.page, ""), self.names)

    def _commands(self) -> None:
        """Put commands on the PATH that work in this machine.

        pip and make only say what they would do.
        """
        folder = Path("bin").resolve()
        folder.mkdir()
        for name, text in (
            ("ssh", ELSEWHERE + 'shift; exec sh -c "$*"\n'), ("srun", ELSEWHERE + 'exec "$@"\n'),
            ("looptap", f'#!/bin/sh\nexec {sys.executable} -m looptap.cli "$@"\n'),
            ("browser", f"#!/bin/sh\ntouch {self.opened}\n"),
            ("python", f'#!/bin/sh\nexec {sys.executable} "$@"\n'),
            ("pip", f'#!/bin/sh\nexec {sys.executable} -m pip "$@" --dry-run --no-index --no-build-isolation\n'),
            ("make", f'#!/bin/sh\nexec /usr/bin/make -n -C {ROOT} "$@"\n'),
        ):  # fmt: skip
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        os.environ["PATH"] = f"{folder}:{os.environ['PATH']}"
        os.environ["BROWSER"] = str(folder / "browser")
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(Path(__file__).parent)])
        for name in ("LOOPTAP_STORE", "DISPLAY", "WAYLAND_DISPLAY"):
            os.environ.pop(name, None)
        Path(".venv/bin").mkdir(parents=True)
        Path(".venv/bin/activate").touch()
        Path("train.py").write_text("import sys, page_job\nsys.argv += ['--epochs', '3']\npage_job.main()\n")
        Path("rules.yaml").write_text("runs: digits-*\nrules:\n  - query: loss > 0\n    actions: [log]\n")

    def _files(self) -> None:
        """Store a run, under all names that the pages give one."""
        os.environ["LOOPTAP_DIR"], announced = str(self.apart), os.environ["LOOPTAP_DIR"]
        recording.CLOSE_TIMEOUT_SECONDS = 60.0  # a busy machine must not lose the file
        job = Job()
        job.train(epochs=2)
        job.agent.checkpoint(lambda: None)
        job.close()
        os.environ["LOOPTAP_DIR"] = announced
        (stored,) = Path("looptap-runs").glob("*.looptap")
        for name in STORED:
            Path(name).parent.mkdir(exist_ok=True)
            shutil.copy(stored, name)
        stored.unlink()
        looptap.open("digits.looptap").stream("loss").to_tensorboard("tensorboard-logs")

    def _train(self) -> None:
        self.job = Job(scheduled=self.page in page_preludes.SCHEDULED)
        self.job.thread.start()

    def share(self) -> None:
        """Put the newest viewer's file in the place that the pages name, or make one."""
        with looptap.attach(NAME) as operator:
            valid = {f"viewer-{share.id}" for share in operator.shares}
        made = [path for path in Path().glob("*.viewer-*.json") if path.suffixes[-2][1:] in valid]
        if made:
            newest = max(made, key=lambda path: path.stat().st_mtime)
        else:
            self.sharing = looptap.attach(NAME)
            error = "error"
            if error not in {stream.name for stream in self.sharing.streams}:
                error = self.sharing.stream("mean(e.error for e in events)", on="batch", name="error")
            newest = self.sharing.share(streams=["loss", error]).path
        shutil.copy(newest, VIEWER)
        Path(VIEWER).chmod(0o600)

    def restore(self) -> None:
        """Go on where a block has paused or stopped the job."""
        if self.job is None:
            return
        if self.job.agent.stop_requested:
            self.job.close()
            self._train()
            self.names["run"] = looptap.attach(NAME, wait=300)
        elif self.names["run"].paused:
            self.names["run"].resume()

    # ------------------------------------------------------------ Python

    def python(self, block: Block) -> None:
        """Execute a block; then check what it has shown."""
        if shown := page_preludes.adapter(block):
            self.start(page_preludes.script(block, shown), block)
            return
        text = page_preludes.adapted(block, HERE)
        if ">>>" in text:
            test = doctest.DocTestParser().get_doctest(text, self.names, block.page, block.page, block.line)
            assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test).failed == 0
            return
        own = {name: self.names.get(name) for name in ("agent", "run")}
        hosts = "looptap.Agent(" in text
        if hosts:  # a job beside the one that trains
            os.environ["LOOPTAP_DIR"], announced = str(self.apart), os.environ["LOOPTAP_DIR"]
        tree = ast.increment_lineno(ast.parse(text), block.line - 1)
        shown = []
        for node in tree.body:
            if ".show(place" in ast.unparse(node):
                self.closed_by_hand(ast.unparse(node))
            elif isinstance(node, ast.Expr):
                shown.append(eval(compile(ast.Expression(node.value), str(ROOT / block.page), "eval"), self.names))
            else:
                exec(compile(ast.Module([node], []), str(ROOT / block.page), "exec"), self.names)
        if hosts:
            self.names["agent"].close()
            os.environ["LOOPTAP_DIR"] = announced
        self.check(shown, block)
        self.check([value for name, value in self.names.items() if not name.startswith("_")], block)
        self.names |= {name: value for name, value in own.items() if name != "run" or hosts}

    def start(self, text: str, block: Block) -> None:
        """End the script before, start one, and wait for its run."""
        self.end()
        soon(lambda: not self.others(), detail=f"{block.place}: the run before is gone")
        Path("script.py").write_text(text)
        with Path("script-output").open("wb") as output:
            self.script = started = warm.Popen([sys.executable, "script.py"], stdout=output, stderr=output)

        def listed() -> bool:
            assert started.poll() is None, Path("script-output").read_text()
            return bool(self.others())

        soon(listed, 300, detail=f"{block.place}: its run is listed")

    def others(self) -> list[str]:
        """Return the names of the other jobs that run."""
        return [run.name for run in looptap.runs() if run.alive and run.name not in (NAME, DIVERGING)]

    def end(self) -> None:
        """End the script, if there is one."""
        if self.script is not None:
            self.script.kill()
            self.script.wait()
            self.script = None

    def closed_by_hand(self, text: str) -> None:
        """Execute a statement that shows charts; press Ctrl-C once a browser opens."""
        self.opened.unlink(missing_ok=True)
        closed = threading.Event()

        def press() -> None:
            soon(self.opened.exists, detail="the page opens")
            os.kill(os.getpid(), signal.SIGINT)
            while not closed.wait(PRESS_SECONDS):
                os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=press, daemon=True).start()
        os.environ["DISPLAY"] = ":99"
        with contextlib.suppress(KeyboardInterrupt):
            exec(text, self.names)
        closed.set()
        del os.environ["DISPLAY"]

    def check(self, values: list[Any], block: Block) -> None:
        """Wait for a value of each new stream, and for a picture of each new plot."""
        for value in values:
            if id(value) in self.checked:
                continue
            if isinstance(value, tuple | list):
                self.check(list(value), block)
            elif isinstance(value, looptap.Stream):
                self.checked.add(id(value))
                self.keep(value)
                soon(
                    lambda one=value: one.arrived or one.error_count or one.state != LIVE,
                    detail=f"{block.place}: {value!r}",
                )
            elif isinstance(value, looptap.Plot):
                self.checked.add(id(value))
                self.keep(value)
                value.save("drawn.html")

    def values_of(self, stream: Any, block: Block) -> None:
        """Wait for a value of a stream, which must not have failed."""
        soon(lambda: stream.arrived or stream.error_count or stream.state != LIVE, detail=lambda: repr(stream))
        problem = getattr(stream, "traceback", "") or stream.errors
        assert not problem, f"{block.place}: {stream!r}: {problem}"
        assert stream.arrived, f"{block.place}: {stream!r}"

    def keep(self, value: Any) -> None:
        """Hold what was checked, so that its id stays its own."""
        self.names.setdefault("_kept", []).append(value)

    # ------------------------------------------------------------ the shell

    def shell(self, block: Block) -> None:
        """Run each line as a command."""
        text = page_preludes.adapted(block, HERE).replace("\\\n", " ")
        for line in filter(None, (line.strip() for line in text.split("\n"))):
            if not line.startswith("#"):
                self.command(line, block)
                self.restore()

    def command(self, line: str, block: Block) -> None:
        """Run one command to its end, or until an endless one has printed something."""
        if PENDING in line:
            line = line.replace(PENDING, self.pending())
        words = shlex.split(line, comments=True)
        if words[:2] == ["looptap", "stop"]:
            words.append("--yes")  # a person answers at the terminal
        endless = words[0] == "ssh" or (words[0] == "looptap" and words[1] in ENDLESS)
        endless = endless and not ENDS & set(words)
        plain = words[0] == "looptap" and not set(line.partition("#")[0]) & set("|>*;&")
        start = warm.Popen if plain else subprocess.Popen
        command = ["bash", "-o", "pipefail", "-c", line]
        if plain:
            python = {"python": sys.executable}
            command = [sys.executable, "-m", "looptap.cli", *(python.get(word, word) for word in words[1:])]
        with Path("stderr").open("w+") as stderr:
            process = start(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, start_new_session=True
            )
            threading.Thread(target=self._read, args=(process, said := []), daemon=True).start()
            files = ["stderr", *([words[-1]] if ">" in line else [])]

            def enough() -> bool:
                return endless and bool(said or any(os.path.exists(file) and os.path.getsize(file) for file in files))

            soon(lambda: process.poll() is not None or enough(), 300, detail=f"{block.place}: {line}")
            code = pressed(process)
            stderr.seek(0)
            problem = stderr.read()
        assert code in (0, 130, -signal.SIGINT), f"{block.place}: {line}: exit code {code}\n{problem}"
        raised = re.sub(LOST, "", problem)
        assert "Traceback" not in raised, f"{block.place}: {line}\n{problem}"
        print(f"{block.place}: {line}: {code}", flush=True)

    def pending(self) -> str:
        """Return the id of a command that waits for an event which never comes."""
        try:
            self.names["run"].trigger("evaluate", on="never", timeout=0)
        except looptap.CommandPending as pending:
            return pending.id
        raise AssertionError("the command is done")

    def _read(self, process: subprocess.Popen[bytes], said: list[bytes]) -> None:
        for row in process.stdout:
            said.append(row)


def pressed(process: Any) -> int:
    """Press Ctrl-C until the leader of a group has ended; return its exit code."""
    for _ in range(PRESSES):
        with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return int(process.wait(PRESS_SECONDS))
    raise AssertionError(f"it has not ended after {PRESSES} times Ctrl-C")


def main() -> None:
    """Run the page."""
    torch.set_num_threads(1)
    page, code = Path(sys.argv[1]).resolve(), 1
    try:
        run(page, int(sys.argv[2]) if len(sys.argv) > 2 else 0)
        code = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # the job, charts and streams of the page are still at work


def run(page: Path, above: int = 0) -> None:
    """Run the programs of a page, from the line ``above`` on."""
    world = World(page)
    try:
        run_blocks(world, page, above)
    finally:
        world.end()


def run_blocks(world: World, page: Path, above: int) -> None:
    """Run the blocks of a page from the line ``above`` on."""
    kinds = {"python": world.python, "sh": world.shell, "sql": page_preludes.sql, "yaml": page_preludes.rules}
    for block in programs(page):
        if block.line < above:
            continue
        if VIEWER in block.text:
            world.share()
        try:
            kinds[block.language](block)
        except BaseException as error:
            error.add_note(f"at {block.place}")
            raise
        world.restore()
    print(f"{world.page}: all ran", flush=True)


if __name__ == "__main__":
    main()
