"""`looptap run`: a script sees the process that plain Python would have given it."""

import os
import re
import signal
import subprocess
import sys
import threading

import pytest
import warm
from places import TESTS
from slowness import LONG_SECONDS
from waiting import soon

import looptap
from looptap.integrations.auto.launch import command_that_runs, environment_of, flags_of

SCRIPTS = TESTS / "trainers" / "scripts"
RUN = ("-m", "looptap", "run")


def python(*words, cwd=SCRIPTS, start=subprocess, **variables):
    """Run Python; return output, errors without memory addresses, and exit code."""
    environment = {**os.environ, **{name: str(value) for name, value in variables.items()}}
    command = [sys.executable, *map(str, words)]
    done = start.run(command, capture_output=True, text=True, cwd=cwd, env=environment, timeout=LONG_SECONDS)
    return done.stdout, re.sub(r"0x[0-9a-f]+", "0x", done.stderr), done.returncode


@pytest.fixture
def package(tmp_path):
    """Return a folder with a package whose module is a script."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").touch()
    (tmp_path / "mine" / "train.py").write_text(
        "import pickle, sys\n"
        "class Line: pass\n"
        "print(sys.argv[1:], sys.path[0], __name__, __package__, __spec__.name, __file__)\n"
        "print(sys.modules['__main__'].Line is Line, pickle.dumps(Line))\n"
        "import torch\n"
        "print(torch.ones(1))\n"
    )
    return tmp_path


# ---------------------------------------------------------------- the same process


@pytest.mark.usefixtures("processes")
def test_arguments_main_module_pickles_children_and_workers_are_those_of_plain_python(place):
    words = ("process.py", "--lr", "0.1", "-m", "--name=x")
    plain = python("-OO", "-u", *words)
    assert plain[2] == 0, plain[1]
    assert python("-OO", "-u", *RUN, *words) == plain


@pytest.mark.usefixtures("processes")
@pytest.mark.promise("auto")
def test_a_module_runs_as_with_python_m(place, package):
    plain = python("-m", "mine.train", "a", cwd=package)
    assert plain[2] == 0, plain[1]
    assert python(*RUN, "-m", "mine.train", "a", cwd=package) == plain


@pytest.mark.usefixtures("processes")
def test_a_ctrl_c_in_the_last_moment_before_the_script_takes_over_ends_the_process():
    code = """
import os, signal
from looptap.integrations.auto.launch import launch
os.execvpe = lambda *exchanged: os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
launch(["train.py"])
"""
    assert python("-c", code) == ("", "", -signal.SIGINT)  # a KeyboardInterrupt would be gone with the interpreter


ENDS = ["data", "forward", "backward", "gone graph", "closure", "step", "SIGTERM", "SIGINT", "exit", "_exit", "well"]


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("how", ENDS)
def test_tracebacks_and_exit_codes_are_those_of_plain_python(place, how):
    plain = python("ending.py", how, start=warm)
    assert python(*RUN, "ending.py", how, start=warm) == plain
    assert (plain[2] == 0) == (how == "well")


@pytest.mark.usefixtures("processes")
def test_a_script_that_is_not_there_is_reported_by_python(place):
    out, errors, code = python(*RUN, "nowhere.py")
    assert (out, code) == ("", 2)
    assert "can't open file" in errors


# ---------------------------------------------------------------- asked


def watched(*command, start=subprocess, **variables):
    return start.Popen(
        [sys.executable, *map(str, command)], cwd=SCRIPTS, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, **variables},
    )  # fmt: skip


@pytest.mark.usefixtures("processes")
@pytest.mark.promise("auto")
@pytest.mark.parametrize("how", ["run", "variable"])
def test_a_script_that_is_asked_gives_the_same_numbers_and_answers(place, tmp_path, how):
    go, name = tmp_path / "go", "watched" if how == "run" else "mine"
    site = environment_of({}, None)["PYTHONPATH"]
    command, variables = {
        "run": ((*RUN, "watched.py", go), {}),
        "variable": (("watched.py", go), {"LOOPTAP_AUTO": "mine", "PYTHONPATH": site}),
    }[how]
    job = watched(*command, **variables)
    try:
        soon(lambda: any(one.name == name for one in looptap.runs()) or job.poll() is not None)
        assert job.poll() is None, job.communicate()
        with looptap.attach(name) as run:
            asked = [
                run.stream("loss, step", on="step", budget=float("inf")),
                run.stream("x.shape, labels.sum(), images.mean()", on="batch", budget=float("inf")),
                run.stream("layer_norms(model, 'grad')", on="step", budget=float("inf")),
                run.stream("max(e.loss for e in events)", on="step", window=10, budget=float("inf")),
            ]
            go.touch()
            out, errors = job.communicate(timeout=LONG_SECONDS)
            assert (job.returncode, errors) == (0, "")
            soon(lambda: all(stream.state != "live" for stream in asked))
            rows = asked[0].values
        assert out == python("watched.py", go, start=warm)[0]
        losses = [float(line.split()[1]) for line in out.splitlines() if line.startswith("step")]
        assert [(loss.item() if hasattr(loss, "item") else loss, step) for loss, step in rows] == [
            (losses[step], step) for _, step in rows
        ]
        assert [step for _, step in rows][-56:] == [*range(4, 60)]
        assert len(asked[1].values) >= 50
        assert len(asked[2].values) >= 56
    finally:
        job.kill()
        job.communicate()


@pytest.mark.usefixtures("processes")
def test_a_script_can_be_paused_if_the_command_that_starts_it_says_so(place, tmp_path):
    go = tmp_path / "go"
    job = watched(*RUN, "--may-pause", "20s", "watched.py", go, start=warm)
    try:
        soon(lambda: any(one.name == "watched" for one in looptap.runs()) or job.poll() is not None)
        assert job.poll() is None, job.communicate()
        with looptap.attach("watched") as run:
            pending = threading.Thread(target=run.pause, args=(15,))
            pending.start()
            go.touch()
            pending.join()
            soon(lambda: run.paused > 0)
            run.resume()
        out, errors = job.communicate(timeout=LONG_SECONDS)
        assert (job.returncode, errors, out) == (0, "", python("watched.py", go, start=warm)[0])
    finally:
        job.kill()
        job.communicate()
    assert "--may-pause is a time above 0" in python(*RUN, "--may-pause", "inf", "watched.py")[1]


@pytest.mark.usefixtures("processes")
def test_the_ranks_that_torchrun_starts_are_one_run_with_the_same_numbers(place, tmp_path):
    def launched(folder, *how):
        launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
        return watched(*launcher, *how, "ranks.py", folder)

    def numbers(folder):
        return [(folder / f"rank{rank}").read_text() for rank in (0, 1)]

    folders = [tmp_path / "plain", tmp_path / "asked"]
    for folder in folders:
        folder.mkdir()
    (folders[0] / "go").touch()
    plain = launched(folders[0])
    _, errors = plain.communicate(timeout=LONG_SECONDS)
    assert plain.returncode == 0, errors
    job = launched(folders[1], *RUN)
    try:
        soon(lambda: any(len(one.members) == 2 for one in looptap.runs()) or job.poll() is not None)
        assert job.poll() is None, job.communicate()
        with looptap.attach("ranks") as run:
            stream = run.stream("loss, step", on="step", ranks="all", budget=float("inf"))
            norms = run.stream("layer_norms(model, 'grad')", on="step", budget=float("inf"))
            (folders[1] / "go").touch()
            _, errors = job.communicate(timeout=LONG_SECONDS)
            assert job.returncode == 0, errors
            soon(lambda: stream.state != "live")
            assert len(stream.values) >= 50
            assert len(norms.values) >= 25
        assert numbers(folders[1]) == numbers(folders[0])
    finally:
        job.kill()
        job.communicate()


def read_back(folder):
    """Return what a folder of TensorBoard holds, by file and tag, without times."""
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = {}
    for file in sorted(folder.rglob("events.*")):
        all_of_it = events.EventAccumulator(str(file), dict.fromkeys(events.DEFAULT_SIZE_GUIDANCE, 0))
        all_of_it.Reload()
        place = str(file.parent.relative_to(folder))
        for tag in all_of_it.Tags()["scalars"]:
            found[place, tag] = [(one.step, one.value) for one in all_of_it.Scalars(tag)]
        for tag in all_of_it.Tags()["histograms"]:
            found[place, tag] = [(one.step, one.histogram_value) for one in all_of_it.Histograms(tag)]
        for tag in all_of_it.Tags()["tensors"]:
            found[place, tag] = [(one.step, one.tensor_proto.string_val[:]) for one in all_of_it.Tensors(tag)]
    return found


@pytest.mark.usefixtures("processes")
@pytest.mark.promise("auto", "tee")
def test_what_a_script_logs_is_the_same_and_there_by_its_tags(place, tmp_path):
    pytest.importorskip("tensorboard")
    go = tmp_path / "go"
    job = watched(*RUN, "logged.py", go, tmp_path / "watched", start=warm)
    try:
        soon(lambda: any(one.name == "logged" for one in looptap.runs()) or job.poll() is not None)
        assert job.poll() is None, job.communicate()
        with looptap.attach("logged") as run:
            soon(lambda: len(run.stream("train/loss").values) == 3)
            streams = {tag: run.stream(tag) for tag in ("train/loss", "rates/a", "rates/b", "shown")}
            logs = run.stream("source, step, logs", on="log", budget=float("inf"))
            go.touch()
            out, errors = job.communicate(timeout=LONG_SECONDS)
            assert job.returncode == 0, errors
            soon(lambda: logs.state != "live")
    finally:
        job.kill()
        job.communicate()
    assert (out, errors, 0) == python("logged.py", go, tmp_path / "plain", start=warm)
    written = read_back(tmp_path / "watched")
    assert written == read_back(tmp_path / "plain")
    assert len(written) == 6
    losses = [float(line.split()[1]) for line in out.splitlines() if line.startswith("step")]
    assert [tuple(row) for row in streams["train/loss"].values] == [(n, loss) for n, loss in enumerate(losses)]
    assert [row.value for row in streams["rates/a"].values] == pytest.approx([0.1 * n for n in range(20)])
    assert [row.value for row in streams["rates/b"].values] == [*range(20)]
    assert [row.value for row in streams["shown"].values] == [round(loss, 4) for loss in losses]
    assert {row.source for row in logs.values} == {"tensorboard", "tqdm"}


# ---------------------------------------------------------------- the command


def test_a_program_is_started_as_it_is_and_its_python_children_have_looptap():
    assert command_that_runs(["sh", "train.sh"]) == ["sh", "train.sh"]
    assert command_that_runs(["train.py", "-x"])[-2:] == ["train.py", "-x"]
    assert command_that_runs(["pkg.train"], module=True)[-2:] == ["-m", "pkg.train"]


def test_the_options_of_the_interpreter_are_kept():
    assert flags_of(["python", "-u", "-Om", "looptap", "run", "a"], ["looptap/__main__.py", "run", "a"]) == ["-u", "-O"]
    assert flags_of(["python", "/bin/looptap", "run", "a.py"], ["/bin/looptap", "run", "a.py"]) == []
    assert flags_of(["python", "-u", "-c", "main()", "run", "a.py"], ["-c", "run", "a.py"]) == ["-u"]


def test_the_environment_keeps_its_python_path_and_is_not_added_to_twice():
    once = environment_of({"PYTHONPATH": "/mine"}, "digits")
    assert once["PYTHONPATH"].split(os.pathsep)[1:] == ["/mine"]
    assert once["LOOPTAP_AUTO"] == "digits"
    assert environment_of(once, None) == once


@pytest.mark.usefixtures("processes")
def test_a_sitecustomize_of_the_job_runs_as_well(place, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.mine = 'ran'")
    (tmp_path / "job.py").write_text("import sys; print(sys.mine, [p for p in sys.path if 'integrations' in p])")
    variables = {"PYTHONPATH": tmp_path}
    assert python(*RUN, "job.py", cwd=tmp_path, **variables) == python("job.py", cwd=tmp_path, **variables)


@pytest.mark.usefixtures("processes")
def test_a_search_for_torch_before_its_import_does_not_lose_the_hooks(place, tmp_path):
    (tmp_path / "job.py").write_text(
        "import importlib.util, sys\n"
        "assert importlib.util.find_spec('torch').origin.endswith('__init__.py')\n"
        "import torch\n"
        "print(torch.__spec__.loader, hasattr(torch.nn.Module.eval, '_looptap_note'))\n"
    )
    out, errors, code = python(*RUN, "job.py", cwd=tmp_path)
    assert code == 0, errors
    assert out.endswith("True\n")
    assert "looptap" not in out


@pytest.mark.usefixtures("processes")
def test_a_job_that_imports_no_torch_loads_nothing_of_it(place, tmp_path):
    (tmp_path / "job.py").write_text("import sys; print('torch' in sys.modules, 'zmq' in sys.modules)")
    assert python(*RUN, "job.py", cwd=tmp_path)[0] == "False False\n"


@pytest.mark.usefixtures("processes")
def test_looptap_can_be_switched_off(place):
    out, _, _ = python(*RUN, "ending.py", "well", start=warm, LOOPTAP_DISABLED="1")
    assert out == python("ending.py", "well", start=warm)[0]


@pytest.mark.parametrize(("words", "error"), [("3", ValueError), ("'digits', bugdet=1", TypeError), ("''", ValueError)])
def test_wrong_arguments_of_auto_raise_at_once(words, error):
    with pytest.raises(error):
        eval(f"looptap.auto({words})")
