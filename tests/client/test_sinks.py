"""Live numbers of runs in the engines of others: the real packages."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.request

import pytest

import looptap
from looptap.client.sinks.metric_sinks import OpenTelemetrySink, PrometheusSink
from looptap.client.sinks.opening import open_sink
from looptap.client.sinks.sink import Origin, step_and_numbers
from looptap.client.sinks.tracker_sinks import TensorboardSink
from looptap.store.exchange.tensorboard_events import read_points
from looptap.testing import pair

HERE = Origin("digits", "digits-1", "node7", 0, "step, loss")


def fetched(port):
    """Return what Prometheus would fetch, a line for each series."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as reply:
        return [line for line in reply.read().decode().splitlines() if not line.startswith("#")]


def test_the_numbers_and_the_step_of_a_value():
    agent, run = pair("rows")
    values = run.stream("step, loss, note, parts", on="batch")
    agent.emit("batch", step=7, loss=0.5, note="a", parts=[1, 2])
    assert step_and_numbers(values.latest, "rows", 0) == (7, {"loss": 0.5})
    assert step_and_numbers((1.0, 2.0), "pair", 3) == (3, {"pair[0]": 1.0, "pair[1]": 2.0})
    assert step_and_numbers(4, "step", 9) == (9, {"step": 4.0})
    assert step_and_numbers("text", "note", 1) == (1, {})
    assert step_and_numbers({"epoch": float("nan"), "acc": True}, "x", 2) == (2, {"acc": 1.0})


def test_prometheus_fetches_the_newest_values_of_living_runs():
    sink = PrometheusSink("0")
    try:
        for step, loss in enumerate((1.0, 0.5)):
            sink.put(HERE, step, {"loss": loss, "acc\n": 0.25})
        sink.put(HERE._replace(id="digits-2", rank=1), 9, {"loss": 7.0})
        lines = fetched(sink.port)
        labels = 'field="loss",host="node7",id="digits-1",rank="0",run="digits",stream="step, loss"'
        assert f"looptap_value{{{labels}}} 0.5" in lines
        assert any(line.startswith("looptap_step") and line.endswith(" 9.0") for line in lines)
        sink.end("digits-1")
        assert not [line for line in fetched(sink.port) if "digits-1" in line]
        assert [line for line in fetched(sink.port) if "digits-2" in line]
    finally:
        sink.close()


def test_series_are_bounded(monkeypatch):
    monkeypatch.setattr("looptap.client.sinks.metric_sinks.MAX_SERIES_COUNT", 10)
    sink = PrometheusSink("0")
    try:
        sink.put(HERE, 0, {f"tag{number}": 1.0 for number in range(30)})
        assert sink.left_out == 20
        assert len([line for line in fetched(sink.port) if line.startswith("looptap_value{")]) == 10
    finally:
        sink.close()


def test_opentelemetry_gets_numbers_with_their_attributes():
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    sink = OpenTelemetrySink(provider=MeterProvider([reader]))
    sink.put(HERE, 3, {"loss": 0.5})
    sink.put(HERE, 4, {"loss": 0.25})
    metrics = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
    (value,) = next(one for one in metrics if one.name == "looptap.value").data.data_points
    named = value.attributes
    assert (value.value, named["looptap.field"], named["looptap.id"]) == (0.25, "loss", "digits-1")
    sink.close()


def test_tensorboard_gets_a_folder_for_each_run(tmp_path):
    sink = TensorboardSink(str(tmp_path))
    for step, loss in enumerate((1.0, 0.5)):
        sink.put(HERE, step, {"loss": loss})
    sink.put(HERE._replace(id="digits-2"), 0, {"loss": 3.0})
    sink.close()
    (file,) = (tmp_path / "digits-1").iterdir()
    with file.open("rb") as opened:
        points = [(one.tag, one.step, one.value) for one in read_points(opened)]
    assert points == [("loss", 0, 1.0), ("loss", 1, 0.5)]
    assert (tmp_path / "digits-2").is_dir()


@pytest.mark.usefixtures("processes")
def test_mlflow_gets_a_run_for_each_run(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    sink = open_sink("mlflow", "fleet")
    for step, loss in enumerate((1.0, 0.5)):
        sink.put(HERE, step, {"loss": loss})
    sink.close()
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("fleet").experiment_id])
    history = client.get_metric_history(run.info.run_id, "loss")
    assert [(one.step, one.value) for one in history] == [(0, 1.0), (1, 0.5)]
    assert (run.info.run_name, run.info.status) == ("digits-1", "FINISHED")


@pytest.mark.usefixtures("processes")
def test_wandb_gets_a_run_for_each_run(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    for name, value in (("WANDB_MODE", "offline"), ("WANDB_DIR", str(tmp_path)), ("WANDB_SILENT", "true")):
        monkeypatch.setenv(name, value)
    wandb.teardown()  # it keeps the settings of its first use in a process
    sink = open_sink("wandb", "fleet")
    sink.put(HERE, 5, {"loss": 1.0})
    sink.put(HERE._replace(id="digits-2"), 5, {"loss": 2.0})
    sink.close()
    assert len([*tmp_path.glob("wandb/offline-run-*")]) == 2


def test_trackio_gets_a_run_for_each_run(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    pytest.importorskip("trackio")
    from trackio.sqlite_storage import SQLiteStorage

    sink = open_sink("trackio", "fleet")
    for step, loss in ((5, 1.0), (8, 0.5)):
        sink.put(HERE, step, {"loss": loss})
    sink.put(HERE._replace(id="digits-2"), 1, {"loss": 2.0})
    sink.close()
    assert [(one["step"], one["loss"]) for one in SQLiteStorage.get_logs("fleet", "digits-1")] == [(5, 1.0), (8, 0.5)]
    assert [(one["step"], one["loss"]) for one in SQLiteStorage.get_logs("fleet", "digits-2")] == [(1, 2.0)]


def test_an_unknown_sink_and_a_missing_package_are_sentences(monkeypatch):
    with pytest.raises(ValueError, match=r"'grafana' is no sink; there are prometheus, otel"):
        open_sink("grafana")
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ValueError, match="pip install prometheus-client"):
        open_sink("prometheus", "0")


@pytest.mark.usefixtures("processes")
@pytest.mark.promise("sinks")
def test_a_fleet_is_exported_from_the_command_line(tmp_path, monkeypatch):
    monkeypatch.setenv("LOOPTAP_DIR", str(tmp_path))
    command = [sys.executable, "-m", "looptap.cli", "export", "--live", "fleet-*", "step, loss", "--to", "tensorboard"]
    one = looptap.Agent("fleet-a")
    with subprocess.Popen([*command, "-o", str(tmp_path / "logs")], stderr=subprocess.PIPE, text=True) as exporting:
        try:
            assert re.match(r"looptap: fleet-a-\S+: step, loss is sent to tens", exporting.stderr.readline())
            other = looptap.Agent("fleet-b")
            assert re.match(r"looptap: fleet-b-\S+: step, loss is sent to tens", exporting.stderr.readline())
            for agent in (one, other):
                for step in range(5):
                    agent.emit("batch", step=step, loss=step / 2)
                agent.close()
            assert ["ended" in exporting.stderr.readline() for _ in "ab"] == [True, True]
        finally:
            one.close()
            exporting.send_signal(signal.SIGINT)
            rest = exporting.stderr.read()
    assert exporting.wait(300) == 0
    assert "10 values sent to tensorboard" in rest
    files = sorted((tmp_path / "logs").glob("fleet-*/*"))
    assert len(files) == 2
    for file in files:
        with file.open("rb") as opened:
            assert [(one.step, one.value) for one in read_points(opened)] == [(step, step / 2) for step in range(5)]
