"""`Run.names`: what an event offers to queries."""

import numpy as np
import torch
from training_loop import training

import looptap
from looptap.testing import pair


def asked(agent, run, on="batch", **observables):
    with training(agent, **observables):
        return run.names(on)


def test_each_name_has_its_class_shape_and_source():
    agent, run = pair("named")
    agent.expose(model=torch.nn.Linear(2, 3))
    found = asked(agent, run, loss=torch.tensor(0.5), x=np.zeros((4, 3), "int16"), note="calm")
    assert {name: str(one) for name, one in found.items()} == {
        "event_number": "int, looptap",
        "event_time": "float, looptap",
        "event_dt": "float, looptap",
        "rank": "int, looptap",
        "model": "Linear, exposed",
        "step": "int, the event",
        "loss": "Tensor scalar float32, the event",
        "x": "ndarray 4×3 int16, the event",
        "note": "str, the event",
    }
    assert found["x"].shape == (4, 3)
    assert found["note"].shape is None


def test_nothing_lazy_is_computed_and_no_code_of_the_job_runs():
    class Array(np.ndarray):
        @property
        def shape(self):
            raise AssertionError("read")

    agent, run = pair("calm")
    agent.expose(error=looptap.lazy(lambda: 1 / 0))
    found = asked(agent, run, y=np.zeros(3).view(Array), z=looptap.lazy(lambda: 1 / 0))
    assert (found["error"].kind, found["z"].kind) == ("lazy", "lazy")
    assert (found["y"].kind, found["y"].shape) == ("Array", None)


def test_its_text_is_a_table_and_its_keys_are_completed():
    agent, run = pair("table")
    found = asked(agent, run, loss=0.5)
    assert "loss          float, the event" in repr(found).splitlines()
    assert "loss" in found._ipython_key_completions_()


def test_a_name_of_the_event_takes_the_place_of_what_is_exposed():
    agent, run = pair("twice")
    agent.expose(loss="exposed")
    assert str(asked(agent, run, loss=0.5)["loss"]) == "float, the event"


def test_the_rows_can_be_asked_for_in_a_query():
    agent, run = pair("rows")
    stream = run.stream("[row[0] for row in observables(e)]")
    agent.emit("batch", loss=0.5)
    assert stream.wait(1)[0][-1] == "loss"


