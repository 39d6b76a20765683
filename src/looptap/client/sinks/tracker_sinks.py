"""Sinks that keep every number: W&B, MLflow, Trackio and TensorBoard, a run each."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from looptap.client.sinks.sink import Origin

_Run = TypeVar("_Run")


class _SinkOfRuns(Generic[_Run]):
    """A sink with a run, or a writer, of its own for each run of looptap."""

    def __init__(self) -> None:
        self._runs: dict[str, _Run] = {}

    def _start(self, origin: Origin) -> _Run:
        raise NotImplementedError

    def _finish(self, run: _Run) -> None:
        raise NotImplementedError

    def _run(self, origin: Origin) -> _Run:
        run = self._runs.get(origin.id)
        if run is None:
            run = self._runs[origin.id] = self._start(origin)
        return run

    def end(self, id: str) -> None:
        """Finish the run."""
        if (run := self._runs.pop(id, None)) is not None:
            self._finish(run)

    def close(self) -> None:
        """Finish all runs."""
        for id in [*self._runs]:
            self.end(id)


class WandbSink(_SinkOfRuns[Any]):
    """Logs to W&B, in the project ``place``; a run of looptap is one of W&B."""

    def __init__(self, place: str = "looptap") -> None:
        import wandb

        super().__init__()
        self._wandb, self._place = wandb, place

    def _start(self, origin: Origin) -> Any:
        run = self._wandb.init(project=self._place, name=origin.id, reinit="create_new", config=origin._asdict())
        run.define_metric("*", step_metric="step")
        return run

    def _finish(self, run: Any) -> None:
        run.finish()

    def put(self, origin: Origin, step: int, numbers: Mapping[str, float]) -> None:
        """Log the numbers, with ``step`` beside them: W&B's own counts the calls."""
        self._run(origin).log({**numbers, "step": step})


class MlflowSink(_SinkOfRuns[str]):
    """Logs to MLflow's tracking server, in the experiment ``place``."""

    def __init__(self, place: str = "looptap") -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Metric

        super().__init__()
        self._client, self._metric = MlflowClient(), Metric
        found = self._client.get_experiment_by_name(place)
        self._experiment = self._client.create_experiment(place) if found is None else found.experiment_id

    def _start(self, origin: Origin) -> str:
        tags = {f"looptap.{name}": str(value) for name, value in origin._asdict().items()}
        run = self._client.create_run(self._experiment, run_name=origin.id, tags=tags)
        return str(run.info.run_id)

    def _finish(self, run: str) -> None:
        self._client.set_terminated(run)

    def put(self, origin: Origin, step: int, numbers: Mapping[str, float]) -> None:
        """Log the numbers."""
        now = int(time.time() * 1000)
        metrics = [self._metric(tag, number, now, step) for tag, number in numbers.items()]
        self._client.log_batch(self._run(origin), metrics=metrics)


class TrackioSink(_SinkOfRuns[Any]):
    """Logs to Trackio, in the project ``place``."""

    def __init__(self, place: str = "looptap") -> None:
        import trackio

        super().__init__()
        self._trackio, self._place = trackio, place

    def _start(self, origin: Origin) -> Any:
        return self._trackio.init(project=self._place, name=origin.id, embed=False, config=origin._asdict())

    def _finish(self, run: Any) -> None:
        run.finish()

    def put(self, origin: Origin, step: int, numbers: Mapping[str, float]) -> None:
        """Log the numbers."""
        self._run(origin).log(dict(numbers), step=step)


class TensorboardSink(_SinkOfRuns[Any]):
    """Writes event files for TensorBoard into ``place``, a folder for each run.

    ``place`` may be a `SummaryWriter` of the user's in its stead, which is not closed.
    """

    def __init__(self, place: Any = "looptap-live") -> None:
        super().__init__()
        self._given = place if hasattr(place, "add_scalar") else None
        self._place = place
        if self._given is None:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.event_file_writer import EventFileWriter

            self._writer, self._event, self._summary = EventFileWriter, event_pb2.Event, summary_pb2.Summary

    def _start(self, origin: Origin) -> Any:
        return self._writer(os.path.join(self._place, origin.id))

    def _finish(self, run: Any) -> None:
        run.close()

    def put(self, origin: Origin, step: int, numbers: Mapping[str, float]) -> None:
        """Write the numbers."""
        if self._given is not None:
            for tag, number in numbers.items():
                self._given.add_scalar(tag, number, step)
            return
        values = [self._summary.Value(tag=tag, simple_value=number) for tag, number in numbers.items()]
        event = self._event(wall_time=time.time(), step=step, summary=self._summary(value=values))
        self._run(origin).add_event(event)

    def end(self, id: str) -> None:
        """Close the file of a run."""
        if self._given is not None:
            self._given.flush()
        super().end(id)
