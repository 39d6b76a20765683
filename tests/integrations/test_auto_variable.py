"""LOOPTAP_AUTO=1 where looptap is installed: any Python process, however started."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from places import ROOT, TESTS
from source_tree import START_FILE, copied, wheel_of
from waiting import soon

import looptap

SCRIPTS = TESTS / "trainers" / "scripts"
LOADED = "import sys; print([name for name in sys.modules if 'looptap' in name])"


class Environment:
    """A virtual environment with looptap, which finds all else where this one does."""

    def __init__(self, folder: Path, *requirement: str) -> None:
        venv.create(folder, with_pip=False, symlinks=True)
        self.python = folder / "bin" / "python"
        self.site = next(folder.glob("lib/python*/site-packages"))
        (self.site / "of_the_tests.pth").write_text(sysconfig.get_path("purelib"))
        self.pip("install", "--no-deps", "--no-index", "--no-build-isolation", *requirement)

    def pip(self, *words: str) -> None:
        command = [sys.executable, "-m", "pip", "--python", str(self.python), "--quiet", *words]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LOOPTAP_PURE": "1"})
        assert done.returncode == 0, done.stderr

    def start(self, *words: object, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(self.python), *map(str, words)], cwd=SCRIPTS, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env={**os.environ, **variables},
        )  # fmt: skip

    def ran(self, *words: object, **variables: str) -> str:
        job = self.start(*words, **variables)
        out, errors = job.communicate(timeout=300)
        assert (job.returncode, errors) == (0, "")
        return out


@pytest.fixture(scope="module")
def wheel(processes, tmp_path_factory):
    return wheel_of(tmp_path_factory.mktemp("build"), LOOPTAP_PURE="1")[0]


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    return Environment(tmp_path_factory.mktemp("installed") / "env", str(wheel))


def test_without_the_variable_nothing_of_looptap_is_loaded(installed):
    assert installed.ran("-c", LOADED) == "[]\n"
    assert installed.ran("-c", LOADED, LOOPTAP_AUTO="") == "[]\n"


def test_a_process_that_trains_nothing_has_no_run_and_loads_neither_torch_nor_zmq(installed, place):
    seen = installed.ran("-c", "import sys; print('torch' in sys.modules, 'zmq' in sys.modules)", LOOPTAP_AUTO="1")
    assert seen == "False False\n"
    assert looptap.runs() == []


def test_it_loads_looptap_also_where_python_ignores_its_own_variables(installed):
    assert "'looptap'" in installed.ran("-I", "-c", LOADED, LOOPTAP_AUTO="1")


@pytest.mark.parametrize("name", ["1", "digits"])
def test_a_plain_python_process_is_a_run_with_the_same_numbers(installed, place, tmp_path, name):
    go = tmp_path / "go"
    job = installed.start("watched.py", go, LOOPTAP_AUTO=name)
    try:
        called = "watched" if name == "1" else name
        soon(lambda: any(one.name == called for one in looptap.runs()) or job.poll() is not None)
        assert job.poll() is None, job.communicate()
        with looptap.attach(called) as run:
            assert run.info.pid == job.pid
            stream = run.stream("loss, step", on="step", budget=float("inf"))
            go.touch()
            out, errors = job.communicate(timeout=300)
        assert (job.returncode, errors) == (0, "")
        assert len(stream.values) >= 50
    finally:
        job.kill()
        job.communicate()
    assert out == installed.ran("watched.py", go)


LAUNCHERS = {
    "torchrun": (2, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
    "multiprocessing": (2, "spawning.py"),
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_what_a_launcher_starts_has_it_too(installed, place, tmp_path, launcher):
    ranks, *words = LAUNCHERS[launcher]
    job = installed.start(*words, "ranks.py", tmp_path, LOOPTAP_AUTO="1")
    try:
        soon(lambda: any(len(one.members) == ranks for one in looptap.runs()) or job.poll() is not None, 240)
        assert job.poll() is None, job.communicate()
        with looptap.attach("ranks") as run:
            stream = run.stream("loss, step", on="step", ranks="all", budget=float("inf"))
            assert job.pid not in {rank.info.pid for rank in run.ranks.values()}
            (tmp_path / "go").touch()
            _, errors = job.communicate(timeout=300)
            assert job.returncode == 0, errors
            soon(lambda: stream.state != "live")
            assert len(stream.values) >= 25 * ranks
    finally:
        job.kill()
        job.communicate()


def test_what_fails_in_looptap_is_no_error_of_the_process(wheel, tmp_path):
    broken = Environment(tmp_path / "env", str(wheel))
    (broken.site / "looptap" / "__init__.py").write_text("raise RuntimeError('broken')")
    assert broken.ran("-c", "print(1)", LOOPTAP_AUTO="1") == "1\n"
    broken.pip("uninstall", "--yes", "looptap")
    assert not (broken.site / START_FILE).exists()
    (broken.site / START_FILE).write_text((ROOT / "src" / START_FILE).read_text())
    assert broken.ran("-c", "print(2)", LOOPTAP_AUTO="1") == "2\n"


@pytest.mark.usefixtures("processes")
@pytest.mark.promise("auto")
def test_an_editable_install_has_it_too(tmp_path):
    (tmp_path / "tree").mkdir()
    tree = copied(tmp_path / "tree")
    edited = Environment(tmp_path / "env", "--editable", str(tree))
    assert edited.ran("-c", LOADED) == "[]\n"
    assert "'looptap'" in edited.ran("-c", LOADED, LOOPTAP_AUTO="1")
