"""`ReducedGradients`: the mean gradients of a step, from the buckets of DDP."""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from looptap.training.noted import Noted

Hook = Callable[[Any, Any], Any]
"""A communication hook: takes a state and a bucket, returns a future of the bucket's mean."""

_MAX_TIMED_BUCKETS = 1024  # of a CUDA device, whose times are not known yet


_MAX_EXIT_SECONDS = 2.0
_LOOK_SECONDS = 0.001
_callbacks: weakref.WeakSet[Callable[[Any], Any]] = weakref.WeakSet()
"""Those that the backend's threads hold still."""


@atexit.register
def wait_for_callbacks() -> None:
    """Wait until the backend's threads have let go of Python, at the exit.

    A thread that takes the GIL while the interpreter ends would abort the process.
    """
    deadline = time.monotonic() + _MAX_EXIT_SECONDS
    while len(_callbacks) and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)


class ReducedGradients(Noted):
    """Takes the mean gradients over the ranks from the buckets of DDP.

    Without traffic of its own or a copy. ``model`` is a DistributedDataParallel without a communication hook. One is
    registered that reduces as DDP does by itself, to the bit. Give a hook of your own, such as ``fp16_compress_hook``,
    as ``hook`` with its ``state``: it is called as it is, and its results are taken. Between the backward pass and the
    next one, `taken` returns the gradients. An accumulated step (`no_sync`) counts once, with its sum. Under a
    `GradScaler` they are scaled, as everything is before ``unscale_``.

    Construct it on all ranks, before the first backward pass. Raises TypeError for another model, and ValueError for
    one that has a hook. A model under ``fully_shard`` (FSDP2) needs none of this: each rank finds its shard of the mean
    gradients in ``parameter.grad`` after the backward pass, as DTensors.
    """

    def __init__(
        self, model: Any, hook: Hook | None = None, state: Any = None, *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        import torch

        if not isinstance(model, torch.nn.parallel.DistributedDataParallel):
            raise TypeError(
                f"model is a torch.nn.parallel.DistributedDataParallel, not {type(model).__name__}: on one process, "
                "and under fully_shard, the gradients are in parameter.grad."
            )
        self.parameters = list(model.module.parameters())
        """Those of the wrapped model, in its order, which is that of `taken`."""
        self.reductions = 0
        """The backward passes whose gradients were reduced."""
        self.reduced_bytes = 0
        """The bytes of the buckets so far: what DDP reduces without this object, too."""
        self._seconds = self._waited = 0.0
        self._place = {id(one): place for place, one in enumerate(self.parameters)}
        self._gradients: dict[int, Any] = {}
        self._given, self._state, self._clock = hook, state, clock
        self._lock = threading.Lock()  # the backend's threads complete buckets
        self._open, self._began, self._last_began = 0, 0.0, 0.0
        # Of the newest pass. Were a thread of the backend the last to let go of one, it would take the GIL for that,
        # which aborts a process that is ending.
        self._buffers: list[Any] = []
        self._events = deque[tuple[Any, Any, bool]](maxlen=_MAX_TIMED_BUCKETS)
        self._group, self._world = model.process_group, model.process_group.size()
        self._memory: dict[int, int] | None = None  # of each parameter's gradient before the new one was added
        if model.gradient_as_bucket_view and self._world & (self._world - 1):
            self._memory = {}
            for one in self.parameters:
                if one.requires_grad:
                    one.register_hook(lambda _, one=one: self._note_memory(one))
        try:
            # A lambda: DDP compares the annotation of a parameter named `bucket` with a class, and here it is a text.
            model.register_comm_hook(None, lambda state, bucket: self._reduce(bucket))
        except RuntimeError as error:
            raise ValueError(
                "model has a communication hook (mixed_precision= makes one): of each model there can be one. Give "
                f"yours as hook= and state= instead of registering it. ({error!s:.120})"
            ) from error

    @property
    def seconds(self) -> float:
        """The seconds in which buckets were reduced, waits for slower ranks included."""
        self._settle()
        return self._seconds

    @property
    def exposed_seconds(self) -> float:
        """The part of `seconds` after the last gradient was computed: what a step waited."""
        self._settle()
        return self._waited

    def taken(self) -> Sequence[Any] | None:
        """Return the mean gradients of the newest backward pass.

        None if there was none since the last call. One for each of `parameters`, None for those that DDP does not
        reduce. They are DDP's own buckets: read them before the next backward pass, and do not change them.
        """
        with self._lock:
            if not self._gradients or self._open:  # nothing new, or a pass that failed half-way
                return None
            found, self._gradients = self._gradients, {}
        return [found.get(place) for place in range(len(self.parameters))]

    def _note_memory(self, parameter: Any) -> None:
        """Note where a gradient lies, before another is added to it.  # autograd thread"""
        if self._memory is not None:
            self._memory[id(parameter)] = 0 if parameter.grad is None else _memory(parameter.grad)

    def _reduce(self, bucket: Any) -> Any:
        """Reduce a bucket; return the future of its mean."""
        buffer, finished = bucket.buffer(), self._launched(bucket)
        if self._given is not None:
            return self._given(self._state, bucket).then(finished)
        import torch

        self._divide(bucket, buffer)
        return torch.distributed.all_reduce(buffer, group=self._group, async_op=True).get_future().then(finished)

    def _divide(self, bucket: Any, buffer: Any) -> None:
        """Divide by the number of ranks as DDP does.

        It multiplies gradients that are new and divides those in a bucket. The two differ in the last bit unless the
        number of ranks is a power of two.
        """
        if buffer.is_sparse:
            buffer.div_(self._world)
        elif self._memory is None:
            buffer.mul_(1.0 / self._world)
        else:
            for parameter, view in zip(bucket.parameters(), bucket.gradients(), strict=True):
                if self._memory.pop(id(parameter), 0) == _memory(buffer):
                    view.div_(self._world)
                else:
                    view.mul_(1.0 / self._world)

    def _launched(self, bucket: Any) -> Callable[[Any], Any]:
        """Note that a bucket is ready; return what is called when it is reduced."""
        buffer, parameters, last = bucket.buffer(), bucket.parameters(), bucket.is_last()
        offsets = [0] if buffer.is_sparse else [one.storage_offset() for one in bucket.gradients()]
        start = _recorded_event() if buffer.is_cuda else None
        first, now = buffer.storage_offset(), self._clock()
        with self._lock:
            if bucket.index() == 0:  # a new backward pass; after a failed one buckets may have stayed open
                self._gradients, self._open, self._buffers = {}, 0, []
            self._buffers.append(buffer)
            self._began = self._began if self._open else now
            self._last_began = now if last else 0.0
            self._open += 1
            self.reductions += last
            self.reduced_bytes += 0 if buffer.is_sparse else buffer.nbytes

        def finished(future: Any) -> Any:
            value = future.value()
            mean = value[0] if isinstance(value, list | tuple) else value
            end, ended = _recorded_event() if start is not None else None, self._clock()
            try:
                views = [_view(mean, one, offset - first) for one, offset in zip(parameters, offsets, strict=True)]
            except Exception as error:  # the loop must not end for want of an average
                self._say(f"The mean gradients of a bucket are not known: {error!r:.200}")
                views = []
            with self._lock:
                for one, view in zip(parameters, views, strict=False):
                    if (place := self._place.get(id(one))) is not None:
                        self._gradients[place] = view
                self._open = max(0, self._open - 1)
                if end is not None:
                    self._events.append((start, end, last))
                elif not self._open:
                    self._seconds += ended - self._began
                    self._waited += ended - self._last_began if self._last_began else 0.0
            return mean

        _callbacks.add(finished)
        return finished

    def _settle(self) -> None:
        """Add the times of buckets that a CUDA device has finished by now."""
        while self._events and self._events[0][1].query():
            start, end, last = self._events.popleft()
            elapsed = start.elapsed_time(end) / 1000.0
            self._seconds += elapsed
            self._waited += elapsed if last else 0.0


def _memory(tensor: Any) -> int:
    """Return where the memory of a tensor begins, that of all its views."""
    return int(tensor.untyped_storage().data_ptr())


def _recorded_event() -> Any:
    """Return a CUDA event that is recorded on the current stream."""
    import torch

    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _view(mean: Any, parameter: Any, offset: int) -> Any:
    """Return the gradient of a parameter in a bucket, laid out as the parameter is."""
    if mean.is_sparse:
        return mean
    if _is_dense(parameter):
        return mean.as_strided(parameter.size(), parameter.stride(), mean.storage_offset() + offset)
    return mean[offset : offset + parameter.numel()].view(parameter.size())


def _is_dense(tensor: Any) -> bool:
    """Return True if the elements fill their memory, in whatever order."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.size(), strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
