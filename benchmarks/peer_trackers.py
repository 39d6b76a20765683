"""One way to record a scalar a step, in a process of its own.

For bench_trackers.py. Prints one JSON line: CPU seconds a step of the calling thread, and of the process with its
children, without its start.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

STEPS = 1000
STEP_SECONDS = 0.0005
"""Between two calls, so that a thread beside the loop has its turn, as in a training job."""

Tracker = tuple[Callable[[int, float], object], Callable[[], object], Callable[[], int], str]
"""To record a step, to end, to count what was recorded, and the package."""


def tensorboard(folder: Path) -> Tracker:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(folder))

    def record(step: int, loss: float) -> None:  # what torch.utils.tensorboard's add_scalar does
        summary = Summary(value=[Summary.Value(tag="loss", simple_value=loss)])
        writer.add_event(Event(summary=summary, step=step, wall_time=time.time()))

    def count() -> int:
        found = EventAccumulator(str(folder), size_guidance={"scalars": 0})
        found.Reload()
        return len(found.Scalars("loss"))

    return record, writer.close, count, "tensorboard"


def wandb(folder: Path) -> Tracker:
    os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": str(folder), "WANDB_CONSOLE": "off"}
    import wandb

    run = wandb.init(project="bench", dir=str(folder))

    def count() -> int:
        from wandb.proto.wandb_internal_pb2 import Record

        found = 0
        for data in leveldb_records(next(folder.rglob("*.wandb")).read_bytes()):
            record = Record()
            record.ParseFromString(data)
            found += record.WhichOneof("record_type") == "history"
        return found

    def end() -> None:
        run.finish()
        wandb.teardown()  # its service is a process, whose time counts once it has ended

    return lambda step, loss: run.log({"loss": loss}, step=step), end, count, "wandb"


def mlflow(folder: Path) -> Tracker:
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    import mlflow

    mlflow.set_tracking_uri(folder.as_uri())
    mlflow.set_experiment("bench")
    run = mlflow.start_run()

    def count() -> int:
        return len(mlflow.MlflowClient().get_metric_history(run.info.run_id, "loss"))

    return lambda step, loss: mlflow.log_metric("loss", loss, step=step), mlflow.end_run, count, "mlflow-skinny"


def trackio(folder: Path) -> Tracker:
    os.environ |= {"TRACKIO_DIR": str(folder), "HF_HOME": str(folder), "GRADIO_ANALYTICS_ENABLED": "0"}
    import trackio
    from trackio.sqlite_storage import SQLiteStorage

    trackio.init(project="bench", name="run")
    return (
        lambda step, loss: trackio.log({"loss": loss}, step=step),
        trackio.finish,
        lambda: len(SQLiteStorage.get_logs("bench", "run")),
        "trackio",
    )


def aim(folder: Path) -> Tracker:
    from aim import Run

    run, found = Run(repo=str(folder), system_tracking_interval=None, capture_terminal_logs=False), []

    def end() -> None:
        found.append(sum(len(metric.values.sparse_numpy()[0]) for metric in run.metrics()))  # a closed one has none
        run.close()

    return lambda step, loss: run.track(loss, name="loss", step=step), end, lambda: found[0], "aim"


def printed(folder: Path) -> Tracker:
    output = open(folder / "output", "w", buffering=1)  # noqa: SIM115 - closed by the second function

    def count() -> int:
        return len((folder / "output").read_text().splitlines())

    return lambda step, loss: print(f"step {step} loss {loss}", file=output), output.close, count, ""


def json_lines(folder: Path) -> Tracker:
    output = open(folder / "output", "w", buffering=1)  # noqa: SIM115 - closed by the second function

    def count() -> int:
        return len([json.loads(line) for line in (folder / "output").read_text().splitlines()])

    return lambda step, loss: output.write(json.dumps({"step": step, "loss": loss}) + "\n"), output.close, count, ""


def looptap(folder: Path) -> Tracker:
    os.environ["LOOPTAP_DIR"] = str(folder)
    folder.chmod(0o700)
    import looptap

    path = folder / "kept.looptap"
    agent = looptap.Agent("bench", store=path)
    agent.stream("loss", "step, loss", keep=True)

    def count() -> int:
        with looptap.open(path) as stored:
            return len(stored.stream("loss").values)

    return lambda step, loss: agent.emit("batch", step=step, loss=loss), agent.close, count, "looptap"


WAYS = {one.__name__: one for one in (tensorboard, wandb, mlflow, trackio, aim, printed, json_lines, looptap)}


def leveldb_records(data: bytes) -> list[bytes]:
    """Return the records of a file in LevelDB's log format, after 7 bytes."""
    found, place, part = [], 7, b""
    while place + 7 <= len(data):
        if (left := 32_768 - place % 32_768) < 7:
            place += left
            continue
        size, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        part += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or its last part
            found.append(part)
            part = b""
    return found


def process_seconds() -> float:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def main(name: str, folder: Path) -> None:
    record, end, count, package = WAYS[name](folder)
    thread, process = 0.0, process_seconds()
    for step in range(STEPS):
        time.sleep(STEP_SECONDS)
        before = time.thread_time()
        record(step, 1.0 / (step + 1))
        thread += time.thread_time() - before
    end()
    process = process_seconds() - process
    found = count()
    assert found == STEPS, f"{name} has recorded {found} of {STEPS} values"
    version = metadata.version(package) if package else ""
    print("\n" + json.dumps({"thread": thread / STEPS, "process": process / STEPS, "version": version}), flush=True)
    os._exit(0)  # some have threads that outlive their end


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
