"""Scripts of which nothing is asked for a while: their updates are only counted."""

import weakref

import pytest
import torch
from observing import observed, plain

from looptap.integrations.auto.hooks.updates import ThreadUpdate

pytestmark = pytest.mark.usefixtures("processes")

SCRIPTS = (
    "accumulated", "breaking_off", "critic", "dropped", "dropped_by_hand", "epoch_ends", "epochs", "far_losses",
    "fetched_ahead", "freed", "gan", "held_optimizers", "in_backward", "inner_loops", "kept_model", "kept_validation",
    "late_mode", "lbfgs", "manual_sgd", "mixed_updates", "own_beside", "own_eval", "renewed_iterator",
    "resumed_ahead", "scaled", "scaled_pair", "several_in_one", "surgery", "three_losses", "two_losses", "two_parts",
    "two_trainings",
)  # fmt: skip
"""Of all kinds of loops: several backward passes or optimizers in an update, own updates, scalers, evaluations."""
NEVER = 10**9
NUMBERS = "loss", "step", "rate"
QUERIES = "loss", "len(losses)", ("step", "epoch"), ("step", "evaluation")


@pytest.mark.parametrize("script", SCRIPTS)
def test_what_is_only_counted_makes_the_same_events(script):
    asked, unasked = observed(script, *QUERIES), observed(script, after=NEVER)
    assert unasked.events == asked.events
    assert unasked.lines == plain(script)


@pytest.mark.parametrize("after", [1, 4])
@pytest.mark.parametrize("script", SCRIPTS)
def test_the_first_whole_update_after_a_question_has_the_right_values(script, after):
    asked, late = observed(script, *QUERIES), observed(script, *QUERIES, after=after)
    assert late.events == asked.events
    assert late.lines == plain(script)
    assert late.values or asked.events["step"] < after or script == "manual_sgd"  # which has no optimizer of torch
    for known, values, numbers, all_numbers in zip(
        asked.values, late.values, late.numbers, asked.numbers, strict=bool(late.values)
    ):
        right, found = dict(zip(all_numbers, known, strict=True)), dict(zip(numbers, values, strict=True))
        first = min(found, default=NEVER)
        assert {number: value for number, value in right.items() if number >= first}.items() <= found.items()
        assert first <= min([number for number in right if number > after + 4], default=NEVER)


@pytest.mark.parametrize("script", [*SCRIPTS, "changing_ways"])
def test_numbers_alone_are_those_that_a_question_at_each_event_has(script):
    asked, kept = observed(script, *NUMBERS, "len(losses)"), observed(script, *NUMBERS)
    assert kept.events == asked.events
    assert kept.lines == plain(script)
    assert kept.values == asked.values[: len(NUMBERS)]
    assert kept.numbers == asked.numbers[: len(NUMBERS)]
    assert kept.failures == asked.failures[: len(NUMBERS)]


def test_most_updates_of_which_only_numbers_are_asked_are_not_searched():
    asked, kept = observed("changing_ways", *NUMBERS, "len(losses)"), observed("changing_ways", *NUMBERS)
    assert asked.searched >= 1300
    assert kept.searched < 1100  # it goes the usual way at 500 steps


@pytest.mark.promise("S15", "auto")
def test_updates_rest_while_the_purse_is_empty_and_all_that_is_withheld_is_counted():
    queries = "step", "rate", "layer_norms(model, 'grad')", "x.mean().item()", "len(losses)", "loss"
    asked, found = observed("changing_ways", *queries), observed("changing_ways", *queries, budget="0.001")
    assert found.lines == plain("changing_ways")
    assert found.values[:2] == asked.values[:2]
    assert len(found.values[-1]) > 1100  # of 1200: the loss is unknown where the script replaces the gradients
    counts = [len(values) + withheld for values, withheld in zip(found.values, found.withheld, strict=True)]
    assert all(len(values) <= count <= 1300 for values, count in zip(asked.values, counts, strict=True)), counts
    for *known, values, numbers in zip(asked.numbers, asked.values, found.values, found.numbers, strict=True):
        right = dict(zip(*known, strict=True))
        assert values == [right[number] for number in numbers]
    assert found.searched < 1300


@pytest.mark.parametrize(("seconds", "rests"), [(0.01, True), (0.2, False)])
def test_updates_rest_only_where_a_question_would_not_wait_long_for_the_next_one(seconds, rests):
    update, optimizer = ThreadUpdate({}), torch.optim.SGD([torch.zeros(1)])
    update.stepped[id(optimizer)] = weakref.ref(optimizer)
    update.raised, update.took = True, seconds
    assert update.may_rest(None) is rests
