"""Runs beside each other: a table, its expressions, lines across axes."""

from __future__ import annotations

import json
import math
import re
import time

import numpy as np
import pytest
from training_loop import training
from waiting import soon

import looptap
from looptap.client.run_expressions import MAX_INTEGER_BITS, UNKNOWN, Expression
from looptap.streams.errors import QueryError
from looptap.visualizers.comparison import RunTable
from looptap.visualizers.drawing.picture import Line

COUNT = 20


def two_stored(tmp_path):
    """Return the files of two runs, of which only the second has `valid`."""
    for name in ("one", "two"):
        with looptap.Agent(name, store=tmp_path / f"{name}.looptap") as agent:
            agent.stream("train", "step, loss", keep=True)
            if name == "two":
                agent.stream("valid", "step, acc", keep=True)
            for step in range(5):
                agent.emit("batch", step=step, loss=1 / (step + 1), acc=0.5)
    return [tmp_path / f"{name}.looptap" for name in ("one", "two")]


def test_plot_draws_several_stored_runs_on_shared_axes(directory, tmp_path, here):
    one, two = two_stored(tmp_path)
    picture = tmp_path / "both.html"
    code, out, err = here("plot", one, two, "train", "--save", picture)
    assert (code, err) == (0, "")
    assert out.startswith("10 values drawn; saved: ")
    assert set(re.findall(r'"m": "line", "z": null, "name": "(\w*)"', picture.read_text())) == {"one", "two"}
    code, out, err = here("plot", one, two, "--save", picture)
    assert (code, "no 'valid' in one.looptap" in err) == (0, True)
    assert out.startswith("20 values drawn; saved: ")
    code, _, err = here("plot", one, two, "lose", "--save", picture)
    assert (code, "There is no stream 'lose' in " in err) == (1, True)
    code, _, err = here("plot", one, two, "train", "--every", "2")
    assert (code, "its streams are read by their names only" in err) == (1, True)
    code, _, err = here("plot", one, tmp_path / "three.looptap")
    assert (code, "three.looptap cannot be opened" in err) == (1, True)


@pytest.fixture
def sweep(directory, monkeypatch, tmp_path):
    """Return the folder of twenty stored runs: the smaller the rate, the better."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LOOPTAP_STORE")
    for n in range(COUNT):
        config = {"lr": 10.0 ** -(n % 5), "optimizer": {"name": "adam" if n % 2 else "sgd"}, "seed": n, "epochs": 3}
        with looptap.Agent(f"sweep-{n:02d}", config=config, history=False) as agent:
            agent.stream("loss", "step, loss", keep=True)
            if n != 8:
                agent.stream("valid", "step, loss, acc", keep=True)
            for step in range(5):
                loss = config["lr"] * (5 - step) + 0.01 * n
                agent.emit("batch", step=step, loss=loss, acc=1 / (1 + config["lr"]) - 0.001 * (step == 4))
    return tmp_path / "looptap-runs"


def test_a_sweep_is_a_table_that_is_sorted_and_filtered(sweep):
    table = looptap.compare([sweep])
    assert isinstance(table, RunTable)
    assert len(table) == COUNT
    assert table.settings == ["lr", "optimizer.name", "seed", "epochs"]
    assert table.columns == [
        "lr", "optimizer.name", "seed", "best(loss)", "final(loss)", "best(valid.loss)", "final(valid.loss)",
        "best(acc)", "final(acc)",
    ]  # fmt: skip
    good = table.where("lr < 0.01 and best(acc) > .9")
    assert {row.config["lr"] for row in good} == {1e-3, 1e-4}
    assert len(good) == 7  # without the run that has no accuracy
    assert len(table.where("lr > 1e9").sort("best(acc)")) == 0
    ordered = table.sort("best(acc)")
    assert ordered[-1].name == "sweep-08"
    accuracies = [value for value in ordered.values("best(acc)") if value is not None]
    assert accuracies == sorted(accuracies, reverse=True)
    losses = table.sort("best(loss)").values("best(loss)")
    assert losses == sorted(losses)
    assert table.sort("best(loss)", descending=True).values("best(loss)") == losses[::-1]
    assert table.sort("config['optimizer.name']").values("optimizer.name") == ["adam"] * 10 + ["sgd"] * 10
    (row,) = table.where("seed == 3")
    assert (row.state, row.figure("final", "loss"), row.figure("count", "acc")) == ("ended", pytest.approx(0.031), 5)
    assert row.figure("best", "acc") > row.figure("final", "acc")
    assert 0 <= row.duration < 60
    assert len(table.where("name == 'sweep-03' or id in ('x', 'y')")) == 1
    assert len(table.where("not (optimizer.name == 'adam')")) == 10
    assert len(table[:3]) == 3
    assert "sweep-00" in repr(table)
    assert table._repr_html_().count("<tr>") == COUNT + 1
    assert list(table.to_pandas()["lr"]) == table.values("lr")
    assert json.dumps(table.records()[0])


def test_ended_runs_that_kept_no_stream_have_the_figures_of_their_scalars(directory, monkeypatch, tmp_path, here):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LOOPTAP_STORE")
    for n in range(COUNT):
        lr = 10.0 ** -(n % 5)
        with looptap.Agent(f"bare-{n:02d}", config={"lr": lr}) as agent:
            agent.emit("batch", step=0, loss=lr + n, acc=0.99 - 0.1 * lr - 0.001 * n)
    where = "lr < 0.01 and best(acc) > .9"
    good = looptap.compare(["looptap-runs"]).where(where).sort("best(acc)", descending=True)
    assert [row.name for row in good] == [f"bare-{n:02d}" for n in (3, 4, 8, 9, 13, 14, 18, 19)]
    assert good[0].figure("final", "loss") == pytest.approx(3.001)
    out = here("compare", "looptap-runs", "--where", where, "--sort", "best(acc)")[1]
    assert out.index("bare-03") < out.index("bare-18")  # the best first
    assert "bare-00" not in out


@pytest.mark.usefixtures("processes")
def test_the_final_value_of_a_run_that_diverged_is_nan_which_sorts_as_the_worst(directory, tmp_path, here):
    losses = {"good": (3.0, 2.0, 1.0), "better": (3.0, 1.0, 0.5), "nan": (3.0, 1e31, math.nan), "all": (math.nan,) * 3}
    for name, values in losses.items():
        with looptap.Agent(name, config={"seed": 1}, store=tmp_path / f"{name}.looptap") as agent:
            if name in ("better", "nan"):  # the others have the history of scalars alone
                agent.stream("train", "step, loss, acc", keep=True)
            for step, loss in enumerate(values):
                agent.emit("batch", step=step, loss=loss, acc=math.nan if math.isnan(loss) else 1 / loss)
    table = looptap.compare([tmp_path])
    finals = dict(zip((row.name for row in table), table.values("final(loss)"), strict=True))
    assert (finals["good"], finals["better"]) == (1.0, 0.5)
    assert math.isnan(finals["nan"])
    assert math.isnan(finals["all"])
    assert {row.name for row in table.where("isnan(final(loss))")} == {"nan", "all"}
    assert {row.name for row in table.where("isnan(loss)")} == {"nan", "all"}
    assert {row.name for row in table.where("isfinite(final(loss))")} == {"good", "better"}
    assert [row.name for row in table.sort("final(loss)")[:2]] == ["better", "good"]
    assert [row.name for row in table.sort("final(acc)")[:2]] == ["better", "good"]
    assert [row.name for row in table.sort("final(loss)", descending=True)[:2]] == ["good", "better"]
    (row,) = table.where("name == 'nan'")
    assert (row.figure("best", "loss"), row.figure("max", "loss"), row.figure("count", "loss")) == (3.0, 1e31, 3)
    (nothing,) = table.where("name == 'all'")
    assert (nothing.figure("best", "loss"), nothing.figure("count", "loss")) == (UNKNOWN, 3)
    titles, rows = table.texts()
    cells = {row[0]: dict(zip(titles, row, strict=True)) for row in rows}
    assert (cells["nan"]["final(loss)"], cells["nan"]["best(loss)"]) == ("NaN", "3")
    assert (cells["all"]["final(loss)"], cells["all"]["best(loss)"]) == ("NaN", "")
    plot = table.parallel("best(loss)", "final(loss)")
    plot.pull()
    assert plot.pictures()
    with looptap.open(tmp_path / "nan.looptap") as run:
        (loss,) = [row for row in looptap.plot(run.stream("train")).summary() if "loss" in row["stream"]]
    assert (math.isnan(loss["final"]), loss["best"]) == (True, 3.0)
    out = here("compare", tmp_path, "--where", "isnan(final(loss))", "--columns", "final(loss)")[1]
    assert [(line.split()[0], line.split()[-1]) for line in out.splitlines()[1:]] == [("all", "NaN"), ("nan", "NaN")]


@pytest.mark.usefixtures("processes")
def test_the_table_of_runs_has_a_loss_of_each_type_of_events_and_no_column_of_their_speed(directory, tmp_path):
    for seed in range(2):
        with looptap.Agent("two", config={"seed": seed}, store=tmp_path / f"{seed}.looptap") as agent:
            for step in range(20):
                agent.emit("batch", step=step, loss=1.0 + step)
                if step % 10 == 9:
                    agent.emit("epoch", epoch=step // 10, loss=0.5 + step + seed)
                time.sleep(0.01)
    table = looptap.compare([tmp_path])
    assert table.columns == [
        "seed", "best(loss)", "final(loss)", "best(epoch.loss)", "final(epoch.loss)"
    ]  # fmt: skip
    assert table.sort("final(epoch.loss)").values("final(epoch.loss)") == [19.5, 20.5]
    for speed in table.values("final(events_per_second)"):
        assert 0 < speed < 100
    assert table.values("best(events_per_second)") == table.values("max(events_per_second)")


def test_the_best_is_as_the_name_says_or_as_one_says(sweep):
    table = looptap.compare([sweep / "*-00-*.looptap", *sweep.glob("sweep-01-*")])
    assert len(table) == 2
    other = looptap.compare(sorted(sweep.glob("*")), best={"acc": "min", "loss": "max"})
    row = next(row for row in other if row.name == "sweep-00")
    assert row.figure("best", "acc") == row.figure("min", "acc")
    assert row.figure("best", "loss") == row.figure("max", "loss")
    assert other.values("best(acc, 'max')") == other.values("max(acc)")
    assert other.sort("best(loss)").values("best(loss)") == sorted(other.values("best(loss)"), reverse=True)
    with pytest.raises(QueryError, match="acc=largest must be min or max"):
        looptap.compare([sweep], best={"acc": "largest"})


def test_live_and_stored_runs_are_rows_of_one_table(sweep):
    with looptap.Agent("alive", config={"lr": 0.5}) as agent, training(agent, loss=0.5):
        agent.stream("loss", "step, loss")
        with looptap.attach("alive") as run:
            soon(lambda: run.stream("loss").values)
            for source in (run, next(one for one in looptap.runs() if one.name == "alive")):
                table = looptap.compare([source, looptap.open(next(sweep.glob("*-02-*")))])
                assert [row.name for row in table] == ["alive", "sweep-02"]
                assert [row.state for row in table] == ["live", "ended"]
                assert table.values("final(loss)")[0] == 0.5
                assert table.where("duration >= 0 and lr == 0.5")[0].name == "alive"
    (row,) = looptap.compare([one for one in looptap.runs()] or [sweep / "sweep-00*"])[:1]
    assert row.state == "ended"


class Facts:
    """One run for expressions: settings, and a line `loss`."""

    def __init__(self, **settings):
        self.settings = settings

    def value(self, name):
        return self.settings.get(name, UNKNOWN)

    def figure(self, function, line):
        return {"best": 0.25, "final": 0.5, "min": 0.25, "max": 2.0, "first": 2.0, "count": 7}[function]


KNOWN = ("lr", "name", "a.b", "missing", "flag", "odd name", "none", "nan")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("lr", 0.1), ("lr * 2 + 1", 1.2), ("-lr", -0.1), ("lr < 1 < 2", True), ("lr > 1", False), ("a.b", 3),
        ("config['odd name']", 4), ("name == 'x'", True), ("'x' in name", True), ("name in ('y', 'x')", True),
        ("name not in ['y']", True), ("missing < 3", UNKNOWN), ("missing < 3 or lr < 1", True),
        ("missing < 3 and lr > 1", False), ("missing < 3 and lr < 1", UNKNOWN), ("not missing", UNKNOWN),
        ("not flag", False), ("name < 3", UNKNOWN), ("best(loss)", 0.25), ("best('loss')", 0.25),
        ("best(loss, 'max')", 2.0), ("best(loss, max)", 2.0), ("min(loss)", 0.25), ("min(lr, 5)", 0.1),
        ("max(best(loss), final(loss))", 0.5), ("count(loss) == 7", True), ("log10(lr)", -1.0),
        ("log(lr - lr)", UNKNOWN),
        ("1 if lr < 1 else 2", 1), ("lr / 0", UNKNOWN), ("2 ** 10", 1024.0), ("9 ** 9 ** 9", UNKNOWN),
        ("(-8) ** 0.5", UNKNOWN), ("'a' * 5", UNKNOWN), ("'a' + 'b'", UNKNOWN), ("none is None", True),
        ("abs(-lr)", 0.1), ("missing + 1", UNKNOWN), ("min(missing, 1)", UNKNOWN), ("10.0 ** 400", UNKNOWN),
        ("flag and lr < 1", True),
        ("isnan(nan)", True), ("isfinite(nan)", False), ("isnan(lr)", False), ("isfinite(best(loss))", True),
        ("isnan(missing)", UNKNOWN), ("isnan(name)", UNKNOWN), ("isnan(10 ** 400)", UNKNOWN),
    ],
)  # fmt: skip
def test_an_expression_means_what_it_says(text, value):
    facts = Facts(lr=0.1, name="x", flag=True, none=None, nan=math.nan, **{"a.b": 3, "odd name": 4})
    found = Expression(text, KNOWN, ["loss"]).of(facts)
    assert found is value or found == pytest.approx(value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("__import__('os').system('true')", "not part of"), ("lr.__class__", "no run has 'lr.__class__'"),
        ("().__class__", "only a name"), ("[x for x in (1,)]", "not part of"), ("lambda: 1", "not part of"),
        ("open('x')", "no function 'open'"), ("eval('1')", "no function 'eval'"), ("lr := 1", "not an expression"),
        ("lr <", "not an expression"), ("f'{lr}'", "not part of"), ("best(acc)", "no run has 'acc'"),
        ("los", "no run has 'los'"), ("best(loss, 'up')", "best also 'min' or 'max'"),
        ("final(loss, 1)", "takes the name"),
        ("abs(lr, key=lr)", "not part of"), ("(1).real", "only a name"), ("lr[0]", "not part of"),
        ("~lr", "not part of"),
        ("lr @ lr", "not part of"), ("b'x'", "not part of"), ("1j", "not part of"),
        ("...", "not part of"),
        ("x" * 3000, "up to 2,000 characters"), ("+".join("1" * 600), "up to 500 parts"),
        ("(" * 300, "not an expression"),
        ("-" * 1900 + "1", ""), ("globals()['x']", "not part of"), ("*lr", "not"), ("best(*lr)", "no function"),
        ("await lr", "not"), ("{'a': 1}", "not part of"), ("", "not an expression"), ("lr; lr", "not an expression"),
        ("\x00", "not an expression"),
    ],
)  # fmt: skip
def test_nothing_else_is_accepted(text, says):
    with pytest.raises(QueryError) as refused:
        Expression(text, KNOWN, ["loss"])
    assert says in str(refused.value)


HUGE = [
    "9**9**9", "lr**1000", "(((9**99)**99)**99)", "round(lr, 99)", "'a' * 10**9", "10**10**10 % 7",
    "round(1, -999999999)", "round(missing or 1, -10**12)", "round(a.b, -999999999)", "2 ** -999999999",
    "1e999 // 1e-300", "*".join(["9" * 20] * 60), f"{'9' * 300} * {'9' * 300}", f"{'9' * 1900} == 1",
    f"{'9' * 400} + lr", "lr**9999**9999",
]  # fmt: skip


@pytest.mark.parametrize("text", HUGE, ids=range(len(HUGE)))
def test_a_hostile_expression_of_a_run_is_computed_in_bounded_numbers(text):
    facts = Facts(lr=10.0**300, **{"a.b": 10**300})
    value = Expression(text, KNOWN, ["loss"]).of(facts)
    assert value is UNKNOWN or isinstance(value, bool | float) or value.bit_length() <= MAX_INTEGER_BITS


@pytest.mark.parametrize("value", [2**2000, "x" * 100_000, [0] * 100_000, [[0]], {"a": 1}], ids=range(5))
def test_a_setting_that_is_too_large_for_an_expression_is_unknown(value):
    for text in ("lr", "lr == lr", "lr in (lr, 1)", "not lr"):
        assert Expression(text, KNOWN, []).of(Facts(lr=value)) is UNKNOWN


@pytest.mark.parametrize("text", ["1+" * 120 + "1", "-" * 120 + "1", "abs(" * 120 + "1" + ")" * 120])
def test_an_expression_has_few_levels(text):
    with pytest.raises(QueryError, match="up to 100 levels"):
        Expression(text, KNOWN, [])


# ---------------------------------------------------------------- lines across axes


def lines_of(picture):
    return [mark for mark in picture.marks if isinstance(mark, Line)]


def test_parallel_coordinates_have_an_axis_for_each_column_and_a_line_for_each_run(sweep, tmp_path):
    table = looptap.compare([sweep])
    plot = table.parallel("lr", "optimizer.name", "best(acc)")
    plot.pull()
    (picture,) = plot.pictures()
    lines = lines_of(picture)
    axes, runs = [line for line in lines if line.notes], [line for line in lines if not line.notes]
    assert picture.x.ticks == ((0.0, "lr (log)"), (1.0, "optimizer.name"), (2.0, "best(acc)"))
    assert len(axes) == 3
    assert [text for _, text in axes[0].notes[:2]] == ["0.0001", "1"]
    assert [text for _, text in axes[1].notes[:2]] == ["adam", "sgd"]
    assert len(runs) == COUNT
    for line in runs:
        known = line.y[np.isfinite(line.y)]
        assert known.min() >= 0
        assert known.max() <= 1
    assert sum(math.isnan(line.y[-1]) for line in runs) == 1  # the run without an accuracy
    for suffix in ("png", "html", "txt", "svg"):
        plot.save(tmp_path / f"lines.{suffix}")
        assert (tmp_path / f"lines.{suffix}").stat().st_size > 500
    assert "lr (log)" in (tmp_path / "lines.txt").read_text()
    everything = table.parallel()
    everything.pull()
    assert len([line for line in lines_of(everything.pictures()[0]) if line.notes]) == 6
    with pytest.raises(QueryError, match="need two columns"):
        table.parallel("lr")


def test_any_list_of_dicts_can_be_drawn_so_and_nothing_else():
    rows = [{"run": "a", "x": 1, "y": 5.0}, {"run": "b", "x": 2, "y": None}, {"run": "c", "y": 5.0, "x": float("nan")}]
    plot = looptap.plot(looptap.stream_of([rows], name="rows"), chart="parallel coordinates")
    plot.pull()
    runs = [line for line in lines_of(plot.pictures()[0]) if not line.notes]
    assert {line.name for line in runs} == {"a", "b", "c"}
    plot = looptap.plot(looptap.stream_of([[1, 2, 3]], name="rows"), chart="parallel")
    plot.pull()
    assert "expected a list of dicts" in repr(plot.pictures()[0])


# ---------------------------------------------------------------- the shell


def test_the_shell_compares_sorts_and_filters(sweep, here, tmp_path):
    code, out, _ = here("compare", sweep, "--where", "lr < 0.01 and best(acc) > .9", "--sort", "best(loss)")
    lines = out.splitlines()
    assert (code, len(lines)) == (0, 8)
    assert lines[0].split()[:4] == ["name", "state", "duration", "lr"]
    assert lines[1].startswith("sweep-0")
    code, out, _ = here("compare", "--json", "--sort", "seed", "--columns", "seed,best(acc, 'min'),lr * 2")
    rows = json.loads(out)
    assert (code, len(rows), rows[4]["config"]["seed"]) == (0, COUNT, 4)
    assert set(rows[4]["columns"]) == {"seed", "best(acc, 'min')", "lr * 2"}
    assert here("compare", "--json", "--sort", "seed", "--reverse")[1].startswith('[{"name": "sweep-19"')
    for words in (["--where", "lr <"], ["--where", "open('x')"], ["--sort", "nothing"], ["--best", "acc=up"]):
        code, out, err = here("compare", sweep, *words)
        assert (code, out) == (2, "")
        assert err.startswith("looptap: ")
    picture = tmp_path / "p.txt"
    assert here("compare", sweep, "--columns", "lr,best(acc)", "--parallel", "--save", picture)[0] == 0
    assert "lr (log)" in picture.read_text()


def test_a_name_means_all_runs_of_it_live_and_stored(directory, monkeypatch, tmp_path, here):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LOOPTAP_STORE")

    def job(name, seed):
        agent = looptap.Agent(name, config={"seed": seed})
        agent.emit("batch", loss=float(seed))
        return agent

    for seed in range(3):
        job("twin", seed).close()
    job("twin-peaks", 9).close()
    with job("twin", 3), job("twin", 4):
        for name, seeds in (("twin", [0, 1, 2, 3, 4]), ("twin*", [0, 1, 2, 3, 4, 9]), ("twin-peaks", [9])):
            code, out, _ = here("compare", name, "--sort", "seed", "--columns", "seed,final(loss)", "--json")
            assert (code, [row["columns"]["seed"] for row in json.loads(out)]) == (0, seeds)
    code, _, err = here("compare", "triplet")
    assert code == 1
    assert "No run matches 'triplet'" in err


def test_a_live_run_that_declares_nothing_is_compared_by_the_history_of_its_scalars(directory, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    bare = looptap.Agent("bare", config={"lr": 0.1})
    with bare as agent, training(agent, loss=0.25, acc=0.5, **{"val/f1": 0.75}), looptap.attach("bare") as run:
        soon(lambda: {one.name for one in run.scalars} >= {"loss", "acc", "val/f1"})
        table = looptap.compare([run])
        assert {"loss", "acc", "val/f1"} <= set(table.lines)
        assert table.values("best(loss)") == [0.25]
        assert table.values("final(acc)") == [0.5]
        soon(lambda: not run.stats()["queries"])  # nothing stays behind in the job


# ---------------------------------------------------------------- TensorBoard


@pytest.fixture
def exported(sweep, tmp_path):
    """Return a folder of three runs of TensorBoard, one called like a stored run."""
    for place, name in zip(sorted(sweep.glob("*.looptap")), ("a", "b.looptap", "c/train"), strict=False):
        with looptap.open(place) as run:
            run.stream("loss").to_tensorboard(tmp_path / "logs" / name)
    return tmp_path / "logs"


def test_a_folder_of_tensorboards_runs_is_compared_run_by_run(exported, here):
    table = looptap.compare([exported])
    assert [row.name for row in table] == ["a", "b.looptap", "c"]
    assert table.values("best('loss/loss')")[:2] == pytest.approx([1.0, 0.11])
    assert table.values("best('train/loss/loss')")[2] == pytest.approx(0.03)
    code, out, err = here("compare", exported / "b.looptap")
    assert (code, err) == (0, "")
    assert out.splitlines()[1].startswith("b.looptap")


def test_an_event_file_called_like_a_stored_run_is_read_for_what_it_is(exported, here):
    (events,) = (exported / "a").iterdir()
    assert events.suffix != ".looptap"
    older = events.rename(events.with_name(f"{events.name}.looptap"))  # as looptap named them once
    for source in (exported / "a", older):
        code, out, err = here("compare", source)
        assert (code, err, out.splitlines()[1].split()[0]) == (0, "", "a")
    with looptap.open(older) as run:
        assert len(run.stream("loss/loss").values) == 5


def test_parts_of_a_data_set_are_one_run(exported, tmp_path):
    (exported / "a").rename(exported / "c" / "validation")
    (row,) = looptap.compare([exported / "c"])
    assert {"train/loss/loss", "validation/loss/loss"} <= set(row.lines)


def test_a_file_that_cannot_be_read_is_a_row_with_its_problem(sweep, here):
    (sweep / "torn.looptap").write_bytes(b"not a database")
    code, out, err = here("compare", sweep, "--columns", "seed")
    assert (code, len(out.splitlines())) == (0, COUNT + 2)
    assert "torn" in err
    assert "is not a run that looptap has stored" in err
    assert here("compare", sweep / "torn.looptap")[0] == 1


def test_a_folder_of_stored_runs_is_listed_and_what_is_next_to_it_is_named(sweep, here, tmp_path):
    code, out, _ = here("open", sweep)
    assert (code, len(out.splitlines())) == (0, COUNT)
    with pytest.raises(looptap.StoreError, match=r"looptap-runs has 20, the newest is sweep-.*; looptap compare "):
        looptap.open(tmp_path)
    with pytest.raises(looptap.StoreError, match=r"a stored run is a file\. .*looptap-runs has 20"):
        looptap.open(sweep)
