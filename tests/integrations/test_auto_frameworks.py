"""Frameworks under `looptap run`: epochs, evaluations, optimizers, controls."""

import pytest
import torch
from observing import observed, plain
from steering import done

from looptap.testing import pair

pytestmark = pytest.mark.usefixtures("processes")

FRAMEWORKS = {"ignite": "ignite_engine", "skorch": "skorch_net", "fastai": "fastai_learner"}
EPOCHS, LOSS, STEP, RATE = ("epoch, guess", "epoch"), "loss", "step", "lr(optimizer)"
KERAS = (
    LOSS, ("epoch, loss", "epoch"), ("loss", "evaluation"), "type(optimizer).__name__, lr(optimizer), x.shape[0]",
    "len(layer_norms(model, 'grad'))", "epoch",
)  # fmt: skip
FABRIC = (LOSS, ("epoch, guess", "epoch"), "len(layer_norms(model, 'grad'))", "x.shape")
HELD = ("e['loss/critic.optimizer']", "e['loss/actor.optimizer']", "e['loss/temperature_optimizer']", LOSS, "x")


def numbers(found, word):
    return [[float(one) for one in words] for words in found.printed(word)]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_epochs_are_those_of_the_framework_and_its_numbers_are_the_same(framework):
    pytest.importorskip(framework)
    found = observed(FRAMEWORKS[framework], LOSS, EPOCHS, STEP, RATE)
    assert found.lines == plain(FRAMEWORKS[framework])
    count, steps = found.events["epoch"], found.events["step"]
    assert [row[1] for row in found.values[1]] == [False] * count
    assert [len(values) for values in found.values] == [steps, count, steps, steps], found.said
    assert found.values[2] == [*range(1, steps + 1)]
    assert (framework, found.events) in [
        ("ignite", {"step": 84, "epoch": 12, "evaluation": 16}),
        ("skorch", {"step": 12, "epoch": 3, "evaluation": 3}),
        ("fastai", {"step": 30, "epoch": 3, "evaluation": 4}),
    ]


def test_the_settings_of_an_optimizer_of_fastai_are_controls():
    optimizers = pytest.importorskip("fastai.optimizer")
    parameters = [[torch.ones(2, requires_grad=True)], [torch.ones(3, requires_grad=True)]]
    optimizer = optimizers.Adam(parameters, lr=0.1, wd=0.01)
    agent, run = pair("fastai")
    agent.expose(optimizer=optimizer)
    wanted = {"optimizer.lr": 0.2, "optimizer.lr[1]": 0.3, "optimizer.wd": 0.4, "optimizer.mom": 0.5}
    for name, value in wanted.items():
        assert done(agent, run, run.set, name, value).new == value
    kept = [(hyper["lr"], hyper["wd"], hyper["mom"]) for hyper in optimizer.hypers]
    assert kept == [(0.2, 0.4, 0.5), (0.3, 0.4, 0.5)]
    agent.close()


def test_a_training_of_keras_has_its_own_events_and_a_loop_beside_it_the_usual_ones():
    pytest.importorskip("keras")
    found = observed("keras_training", *KERAS)
    assert found.lines == plain("keras_training")
    losses, epochs, evaluations, optimizers, norms, at_steps = found.values
    epoch_rows, own = numbers(found, "epoch"), [row[0] for row in numbers(found, "step")]
    assert found.events == {"step": 9 + 4 + 3, "epoch": 3 + 1, "evaluation": 3 + 1, "log": 13}
    assert losses[-3:] == pytest.approx(own)
    assert [sum(losses[place : place + 3]) / 3 for place in (0, 3, 6)] == pytest.approx([row[0] for row in epoch_rows])
    assert [row[0] for row in epochs] == [0, 1, 2, 0]
    assert [row[1] for row in epochs[:3]] == pytest.approx([row[0] for row in epoch_rows])
    assert evaluations == pytest.approx([*(row[1] for row in epoch_rows), numbers(found, "evaluation")[0][0]])
    assert optimizers[0][:1] + optimizers[0][2:] == ["Adam", 16]
    assert optimizers[0][1] == pytest.approx(0.01)
    assert norms[:13] == [4] * 13
    assert at_steps[:9] == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_a_loop_with_lightning_fabric_needs_nothing():
    pytest.importorskip("lightning_fabric")
    found = observed("fabric_loop", *FABRIC)
    assert found.lines == plain("fabric_loop")
    losses, epochs, norms, shapes = found.values
    assert losses == pytest.approx([row[0] for row in numbers(found, "step")])
    assert found.events == {"step": 6, "epoch": 3, "evaluation": 3}
    assert epochs == [[0, True], [1, True], [2, True]]
    assert (norms, shapes) == ([4] * 6, [[16, 8]] * 5)


def test_optimizers_that_a_library_holds_are_named_by_what_holds_them():
    found = observed("held_optimizers", *HELD)
    assert found.lines == plain("held_optimizers")
    critic, actor, temperature, every, inputs = found.values
    rows = numbers(found, "step")
    assert every == pytest.approx([loss for row in rows for loss in row])
    for place, losses in enumerate((critic, actor, temperature)):
        assert losses == pytest.approx([row[place] for row in rows][-len(losses) :])
        assert len(losses) >= 7
    assert inputs == []
    assert "its methods may be called in place of it" in found.said[4]
