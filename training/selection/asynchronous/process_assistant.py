"""`ProcessAssistant`: an assistant in a process, with queues in shared memory.

A byte in a pipe says that a slot of a queue is filled: reading it does not wait, and the end of the pipe says that the
other process is gone. So neither can block the other, however it ends.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
from typing import Any

import numpy as np

from looptap.training.sampling.instance_table import InstanceTable
from looptap.training.sampling.permutation_walk import Accepted, Floats, Ints, PermutationWalk
from looptap.training.selection.asynchronous.assistant_loop import (
    IDLE_SECONDS,
    MAX_BATCHES_AHEAD,
    MAX_PENDING_LOSSES,
    AssistantSettings,
    Made,
    assist,
)
from looptap.training.selection.asynchronous.shared_arrays import Shapes, shared_arrays, shared_file
from looptap.training.selection.methods.autoassist import AutoAssist

_PROGRAM = (
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer);"
    "from looptap.training.selection.asynchronous.process_assistant import serve;"
    "serve(pickle.load(sys.stdin.buffer))"
)
_FEATURE_PREFIX = "feature_"
_MAX_ERROR_BYTES = 500
_CLOSE_SECONDS = 5.0


class ProcessAssistant:
    """An assistant in a process, which shares the weights and features of ``method``."""

    def __init__(self, method: AutoAssist, shard: Ints, batch_size: int, seed: Any) -> None:
        parts = {
            _FEATURE_PREFIX + name: one for name, one in method.features.arrays.items() if isinstance(one, np.ndarray)
        }
        others = {name: one for name, one in method.features.arrays.items() if not isinstance(one, np.ndarray)}
        given = {**parts, "shard": shard, "phi": method.phi, "averages": method.averages}
        shapes = {name: (one.dtype.str, one.shape) for name, one in given.items()} | _queues(batch_size)
        memory = shared_file(shapes)
        try:
            self._arrays = shared_arrays(memory, shapes)
            for name, one in given.items():
                self._arrays[name][...] = one
            method.features = type(method.features)(**_features(self._arrays), **others)
            method.phi, method.averages = self._arrays["phi"], self._arrays["averages"]
            self._start(
                memory,
                {
                    "shapes": shapes, "features": type(method.features), "others": others, "seed": seed,
                    "batch_size": batch_size, "parent": os.getpid(), "memory": memory,
                },
            )  # fmt: skip
        finally:
            os.close(memory)
        self._taken = self._given = 0

    def _start(self, memory: int, task: dict[str, Any]) -> None:
        self._batches, batches = os.pipe()
        ours, theirs = socket.socketpair()  # a pipe without a reader ends a job with the default action of SIGPIPE
        losses, self._losses = theirs.detach(), ours
        task |= {"batches": batches, "losses": losses}
        single = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM],
                stdin=subprocess.PIPE,
                pass_fds=(memory, batches, losses),
                env={**os.environ, **single},
            )
            assert self._process.stdin is not None
            with contextlib.suppress(BrokenPipeError), self._process.stdin as given:
                given.write(pickle.dumps(sys.path) + pickle.dumps(task))
        except BaseException:
            os.close(self._batches)
            self._losses.close()
            raise
        finally:
            os.close(batches)
            os.close(losses)
        os.set_blocking(self._batches, False)
        self._losses.setblocking(False)
        self._closed, self._gone = False, False

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    @property
    def ended(self) -> str:
        """The reason why it ended; empty while it works."""
        if not self._gone:
            return ""
        text = bytes(self._arrays["error"]).rstrip(b"\0").decode("utf-8", "replace")
        return text or f"its process {self.pid} is gone"

    @property
    def waiting(self) -> int:
        """The number of batches in the BossQueue."""
        return int(self._arrays["made"][0]) - self._taken

    def take(self) -> Made | None:
        """Take a batch; None if there is none. Does not wait."""
        if not self._heard():
            return None
        arrays, slot = self._arrays, self._taken % MAX_BATCHES_AHEAD
        ids, probability, uniform, prediction = (
            arrays[name][slot].copy() for name in ("ids", "probability", "uniform", "prediction")
        )
        made = Made(Accepted(ids, probability, uniform), prediction, int(arrays["offered"][slot]))
        self._taken += 1
        arrays["taken"][0] = self._taken
        return made

    def put(self, indices: Ints, losses: Floats, rate: float) -> bool:
        """Append to the AssistantQueue; return False if it is full. Does not wait."""
        arrays = self._arrays
        arrays["rate"][0] = rate
        most = arrays["seen_ids"].shape[1]
        for begin in range(0, len(indices), most):
            if self._given - int(arrays["learned"][0]) >= MAX_PENDING_LOSSES:
                return False
            slot, part = self._given % MAX_PENDING_LOSSES, slice(begin, begin + most)
            count = len(indices[part])
            arrays["seen_ids"][slot, :count], arrays["seen_losses"][slot, :count] = indices[part], losses[part]
            arrays["seen_count"][slot] = count
            try:
                self._losses.send(b"1", getattr(socket, "MSG_NOSIGNAL", 0))
            except OSError:  # it is gone, which `take` reports
                return False
            self._given += 1
        return True

    def close(self) -> None:
        """End the process."""
        if self._closed:
            return
        self._closed = self._gone = True
        with contextlib.suppress(OSError):
            self._process.kill()  # it has nothing of its own that could be damaged
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            self._process.wait(_CLOSE_SECONDS)
        os.close(self._batches)
        self._losses.close()

    def _heard(self) -> bool:
        """Return True if a batch was announced; record the end of the process."""
        if self._gone:
            return False
        try:
            said = os.read(self._batches, 1)
        except BlockingIOError:
            return False
        self._gone = not said
        return bool(said)


class ProcessQueues:
    """The assistant's end of the queues."""

    def __init__(self, arrays: dict[str, Any], batches: int, losses: int, parent: int) -> None:
        self._arrays, self._batches, self._losses, self._parent = arrays, batches, losses, parent
        self._made = self._learned = 0
        self.closed = False

    @property
    def wants_batch(self) -> bool:
        """True if the BossQueue is shorter than c."""
        return self._made - int(self._arrays["taken"][0]) < MAX_BATCHES_AHEAD

    def put_batch(self, made: Made) -> None:
        """Append to the BossQueue."""
        arrays, slot = self._arrays, self._made % MAX_BATCHES_AHEAD
        arrays["ids"][slot], arrays["probability"][slot], arrays["uniform"][slot] = made.accepted
        arrays["prediction"][slot], arrays["offered"][slot] = made.prediction, made.offered
        self._made += 1
        arrays["made"][0] = self._made
        os.write(self._batches, b"1")

    def next_losses(self) -> tuple[Ints, Floats] | None:
        """Take from the AssistantQueue; None if there was nothing for a moment."""
        ready, _, _ = select.select([self._losses], [], [], IDLE_SECONDS)
        if not ready:
            self.closed = os.getppid() != self._parent  # a forked worker may hold the pipe open
            return None
        if not os.read(self._losses, 1):
            self.closed = True
            return None
        arrays, slot = self._arrays, self._learned % MAX_PENDING_LOSSES
        count = int(arrays["seen_count"][slot])
        seen = arrays["seen_ids"][slot, :count].copy(), arrays["seen_losses"][slot, :count].copy()
        self._learned += 1
        arrays["learned"][0] = self._learned
        return seen


def serve(task: dict[str, Any]) -> None:
    """Run the assistant: the program of its process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the loop
    arrays = shared_arrays(task["memory"], task["shapes"])
    try:
        features = task["features"](**_features(arrays), **task["others"])
        method = AutoAssist(InstanceTable(0), AssistantSettings(features, arrays["rate"]))
        method.phi, method.averages = arrays["phi"], arrays["averages"]
        queues = ProcessQueues(arrays, task["batches"], task["losses"], task["parent"])
        assist(queues, method, PermutationWalk(arrays["shard"], task["seed"]), task["batch_size"])
    except BrokenPipeError:
        pass  # the loop is gone
    except Exception as error:
        text = f"{type(error).__name__}: {error}".encode()[:_MAX_ERROR_BYTES]
        arrays["error"][: len(text)] = np.frombuffer(text, np.uint8)


def _features(arrays: dict[str, Any]) -> dict[str, Any]:
    return {name.removeprefix(_FEATURE_PREFIX): one for name, one in arrays.items() if name.startswith(_FEATURE_PREFIX)}


def _queues(batch_size: int) -> Shapes:
    """Return the shapes of the two queues, and of the data that both sides share."""
    ahead, pending = (MAX_BATCHES_AHEAD, batch_size), (MAX_PENDING_LOSSES, batch_size)
    return {
        "ids": ("<i8", ahead), "probability": ("<f4", ahead), "uniform": ("|b1", ahead), "prediction": ("<f4", ahead),
        "offered": ("<i8", ahead[:1]), "made": ("<i8", (1,)), "taken": ("<i8", (1,)),
        "seen_ids": ("<i8", pending), "seen_losses": ("<f4", pending), "seen_count": ("<i8", pending[:1]),
        "learned": ("<i8", (1,)), "rate": ("<f4", (1,)), "error": ("|u1", (_MAX_ERROR_BYTES,)),
    }  # fmt: skip
