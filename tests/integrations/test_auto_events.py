"""Scripts that know nothing of looptap: their events, and what queries find."""

from functools import cache

import pytest
from observing import Observed, plain

pytestmark = pytest.mark.usefixtures("processes")

TOLERANCE = 1e-6  # of a sum of two float32 numbers
MEAN = "mean(e.loss for e in events)"

QUERIES = {
    "gpt": ["losses", "event_number, x.sum(), X.sum()", "y.shape", ("val_loss", "evaluation")],
    "manual_sgd": ["loss, batch, model.weight.grad.norm()", "x.shape", "step, batch"],
    "gan": [
        "e['loss/optimizerG']",
        "lambda e: e.model.out_features",
        "lambda e: len(e.losses)",
        "max(e['loss/optimizerG'] for e in events)",
    ],
    "critic": ["losses[0], on_real"],
    "scaled": ["loss, step", ("step, f'{loss}'", "skipped")],
    "scaled_pair": [("loss", "skipped")],
    "lbfgs": ["lambda e: len(e.losses)"],
    "dropped": ["lambda e: len(e.losses)"],
    "dropped_by_hand": ["lambda e: len(e.losses)"],
    "own_eval": [("total", "evaluation"), ("epoch", "epoch"), "activations('body', shape)"],
    "several_in_one": ["hidden_loss", "data.shape"],
    "two_losses": [
        "e['loss/actor_optimizer']",
        "e['loss/critic_optimizer'], actor_loss.item(), critic_loss.item()",
        "max(e['loss/critic_optimizer'] for e in events)",
    ],
    "three_losses": [
        "e['loss/optimizer_a'], e['loss/optimizer_b'], e['loss/optimizer_c']",
        "lambda e: e.optimizer_b.param_groups[0]['lr']",
    ],
    "accumulated": ["lambda e: len(e.losses)"],
    "two_trainings": [
        "activations('body', shape)",
        "activations('net.body', shape)",
        "e['lr'], e.mean, e['values'], lr(optimizer)",
        "mean(e['mean'] for e in events)",
    ],
    "in_backward": ["loss, step"],
    "trainer_class": ["len(list(model.parameters()))", "rate", "penalty", "updates", "lr"],
    "threads": ["number, loss"],
    "epochs": [
        ("epoch, guess, batch_idx", "epoch"),
        ("test_loss", "evaluation"),
        MEAN,
        "data_seconds, event_dt",
        "los",
    ],
    "compiled": ["x.shape"],
    "late_name": ["step, checked", "nowhere_at_all", "nn.functional.relu(loss)", "step, train", "sys.flags"],
    "freed": ["loss, x.shape, hidden.sum()", "lambda e: e.nothing"],
}
"""What is asked of each script besides `ALWAYS`: at each step, or at another event."""
ALWAYS = ["loss", "sum(float(p.norm()) for p in model.parameters())", "x.sum()", "lambda e: e.model.state_dict()"]


class Asked(Observed):
    """A script of which `ALWAYS` and its own `QUERIES` are asked."""

    def __init__(self, script):
        super().__init__(script, [*ALWAYS, *QUERIES[script]])
        count = len(ALWAYS)
        self.always, self.values = self.values[:count], self.values[count:]
        self.losses, self.failures, self.said = self.always[0], self.failures[count:], self.said[count:]


observed = cache(Asked)


@pytest.mark.parametrize("script", QUERIES)
def test_a_script_prints_the_same_numbers_while_it_is_asked(script):
    seen = observed(script)
    assert seen.lines == plain(script)
    assert len([line for line in seen.lines if line.startswith("parameters")]) >= 1
    assert all(seen.always), [len(values) for values in seen.always]


SUMMED = [
    "gan", "lbfgs", "several_in_one", "epochs", "gpt", "manual_sgd", "in_backward", "dropped", "dropped_by_hand",
    "two_losses", "three_losses", "two_trainings", "scaled_pair", "critic",
    "trainer_class",
]  # fmt: skip


@pytest.mark.parametrize("script", SUMMED)
def test_each_update_is_an_event_with_the_loss_that_it_descended_on(script):
    seen = observed(script)
    assert seen.losses == pytest.approx([float(words[0]) for words in seen.printed()], rel=TOLERANCE)
    assert seen.events["step"] == len(seen.printed())


def test_micro_batches_have_their_losses_and_x_is_the_batch_of_the_last_not_the_prefetched_one():
    seen = observed("gpt")
    micro, inputs, shapes, evaluated = seen.values
    assert [len(pair) for pair in micro] == [2] * 6
    # from the second event on: before the first nothing had asked for the inputs
    assert inputs == [[n, int(used), int(next_)] for n, (_, used, next_) in enumerate(seen.printed(), 1)][1:]
    assert shapes == ["[4, 8]"] * 5 or shapes == [[4, 8]] * 5
    assert len(evaluated) == 1


def test_losses_are_all_those_since_the_last_step_also_where_fewer_count():
    ((counts,), (evaluations,)) = observed("dropped").values, observed("lbfgs").values
    assert counts == [2, 3, 2, 4, 3, 2]  # of steps 0, 1, 2, 4 with those that 3 dropped, 5, and 6
    assert len(evaluations) == 4
    assert min(evaluations) > 1


def test_a_loop_without_an_optimizer_raises_an_event_after_each_backward_pass():
    rows, shapes, _ = observed("manual_sgd").values
    printed = observed("manual_sgd").printed()
    assert [row[:2] for row in rows] == [[float(loss), int(batch)] for loss, batch in printed]
    assert len(shapes) == 5


def test_step_is_the_number_of_the_update_where_the_script_has_no_such_name():
    _, _, rows = observed("manual_sgd").values
    batches = [int(batch) for _, batch in observed("manual_sgd").printed()]
    assert rows == [[number, batch] for number, batch in enumerate(batches, 1)]


def test_two_models_have_their_own_optimizer_model_and_named_loss():
    seen = observed("gan")
    named, models, counts, largest = seen.values
    of_g = [float(loss) for loss, which in seen.printed() if which == "G"]
    assert named == pytest.approx(of_g)
    assert models == [1, 4] * 4
    assert counts == [2, 1] * 4
    assert largest == [pytest.approx(max(of_g))]
    assert {errors for errors, _ in seen.failures} == {0}  # the steps of the other optimizer have no such loss


def test_a_loss_counts_as_often_as_the_gradient_says_that_backward_got_with_it():
    (pairs,) = observed("critic").values
    assert len(pairs) == 4
    assert all(counted == -on_real for counted, on_real in pairs)


def test_optimizers_that_step_on_the_same_gradients_have_the_losses_that_reached_theirs():
    seen = observed("two_losses")
    actor, critic, largest = seen.values
    printed = [(float(of_actor), float(of_critic)) for _, of_actor, of_critic in seen.printed()]
    assert actor == pytest.approx([of_actor for of_actor, _ in printed][-len(actor) :])
    assert [row[0] for row in critic] == pytest.approx([row[2] for row in critic])
    assert len(actor) >= 6  # the first events tell that both step, and what is asked of their passes
    assert largest == [pytest.approx(max(row[0] for row in critic))]
    assert {errors for errors, _ in seen.failures} == {0}


def test_each_of_three_optimizers_has_its_own_losses_though_it_zeroes_its_gradients_before_the_next_one_steps():
    rows = observed("three_losses").values[0]
    printed = [[float(word) for word in words[1:]] for words in observed("three_losses").printed()]
    assert len(rows) >= 6
    assert rows == [pytest.approx(words, rel=TOLERANCE) for words in printed[-len(rows) :]]


def test_losses_count_whose_gradients_are_zero_or_kept_elsewhere_and_which_the_script_changes_afterwards():
    seen = observed("accumulated")
    expected = [float(words[0]) for words in seen.printed()]
    assert seen.losses == pytest.approx([*expected[:5], *expected[6:]], rel=1e-5)  # at 5 it has changed them first
    assert seen.failures[0][0] == 1


@pytest.mark.parametrize(("query", "missed"), [(0, 1), (1, 3)])
def test_a_query_on_a_module_follows_the_model_of_a_second_training_and_takes_the_name_of_the_script(query, missed):
    seen = observed("two_trainings")
    assert seen.values[query] == [[8, 8]] * 11 + [[8, 9]] * (12 - missed)
    assert seen.failures[query] == (missed, "the run ended")


def test_a_variable_named_like_a_word_of_the_query_language_is_read_from_the_event():
    seen = observed("two_trainings")
    printed = [[float(word) for word in words[1:]] for words in seen.printed()]
    assert seen.values[2] == [[*words, 0.01] for words in printed]
    assert seen.values[3] == [pytest.approx(5.5 / 8)]


def test_steps_that_a_gradient_scaler_leaves_out_are_events_of_their_own():
    seen = observed("scaled")
    assert seen.values[0] == [[float(loss), int(step)] for loss, step in seen.printed()]
    assert seen.values[1] == [[0, "nan"], [3, "nan"]]
    assert seen.events == {"step": 4, "skipped": 2}


def test_a_step_of_two_optimizers_of_which_a_scaler_leaves_one_out_has_its_losses_and_so_has_what_is_left_out():
    seen = observed("scaled_pair")
    assert seen.events == {"step": 8, "skipped": 2}
    assert seen.values[0] == ["inf", "inf"] or seen.values[0] == [float("inf")] * 2
    assert seen.failures[0][0] == 0


def test_optimizers_that_step_during_backward_make_one_event_a_pass():
    # that the first pass was an update is known as the second one begins
    seen = observed("in_backward")
    assert seen.values[0][1:] == [[float(loss), int(step)] for loss, step in seen.printed()][1:]


def test_a_name_that_is_gone_by_the_step_is_read_at_the_backward_pass():
    seen = observed("several_in_one")
    hidden, shapes = seen.values
    assert hidden == [float(loss) for loss, _ in seen.printed()][1:]
    assert len(shapes) == 5


def test_a_query_waits_for_a_variable_that_has_no_value_yet():
    seen = observed("late_name")
    checked = float(seen.printed("checked")[0][0])
    assert seen.values[0] == [[step, checked] for step in range(151, 301)]
    assert seen.failures[0][0] == 0


def test_a_query_for_a_name_that_no_code_of_the_job_has_ends_at_once():
    seen = observed("late_name")
    assert seen.values[1] == []
    count, reason = seen.failures[1]
    assert count == 1
    assert "no observable 'nowhere_at_all'" in reason


def test_the_model_of_a_loop_without_an_optimizer_has_all_parts_that_have_gradients():
    assert observed("trainer_class").values[0] == [4] * 12


def test_what_objects_in_sight_have_by_a_name_that_is_no_variable_is_named():
    _, rate, penalty, updates, _ = observed("trainer_class").said
    assert "it waits for rate, which has no value so far; there is self.rate" in rate
    assert "it waits for penalty, which has no value so far; there is parts['penalty']" in penalty
    assert "There is self.progress.updates." in updates


def test_a_word_of_the_query_language_is_not_said_to_hide_a_variable_that_is_not_there():
    assert "call it, lr(optimizer). A variable of the job of that name is e['lr']." in observed("trainer_class").said[4]


def test_a_query_calls_torch_by_the_names_that_the_script_has_for_its_modules():
    seen = observed("late_name")
    assert seen.values[2] == seen.losses[-len(seen.values[2]) :]
    assert len(seen.values[2]) >= 299
    assert seen.failures[2][0] == 0


def test_a_query_for_a_function_of_the_script_ends_at_once_and_says_what_it_is():
    count, reason = observed("late_name").failures[3]
    assert count == 1
    assert "train is a function of the job, which it can expose: agent.expose(train=train)" in reason
    count, reason = observed("late_name").failures[4]
    assert count == 1
    assert "A module is there once the job has exposed it: agent.expose(sys=sys)" in reason


def test_threads_have_their_own_losses_and_names():
    seen = observed("threads")
    for number in (1, 2):
        mine = [loss for which, loss in seen.values[0] if which == number]
        assert mine == [float(loss) for loss, which in seen.printed() if which == str(number)]


@pytest.mark.promise("auto")
def test_threads_that_train_many_models_beside_each_other_go_on_to_the_end():
    """Looking at the gradients of another thread ended the process."""
    seen = Observed("racing_threads", ["number, loss"])
    for number in (1, 2):
        mine = [loss for which, loss in seen.values[0] if which == number]
        assert mine == [float(loss) for loss, which in seen.printed() if which == str(number)]


def test_epochs_and_evaluations_are_guessed_from_data_loaders():
    seen = observed("epochs")
    epochs, tests, means, _, _ = seen.values
    assert epochs == [[0, True, 2], [1, True, 2], [2, True, 2]]
    assert tests == [float(loss) for (loss,) in seen.printed("test")]
    losses = [float(words[0]) for words in seen.printed()]
    assert means == pytest.approx([sum(losses[i : i + 3]) / 3 for i in (0, 3, 6)])


def test_a_pass_without_steps_is_an_evaluation_where_the_model_is_in_that_mode():
    """Whatever its own `eval` does, and where the batches are fetched with gradients."""
    assert observed("own_eval").events == {"step": 9, "epoch": 3, "evaluation": 3}


def test_a_module_is_watched_whose_name_is_also_that_of_a_variable_in_a_function():
    assert observed("own_eval").values[2] == [[8, 1]] * 8  # from the second event on


def test_the_time_that_a_step_waited_for_the_loader_is_a_part_of_its_time():
    rows = observed("epochs").values[3]
    assert len(rows) == 9
    assert all(0 < waited < dt for waited, dt in rows[1:])


def test_a_compiled_step_is_an_event():
    seen = observed("compiled")
    assert seen.events["step"] == 5
    assert seen.losses == pytest.approx([float(words[0]) for words in seen.printed()])


@pytest.mark.promise("auto")
def test_what_the_script_deletes_is_gone_at_once_and_its_own_locals_stay():
    seen = observed("freed")
    assert seen.printed("gone") == [["[True,", "True,", "True]"]] * 4
    assert seen.lines[-1] == "given []"
    assert len(seen.values[0]) == 3


def test_an_unknown_name_lists_those_that_are_in_sight():
    seen = observed("epochs")
    assert seen.values[-1] == []
    assert "no observable 'los'" in seen.stderr
    assert "batch_idx" in seen.stderr


def test_the_losses_of_a_failed_training_are_not_those_of_the_next():
    found = Observed("failed_training", ["losses, loss"])
    parts = []
    for word, *rest in (line.split() for line in found.lines):
        if word == "part":
            parts.append(float(rest[0]))
        else:  # an update, or the end of a training
            if word == "step":
                losses, loss = found.values[0].pop(0)
                assert losses == pytest.approx(parts)
                assert loss == pytest.approx(sum(parts), rel=TOLERANCE)
            parts.clear()
    assert found.values == [[]]
    assert found.lines == plain("failed_training")


@pytest.mark.promise("auto")
def test_the_steps_of_a_failed_training_are_in_no_epoch_of_the_next():
    found = Observed("failed_epochs", ["mean(e.loss for e in events)", "len(events)"])
    groups = [[]]
    for word, *rest in (line.split() for line in found.lines):
        if word == "step":
            groups[-1].append(float(rest[0]))
        else:  # the end of an epoch, or of a training
            groups.append([])
    assert found.values[0] == pytest.approx([sum(losses) / len(losses) for losses in groups[:-1]])
    assert found.values[1] == [len(losses) for losses in groups[:-1]] == [4, 3, 6, 6]
    assert found.lines == plain("failed_epochs")


def test_a_loop_that_fetches_with_a_function_is_not_over_while_another_one_learns():
    assert Observed("fetching_function", ["len(events)"]).values == [[8, 5, 8, 5, 10]]


def test_the_last_evaluation_of_a_thread_has_its_event():
    assert Observed("ending_thread", [("step", "evaluation")]).values == [[3, 6]]


FAILED = ["failed_loops", "failed_threads", "failed_elsewhere"]


@pytest.mark.promise("auto")
@pytest.mark.parametrize("script", [*FAILED, "left_loops", "kept_iterators", "iterators_in_turns"])
def test_a_failed_training_changes_nothing_of_the_next(script):
    """Also if its iterators live on, or the next one has a thread, or another place."""
    found = Observed(script, ["loss", "len(events)"])
    assert found.values[0] == pytest.approx([float(words[0]) for words in found.printed()])
    groups = [0]
    for line in found.lines:
        groups[-1] += line.startswith("step")
        groups += [0] * line.startswith("epoch")
    assert found.values[1] == groups[:-1]
    assert found.lines == plain(script)
