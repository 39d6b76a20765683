"""`ParameterServer`: makes a step with each gradient that a worker sends."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from looptap.training.noted import Noted
from looptap.training.prioritized.distributed.flat_tensors import FlatTensors, float_buffers, trained_parameters
from looptap.training.prioritized.distributed.server_channel import (
    DEFAULT_TIMEOUT_SECONDS,
    END,
    PUSH,
    RankLost,
    ServerChannel,
    open_channels,
)

_LOOK_SECONDS = 0.5  # between two looks of the main thread, so that Ctrl-C reaches it


class ParameterServer(Noted):
    """Holds the parameters, and makes a step with each gradient that a worker sends.

    Experimental. One rank serves; each of the others has an `AsyncWorker`. They do not wait for each other, except
    that a worker gets no new parameters while it is more than ``staleness`` steps ahead of the slowest: 0 makes them
    march in step. A worker whose process ends is left out from then on; so is one that is silent for ``timeout``
    seconds. ``on_update(server)`` is called after each step, on the thread of that worker.

    Construct it, and the workers, on all ranks at once. Raises ValueError.
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        *,
        staleness: int = 4,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        on_update: Callable[[ParameterServer], None] | None = None,
    ) -> None:
        if staleness < 0:
            raise ValueError(f"staleness={staleness} must be 0 or more steps.")
        self.channels = open_channels(None, timeout)
        self.model, self.optimizer, self.bound = model, optimizer, staleness
        self.updates = 0
        """The steps so far, of all workers."""
        self.staleness = 0
        """The steps of other workers between the read of the parameters and the newest update."""
        self.staleness_counts: Counter[int] = Counter()
        """How many updates had which staleness."""
        self.steps = dict.fromkeys(self.channels, 0)
        """The steps of each worker, by rank."""
        self.lost: dict[int, str] = {}
        """The workers that did not end as they should, and why."""
        self.waits = 0
        """How often a worker waited for slower ones."""
        self._parameters, self._on_update = trained_parameters(model), on_update
        self._flat = FlatTensors(self._parameters)
        self._flat.read(self._parameters)
        self._working = set(self.channels)
        self._changed = threading.Condition()
        self._failed: BaseException | None = None

    @property
    def mean_staleness(self) -> float:
        """The mean staleness of all updates; NaN before the first."""
        counts = dict(self.staleness_counts)
        return sum(stale * count for stale, count in counts.items()) / (sum(counts.values()) or float("nan"))

    def serve(self) -> None:
        """Serve until all workers have ended or are lost.

        Raises RankLost if all are lost, and what the optimizer or ``on_update`` raises.
        """
        threads = [threading.Thread(target=self._attend, args=(one,), daemon=True) for one in self.channels.values()]
        for thread in threads:
            thread.start()
        for thread in threads:  # also after a failure: a process that ends while one waits in gloo is aborted
            while thread.is_alive():
                thread.join(_LOOK_SECONDS)
        if self._failed is not None:
            raise self._failed
        if len(self.lost) == len(self.channels):
            why = "; ".join(f"rank {rank}: {text}" for rank, text in sorted(self.lost.items()))
            raise RankLost(f"All workers are lost after {self.updates} updates. {why}", tuple(sorted(self.lost)))

    def _attend(self, channel: ServerChannel) -> None:
        """Serve one worker until it ends.  # a thread of its own"""
        why = ""
        try:
            self._exchange(channel)
        except RuntimeError as error:  # gloo's, of this pair
            why = f"{error!s:.200}"
        except BaseException as error:
            self._failed = error
        with self._changed:
            self._working.discard(channel.peer)
            if why and self._failed is None:
                self.lost[channel.peer] = why
                self._say(f"Worker {channel.peer} is lost after {self.steps[channel.peer]} steps: {why}")
            self._changed.notify_all()

    def _exchange(self, channel: ServerChannel) -> None:
        import torch

        gradient, sent = FlatTensors(self._parameters), torch.empty_like(self._flat.vector)
        while True:
            command, version = channel.receive_header()
            if command == END:
                buffers = FlatTensors(float_buffers(self.model))
                channel.receive_into(buffers.vector)
                with self._changed:
                    buffers.write(float_buffers(self.model))
                return
            if command == PUSH:
                channel.receive_into(gradient.vector)
                with self._changed:
                    if self._failed is not None:
                        return
                    self._apply(channel.peer, version, gradient)
            with self._changed:
                self._wait_for_slower(channel.peer)
                if self._failed is not None:
                    return
                version = self.updates
                sent.copy_(self._flat.vector)
            channel.send((PUSH, version), sent)

    def _apply(self, worker: int, version: int, gradient: FlatTensors) -> None:
        for parameter, view in zip(self._parameters, gradient.views, strict=True):
            parameter.grad = view.to(parameter.device, parameter.dtype)
        try:
            self.optimizer.step()
            self._flat.read(self._parameters)
            self.staleness = self.updates - version
            self.staleness_counts[self.staleness] += 1
            self.updates += 1
            self.steps[worker] += 1
            if self._on_update is not None:
                self._on_update(self)
        except RuntimeError as error:  # not one of the connection
            raise ServingError(f"The update {self.updates + 1} of worker {worker} failed: {error}") from error
        self._changed.notify_all()

    def _wait_for_slower(self, worker: int) -> None:
        """Wait while the worker is too far ahead; the lock is free meanwhile."""

        def near() -> bool:
            slowest = min((self.steps[one] for one in self._working), default=0)
            return self.steps[worker] - slowest <= self.bound or self._failed is not None

        self.waits += not near()
        self._changed.wait_for(near)


class ServingError(Exception):
    """An update failed in the server itself."""
