"""Masked values of numpy stay missing; arrays of other libraries are read."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from looptap.testing import pair

QUERIES = {
    "x": [0.9, None, 0.9],
    "x * 2": [1.8, None, 1.8],
    "(step, x)": [(0, 0.9), (1, None), (2, 0.9)],
    "mean(e.x for e in events)": [0.9],
    "sum(e.x for e in events)": [1.8],
    "max(e.x for e in events)": [0.9],
    "min(e.x for e in events)": [0.9],
    "len([e.x for e in events])": [3],
    "[e.x for e in events]": [[0.9, None, 0.9]],
    "sorted(e.x for e in events)": [[0.9, 0.9]],
    "group_by(((e.k, e.x) for e in events), mean)": [{1: 0.9}],
    "mean(of_batch)": [2.0, 2.0, 2.0],
    "of_batch.mean()": [2.0, 2.0, 2.0],
    "flags": [[1.0, math.nan]] * 3,
    "counts": [[1.0, math.nan]] * 3,
    "whole": [[1, 2]] * 3,
    "texts": [["a", None]] * 3,
    "sum(histogram(of_batch)[0])": [2, 2, 2],
}


@pytest.mark.parametrize("query", QUERIES)
def test_a_masked_value_is_missing_and_no_number(query):
    agent, run = pair("masked")
    stream = run.stream(query)
    for step, x in enumerate((0.9, np.ma.masked, 0.9)):
        agent.emit(
            "batch", step=step, k=1, x=x,
            of_batch=np.ma.array([1.0, 100.0, 3.0], mask=[False, True, False]),
            counts=np.ma.array([1, 2], mask=[False, True]),
            flags=np.ma.array([True, False], mask=[False, True]),
            whole=np.ma.array([1, 2]),
            texts=np.ma.array(["a", "b"], mask=[False, True]),
        )  # fmt: skip
    agent.close()
    assert not stream.traceback
    assert len(stream.values) == len(QUERIES[query])
    for found, wanted in zip(stream.values, QUERIES[query], strict=True):
        np.testing.assert_equal(found.tolist() if isinstance(found, np.ndarray) else found, wanted)


def test_a_sliding_mean_leaves_a_masked_value_out():
    import looptap

    agent, run = pair("masked")
    stream = run.stream("mean(e.x for e in events)", window=looptap.sliding(2))
    for x in (1.0, np.ma.masked, 3.0, 5.0):
        agent.emit("batch", x=x)
    agent.close()
    assert stream.values[-3:] == [1.0, 3.0, 4.0]


class OfArray:
    """An array as jax, TensorFlow and MLX have them, by numpy's protocol alone."""

    def __init__(self, values):
        self.values = np.asarray(values, np.float32)

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype)


class OfDLPack:
    """An array that only DLPack reads."""

    def __init__(self, values):
        self.values = values

    def __dlpack__(self, **how):
        return self.values.__dlpack__(**how)

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()


class OfFloat:
    """A number of another library."""

    def __float__(self):
        return 2.5


class Index:
    """A whole number of another library."""

    def __index__(self):
        return 7


VALUES = {
    "array": (OfArray([[1.0, 2.0]]), [[1.0, 2.0]]),
    "scalar": (OfArray(1.5), 1.5),
    "exchanged": (OfDLPack(np.array([1, 2])), [1, 2]),
    "tensor": (OfDLPack(torch.tensor([1.5, 2.0])), [1.5, 2.0]),
    "number": (OfFloat(), 2.5),
    "index": (Index(), 7),
    "nested": ({"w": OfArray([3.0, 4.0]), "n": OfFloat()}, {"w": [3.0, 4.0], "n": 2.5}),
}


@pytest.mark.parametrize("name", VALUES)
def test_arrays_and_numbers_of_other_libraries_leave_the_job(name):
    value, wanted = VALUES[name]
    agent, run = pair("foreign")
    plain, kept = run.stream("value"), run.stream("[e.value for e in events]")
    agent.emit("batch", value=value)
    agent.close()
    assert not plain.traceback
    np.testing.assert_equal(plain_of(plain.values), [wanted])
    np.testing.assert_equal(plain_of(kept.values), [[wanted]])


def plain_of(value):
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {name: plain_of(one) for name, one in value.items()}
    return [plain_of(one) for one in value] if isinstance(value, list | tuple) else value


def test_reducers_and_helpers_take_them():
    agent, run = pair("foreign")
    queries = ["mean(e.loss for e in events)", "norm(params)", "max(e.loss for e in events)"]
    streams = [run.stream(query) for query in queries]
    for loss in (1.0, 2.0):
        agent.emit("batch", loss=OfArray(loss), params={"w": OfArray([3.0, 4.0]), "b": OfArray([0.0])})
    agent.close()
    assert [list(stream.values) for stream in streams] == [[1.5], [5.0, 5.0], [2.0]]


def test_a_foreign_array_beyond_the_bound_is_refused_before_it_is_read():
    class Huge(OfArray):
        nbytes = 10**12

        def __array__(self, dtype=None, copy=None):
            raise AssertionError("it was read")

    agent, run = pair("foreign")
    stream = run.stream("value")
    agent.emit("batch", value=Huge(0.0))
    agent.close()
    assert "max_bytes" in stream.traceback


def test_arrays_of_jax_leave_the_job(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    jnp = pytest.importorskip("jax.numpy")
    agent, run = pair("jax")
    queries = ["loss", "loss * 2", "params['w']", "small", "mean(e.loss for e in events)", "norm(params)"]
    streams = [run.stream(query) for query in queries]
    agent.emit(
        "batch", loss=jnp.float32(1.5), params={"w": jnp.ones(4)}, small=jnp.ones(2, dtype=jnp.bfloat16),
    )  # fmt: skip
    agent.close()
    assert [plain_of(stream.values) for stream in streams] == [[1.5], [3.0], [[1.0] * 4], [[1.0, 1.0]], [1.5], [2.0]]
