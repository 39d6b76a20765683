"""Scripts that break off, evaluate and update weights in unusual ways."""

import pytest
from observing import observed, plain

from looptap.testing import pair

pytestmark = pytest.mark.usefixtures("processes")

LOSS, AT_EVALUATION, MEAN = "loss", ("loss", "evaluation"), "mean(e.loss for e in events)"
ASKED = {
    "breaking_off": [LOSS, MEAN, AT_EVALUATION],
    "far_losses": [LOSS, AT_EVALUATION, ("losses", "evaluation"), ("min(e.loss for e in events)", "evaluation")],
    "inner_loops": [LOSS, "len(losses)"],
    "own_beside": [LOSS],
    "mixed_updates": [LOSS, "len(losses)"],
    "surgery": [LOSS, "losses", MEAN, "lambda e: e.loss"],
    "late_mode": [LOSS],
    "fetched_ahead": [LOSS, MEAN],
    "renewed_iterator": [LOSS, ("way, step", "epoch")],
    "resumed_ahead": [LOSS, ("left_out, step", "epoch")],
    "epoch_ends": ["step", ("step", "epoch"), ("way, batch_size", "epoch")],
    "two_parts": [
        LOSS, "sorted(layer_norms(model, 'grad'))", "x.shape", "y.shape", "len(activations('decoder'))",
        "mean(nn.functional.relu(e.loss) for e in events)",
    ],
    "out_of_reach": [LOSS, "test_loss", "activations('blocks')", "x.shape"],
}  # fmt: skip


def seen(script):
    return observed(script, *ASKED[script])


@pytest.mark.parametrize("script", ASKED)
def test_a_script_prints_the_same_numbers_while_it_is_asked(script):
    assert seen(script).lines == plain(script)
    assert seen(script).values[0]


# ---------------------------------------------------------------- names


def test_the_variables_of_a_script_come_before_names_of_looptap_and_words_of_queries():
    asked = "losses['val'], lr, values, e, max", "norm", "norm(loss)", "max(step, 3) + e.lr", "e['norm'] * e.e", "min"
    found = observed("own_names", *asked, "looptap.losses", "len(losses)")
    losses, norms = zip(*[map(float, words) for words in found.printed()], strict=True)
    rows, norm, called, read, product, late, own, count = found.values
    assert rows == [[10 * step, 0.25, 2, 3.5, 10 * step] for step in range(5)]  # as they are at the next step
    assert norm == list(norms)
    assert called == pytest.approx(losses)
    assert read == [3.25, 3.25, 3.25, 3.25, 4.25, 5.25]
    assert product == pytest.approx([3.5 * one for one in norms])
    assert late == [-2, -3, -4]  # at the steps after its first value
    assert [one for (one,) in own] == pytest.approx(losses)
    assert count == [2] * 6
    assert found.lines == plain("own_names")


def test_a_word_of_queries_that_is_no_variable_ends_its_query_at_once():
    (said,) = observed("surgery", "step, any").said
    assert "query language's own any: call it, any(…). A variable of the job of that name is e['any']." in said
    assert "in a row" not in said


def test_names_that_an_event_cannot_have_say_so_at_once():
    found = observed("surgery", "data_seconds, loss", "guess", ("data_seconds", "evaluation"))
    assert "no DataLoader has given a batch for this step: data_seconds is unknown." in found.said[0]
    assert found.failures[0][0] == 0
    assert found.failures[1] == (1, found.failures[1][1])
    assert "no observable 'guess'" in found.said[1]


# ---------------------------------------------------------------- passes


@pytest.mark.promise("auto")
def test_a_validation_that_breaks_off_between_steps_is_no_epoch():
    found = seen("breaking_off")
    losses = [float(words[0]) for words in found.printed()]
    assert (found.events["step"], found.events["epoch"]) == (20, 2)
    assert found.values[1] == pytest.approx([sum(losses[:10]) / 10, sum(losses[10:]) / 10])
    assert found.events["evaluation"] == 12  # of each four with gradients off, the last two share an endless loader


def test_a_batch_that_is_fetched_before_the_model_is_in_training_mode_is_one_to_learn_from():
    assert seen("late_mode").events == {"step": 4, "epoch": 4, "evaluation": 4}


# ---------------------------------------------------------------- evaluations


def test_an_evaluation_that_continues_with_a_new_iterator_has_one_event():
    found = observed("kept_validation", ("val_loss", "evaluation"), "loss")
    assert found.events == {"step": 27, "epoch": 1, "evaluation": 9}
    assert found.values[0] == pytest.approx([float(words[0]) for words in found.printed("validated")])
    assert found.lines == plain("kept_validation")


def test_a_model_of_an_earlier_training_in_evaluation_mode_hides_no_evaluation_of_the_next():
    found = observed("kept_model", "loss")
    assert found.events == {"step": 24, "epoch": 6, "evaluation": 6}
    assert found.lines == plain("kept_model")


def test_the_loss_of_an_evaluation_is_one_that_was_computed_there_and_never_that_of_the_next_step():
    found = seen("far_losses")
    assert found.values[1] == pytest.approx([float(words[0]) for words in found.printed("loss")])
    assert found.failures[1][0] == 0
    assert found.values[2] == []
    assert found.values[3] == [pytest.approx(min(found.values[1]))]


def test_where_an_evaluation_has_no_loss_the_variables_that_it_has_changed_are_named():
    said = seen("far_losses").said[1]
    assert "this evaluation has set no variable 'loss': what has that name is of an update." in said
    assert "Since it began these variables have changed: step, batch, val_error." in said


def test_an_evaluation_that_nothing_follows_has_its_event_at_the_end():
    found = seen("far_losses")
    assert found.events == {"step": 9, "evaluation": 10}
    assert found.values[1][-1] == pytest.approx(float(found.printed("loss")[-1][0]))


# ---------------------------------------------------------------- updates


def test_only_the_losses_count_whose_passes_reach_what_is_stepped_on():
    found = seen("inner_loops")
    steps = [float(words[0]) for words in found.printed()]
    assert found.values[0] == pytest.approx(steps)
    assert found.events["step"] == len(steps) + len(found.printed("meta"))
    assert "no backward pass has reached the gradients that this update is made with" in found.said[0]
    assert found.values[1][:12] == [6] * 12


def test_an_own_optimizer_beside_one_of_torch_makes_an_event_at_each_backward_pass():
    found = seen("own_beside")
    losses = [float(words[0]) for word in ("torch", "step", "raw") for words in found.printed(word)]
    assert found.values[0][: len(losses)] == pytest.approx(losses)
    again = [float(words[0]) for words in found.printed("again")]
    *rest, a, b, c, d = found.values[0][len(losses) :]
    assert [a, b, c, d] == pytest.approx([float(words[0]) for words in found.printed("final")])
    assert rest == pytest.approx(again[-len(rest) :], abs=1e-12)
    assert len(rest) >= 12  # where torch's optimizer has the same parameters, dropped gradients tell


def test_of_mixed_updates_each_is_an_event_and_passes_between_them_are_none():
    found = seen("mixed_updates")
    assert found.events == {"step": 24}
    assert found.values[1] == [5, 1] * 12  # an attack's three passes, and two that are an update's
    assert found.values[0][1::2] == pytest.approx([float(words[1]) for words in found.printed() if words[0] == "G"])


def test_the_loss_is_unknown_where_the_script_has_put_other_gradients_in_the_place_of_its_passes():
    found = seen("surgery")
    rows = [[float(word) for word in words] for words in found.printed()]
    last = [row[1] for row in rows if row[0] % 5 == 0]  # gradients of the last task alone
    assert found.values[0] == found.values[3] == pytest.approx(last)
    assert found.values[1] == [pytest.approx(row[2:]) for row in rows]
    assert found.values[2] == [pytest.approx(sum(last) / len(last))]
    assert [errors for errors, _ in found.failures] == [0] * 4
    for said in (found.said[0], found.said[2], found.said[3]):
        assert "the loss that this update descends on is unknown; losses has that of each pass" in said


def test_an_epoch_whose_batches_are_fetched_ahead_ends_with_the_update_of_the_last():
    found = seen("fetched_ahead")
    assert found.events == {"step": 12, "epoch": 3, "evaluation": 3}
    assert found.values[1] == pytest.approx([float(words[1]) for words in found.printed("epoch")])


def test_an_epoch_ends_with_its_last_update_where_a_function_begins_the_loader_again():
    found = seen("renewed_iterator")
    ends = [[way, int(step)] for way, step in found.printed("epoch")]
    ends[5][0] = "ahead"  # that the last one fetched at once has ended shows as the next training begins
    assert found.values[1] == ends


def test_a_resumed_epoch_ends_with_its_only_update_if_its_batch_was_fetched_ahead():
    found = seen("resumed_ahead")
    assert found.values[1] == [[int(left_out), int(step)] for left_out, step in found.printed("epoch")]


def test_an_epoch_ends_with_its_last_update_however_its_batches_are_fetched_and_left_out():
    found = seen("epoch_ends")
    rows = [(way, int(size), int(step)) for way, size, step in found.printed("epoch")]
    assert found.values[1] == [step for *_, step in rows]
    late = {("groups_2_elsewhere", 8), ("pairs", 8), ("two_ahead_2", 8)}  # when the next one begins
    wrong = {(way, size) for (way, size, _), names in zip(rows, found.values[2], strict=True) if names != [way, size]}
    assert wrong <= late


# ---------------------------------------------------------------- names


def test_a_line_that_calls_backward_for_one_optimizer_after_the_other_has_the_loss_of_each_update():
    found = observed("epoch_ends", *ASKED["epoch_ends"], LOSS)
    assert len(found.values[-1]) >= found.events["step"] - 2  # where that begins it is not known yet


def test_a_model_of_two_modules_has_the_parameters_of_both_and_its_inputs_are_those_of_the_first_call():
    _, norms, inputs, targets, activations, mean = seen("two_parts").values
    names = ["decoder.bias", "decoder.weight", "front.inner.0.bias", "front.inner.0.weight"]
    assert norms == [str(names)] * 6
    assert (inputs, targets) == ([[8, 4]] * 5, [[8]] * 5)  # the largest tensor of the dict, and its labels
    assert activations == [8] * 5
    assert mean == [pytest.approx(sum(seen("two_parts").values[0]) / 6)]


def test_what_can_have_no_value_at_a_step_is_said_after_some_events():
    _, variable, container, inputs = seen("out_of_reach").said
    assert "test_loss has had no value at any of 20 'step' events: it is a variable of test()" in variable
    assert "'blocks' is a ModuleList: if its children are called instead, ask for 'blocks.0'." in container
    assert "x is unknown: no call of the model itself with gradients has been seen before this step." in inputs
    assert seen("out_of_reach").failures[3][0] == 0


def test_a_mean_over_a_group_that_no_event_has_ended_says_at_once_when_it_comes():
    agent, run = pair("groups", groups=("step", "epoch"))
    agent.emit("step", loss=1.0)
    note = "its first value comes with the next 'epoch' event, of which there was none so far; use window=10"
    assert any(note in one for one in run.stream(MEAN, on="step").notes)
    agent.emit("epoch")
    assert not any(note in one for one in run.stream(MEAN, on="step").notes)
