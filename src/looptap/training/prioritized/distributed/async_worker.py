"""`AsyncWorker`: sends gradients to a parameter server (experimental)."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from looptap.training.prioritized.distributed.flat_tensors import FlatTensors, float_buffers, trained_parameters
from looptap.training.prioritized.distributed.server_channel import (
    DEFAULT_TIMEOUT_SECONDS,
    END,
    PUSH,
    START,
    RankLost,
    open_channels,
)


class AsyncWorker:
    """Trains ``model`` with the parameters of a server, which makes the steps.

    Experimental. After the backward pass call `step` instead of an optimizer's: it sends the gradients, and writes the
    server's parameters into the model. Use it in a ``with`` block, so that the server learns of the end. BatchNorm's
    averages stay with each worker; the server gets those of the worker that ends last.

    Construct it, and the `ParameterServer` on the rank ``server``, on all ranks at once. Raises ValueError, and
    `RankLost` if the server is gone or silent for ``timeout`` seconds.
    """

    def __init__(
        self,
        model: Any,
        *,
        server: int = 0,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._channel = open_channels(server, timeout)[server]
        self.model, self.server, self._clock = model, server, clock
        self.steps = 0
        """The gradients that were sent."""
        self.version = 0
        """The server's updates in the parameters that are in the model."""
        self.behind = 0
        """The updates that the server made since the exchange before the newest, this worker's own included."""
        self.seconds = 0.0
        """Seconds in exchanges, waits for slower workers included."""
        self._parameters = trained_parameters(model)
        self._gradients, self._flat = FlatTensors(self._parameters), FlatTensors(self._parameters)
        self._descent = FlatTensors(self._parameters)
        self._exchange(START, self._flat.vector[:0])
        self._descent.vector.zero_()

    @property
    def descent(self) -> list[Any]:
        """What the updates of all workers took from each trained parameter.

        Between the last two exchanges. With plain SGD it is the learning rate times the sum of their gradients: the
        aggregated gradient of prioritized gradient descent, without more traffic.
        """
        return self._descent.views

    def step(self) -> None:
        """Send the gradients, and take the server's parameters. Raises RankLost."""
        self._exchange(PUSH, self._gradients.read([one.grad for one in self._parameters]))
        self.steps += 1

    def close(self) -> None:
        """Say that this worker has ended. Does not raise if the server has gone."""
        buffers = float_buffers(self.model)
        try:
            self._channel.send((END, self.version), FlatTensors(buffers).read(buffers))
        except RuntimeError:  # nothing is left to be said
            return

    def __enter__(self) -> AsyncWorker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()

    def _exchange(self, command: int, vector: Any) -> None:
        begun = self._clock()
        self._descent.vector.copy_(self._flat.vector)
        try:
            self._channel.send((command, self.version), vector)
            _, version = self._channel.receive_header()
            self._channel.receive_into(self._flat.vector)
        except RuntimeError as error:
            raise RankLost(
                f"The parameter server, rank {self.server}, is gone or silent after {self.steps} steps of this worker; "
                f"the model has the parameters of its update {self.version}. ({error!s:.200})",
                (self.server,),
            ) from error
        self._descent.vector.sub_(self._flat.vector)
        self._flat.write(self._parameters)
        self.behind, self.version = version - self.version, version
        self.seconds += self._clock() - begun
