"""Frameworks that announce their epochs and evaluations themselves."""

import pytest
from observing import observed, plain

pytestmark = pytest.mark.usefixtures("processes")

FRAMEWORKS = {"ignite": "ignite_engine", "skorch": "skorch_net", "fastai": "fastai_learner"}
EPOCHS, LOSS = ("epoch, guess", "epoch"), "loss"


def seen(framework):
    pytest.importorskip(framework)
    return observed(FRAMEWORKS[framework], LOSS, EPOCHS)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_epochs_are_those_of_the_framework_and_its_numbers_are_the_same(framework):
    found = seen(framework)
    assert found.lines == plain(FRAMEWORKS[framework])
    count = found.events["epoch"]
    assert [row[1] for row in found.values[1]] == [False] * count
    assert (framework, found.events) in [
        ("ignite", {"step": 84, "epoch": 12, "evaluation": 16}),
        ("skorch", {"step": 12, "epoch": 3, "evaluation": 3}),
        ("fastai", {"step": 30, "epoch": 3, "evaluation": 3}),
    ]
