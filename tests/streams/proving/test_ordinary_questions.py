"""Nearly all ordinary questions run; docs/queries.md lists the refused ones."""

from __future__ import annotations

import collections
import copy
import warnings
from abc import ABCMeta
from typing import ClassVar

import pytest
import torch
from documented import ROOT
from ordinary_jobs import JOBS
from ordinary_questions import COUNT, answers, ask, share, table

SHARE = 0.95
BEGIN, END = "<!-- refused: begin -->\n", "\n<!-- refused: end -->"
LEAST = {"grammar": COUNT - 10, "docs": 35, "notebooks": 12, "tests": 80}
"""Questions that must have run or been refused, of each source: the others lack what they ask about."""


@pytest.fixture(scope="module")
def found():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what torch says of odd questions
        return answers()


@pytest.mark.parametrize("source", LEAST)
def test_nearly_all_ordinary_questions_run_as_they_are(found, source):
    judged = [one for one in found[source] if one.outcome != "failed"]
    assert len(judged) >= LEAST[source]
    assert share(judged) >= SHARE, [one for one in judged if one.outcome == "refused"]


def test_the_page_on_queries_lists_the_refused_ones(found):
    page = (ROOT / "docs" / "queries.md").read_text()
    shown = page.partition(BEGIN)[2].partition(END)[0]
    assert shown == table(found), "run: python tests/support/ordinary_questions.py"


@pytest.fixture(scope="module")
def transformers_job():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    small = dict(vocab_size=50, num_attention_heads=2, num_hidden_layers=2, hidden_size=16)
    bert = transformers.BertForSequenceClassification(transformers.BertConfig(**small, intermediate_size=32))
    sizes = dict(vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=32)
    gpt = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=1))
    ids = torch.randint(0, 50, (2, 8))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.tensor([0, 1])}
    cache = gpt(ids).past_key_values
    return dict(step=1, bert=bert, gpt=gpt, ids=ids, batch=batch, outputs=bert(ids), config=bert.config, cache=cache)


@pytest.mark.parametrize("question", [
    "bert(**batch).loss", "bert(ids).logits.std()", "gpt(ids, labels=ids).loss", "gpt(ids).logits.argmax(-1)",
    "outputs.logits.mean()", "outputs['logits'].mean()", "outputs[0].mean()", "list(outputs)", "config.hidden_size",
    "gpt.transformer(ids).last_hidden_state.std()", "bert.num_parameters()", "config.to_dict()['hidden_size']",
    "bert.bert.encoder.layer[0].attention.self.query.weight.norm()", "str(bert.device)",
])  # fmt: skip
def test_models_and_outputs_of_transformers_are_asked_like_any_other(transformers_job, question):
    answer = ask(question, "transformers", transformers_job)
    assert answer.outcome == "answered", answer


def test_a_model_gets_no_object_of_the_job_that_it_would_change(transformers_job):
    before = transformers_job["cache"].get_seq_length()
    answer = ask("gpt(ids, past_key_values=cache).logits.sum()", "transformers", transformers_job)
    assert answer.outcome == "refused", answer
    assert transformers_job["cache"].get_seq_length() == before


QUESTIONS = (
    "optimizer.state_dict()", "scheduler.get_last_lr()", "scheduler.state_dict()", "scaler.get_scale()", "len(loader)",
    "dataset[0]", "nn.CrossEntropyLoss()(output, y)", "nn.Linear(10, 2)(output).shape", "vars(losses)",
    "losses.__dict__", "nn.BatchNorm1d(10)(output).std()", "nn.Sequential(nn.Linear(10, 4), nn.ReLU())(output).shape",
    "torch.zeros(10, 10).index_put_((y, output.argmax(1)), torch.ones(len(y)), accumulate=True).sum()", "str(losses)",
    "f'{losses} {loss:.2f}'", "nn.Parameter(output).norm()", "nn.MultiheadAttention(10, 2)(output, output, output)[0]",
    "copy_of(vars(losses))['name']", "nn.functional.cross_entropy(output, y, label_smoothing=0.1)",
    "statistics.fmean(e.args.lr for e in events)", "torch.nn.utils.parameters_to_vector(model.parameters()).norm()",
    "def q(e):\n    with torch.set_grad_enabled(True):\n        return e.model(e.x).mean()",
)  # fmt: skip


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_parts_of_a_training_answer(question):
    answer = ask(question, "classifier", {**JOBS["classifier"](), "copy_of": copy.deepcopy})
    assert answer.outcome == "answered", answer


def test_a_gradient_of_the_loop_is_refused_in_a_sentence_that_says_what_to_do():
    answer = ask("torch.autograd.grad(loss, model.fc.weight)", "classifier", JOBS["classifier"]())
    assert answer.reason == (
        "QueryError: Refused: torch.autograd.grad runs the hooks of the job's graph: saliency computes on a copy."
    ) or answer.reason.startswith("Refused: torch.autograd.grad runs the hooks")


class Settings(dict):
    """Settings as many jobs have them, whose items are attributes."""

    __getattr__ = dict.__getitem__


def test_settings_whose_attributes_are_items_are_read():
    for question in ("settings.rate", "settings['rate']", "'rate' in settings", "settings.get('rate')"):
        answer = ask(question, "own", {"settings": Settings(rate=0.1)})
        assert answer.outcome == "answered", answer


@pytest.mark.parametrize("question", ["nn.Dropout(0.5)(output)", "nn.Linear(10, 2)(output).sum()", "torch.rand(3)"])
def test_a_module_that_a_question_makes_draws_no_random_numbers_of_the_job(question):
    job = JOBS["classifier"]()
    before = torch.random.get_rng_state()
    assert ask(question, "classifier", job).outcome == "answered"
    assert torch.equal(torch.random.get_rng_state(), before)


class Renamed(type):
    """A metaclass as libraries have them: it makes classes, and nothing else."""

    def __new__(cls, name, bases, names):
        return super().__new__(cls, name, bases, {**names, "made": 3})


class Watching(type):
    """A metaclass that runs code as its classes are read."""

    def __getattribute__(cls, name):
        SEEN.append(name)
        return super().__getattribute__(name)


SEEN: list[str] = []


class Aliased(metaclass=Renamed):
    """An object that computes all of its attributes, as configurations do."""

    names: ClassVar = {"width": "hidden"}
    hidden = 16

    def __getattribute__(self, key):
        if key != "names" and key in super().__getattribute__("names"):
            key = super().__getattribute__("names")[key]
        return super().__getattribute__(key)


class Counting:
    """An object that changes as it is read."""

    count = 0

    def __getattribute__(self, key):
        object.__setattr__(self, "count", 1)
        return super().__getattribute__(key)


class Watched(metaclass=Watching):
    value = 1


def test_attributes_that_an_object_computes_are_followed():
    answer = ask("thing.width + thing.made", "own", {"thing": Aliased()})
    assert answer.outcome == "answered", answer
    counting = Counting()
    assert ask("thing.width", "own", {"thing": counting}).outcome == "refused"
    assert object.__getattribute__(counting, "__dict__") == {}


def test_what_a_distribution_computes_once_is_not_kept_in_it():
    job = JOBS["reinforcement"]()
    before = set(vars(job["dist"]))
    for question in ("dist.probs.max()", "dist.entropy().mean()"):
        answer = ask(question, "reinforcement", job)
        assert answer.outcome == "answered", answer
    assert set(vars(job["dist"])) == before


def test_an_object_is_read_without_its_metaclass_and_such_a_class_is_not():
    thing = Watched()
    SEEN.clear()
    assert ask("thing.value", "own", {"thing": thing}).outcome == "answered"
    assert ask("type(thing).value", "own", {"thing": thing}).outcome == "refused"
    assert SEEN == []


class Fields(ABCMeta):
    """A metaclass as libraries of checked settings have it."""

    def __new__(cls, name, bases, names):
        return super().__new__(cls, name, bases, {**names, "fields": list(names.get("__annotations__", ()))})

    def __getattr__(cls, name):
        SEEN.append(name)
        raise AttributeError(name)

    def __instancecheck__(cls, thing):
        SEEN.append("__instancecheck__")
        return super().__instancecheck__(thing)

    @property
    def count(cls):
        SEEN.append("count")
        return 7

    def collected(cls):
        SEEN.append("collected")


class Checked(metaclass=Fields):
    rate: float
    count = 2

    def __init__(self, **values):
        self.__dict__.update(values)

    def __eq__(self, other):
        return self.__dict__ == other.__dict__

    def __iter__(self):
        yield from self.__dict__.items()

    __hash__ = None

    @property
    def half(self):
        return self.rate / 2

    def times(self, by):
        return [value * by for name, value in self if name in self.fields][0]  # noqa: RUF015

    @classmethod
    def known(cls):
        return len(cls.fields)


class Configured(torch.nn.Linear):
    def __init__(self, settings):
        super().__init__(2, 2)
        self.settings = settings

    def forward(self, x):
        return super().forward(x) * self.settings.rate


def test_settings_with_a_metaclass_of_their_own_are_read():
    settings = Checked(rate=0.5, inner=Checked(rate=2))
    job = {"settings": settings, "model": Configured(settings), "x": torch.ones(1, 2)}
    SEEN.clear()
    for question in (
        "settings.rate", "settings.inner.rate", "settings.half", "settings.times(4)", "settings.count",
        "dict(settings)['rate']", "1 if settings else 0", "vars(settings)['rate']", "model(x).sum()",
        "getattr(settings, 'nothing', 3)", "settings.fields",
    ):  # fmt: skip
        answer = ask(question, "own", job)
        assert answer.outcome == "answered", answer
    for question in ("str(settings)", "type(settings).count", "isinstance(settings, type(settings))"):
        assert ask(question, "own", job).outcome == "refused"
    assert SEEN == []


class Later:
    """An object whose class gets a property while the job runs."""

    def __init__(self):
        self.value = 1


def test_a_property_that_a_class_gets_later_is_followed():
    thing = Later()
    assert ask("thing.value", "own", {"thing": thing}).outcome == "answered"
    Later.value = property(lambda own: SEEN.append("value"), lambda own, new: None)
    SEEN.clear()
    assert ask("thing.value", "own", {"thing": thing}).outcome == "refused"
    assert SEEN == []


class Posing:
    """An object that says that it is of looptap's own."""

    @property
    def value(self):
        SEEN.append("value")
        return 1


def test_a_class_that_poses_as_one_of_looptap_is_followed():
    Posing.__module__ = "looptap.streams.control"
    SEEN.clear()
    assert ask("thing.value", "own", {"thing": Posing()}).outcome == "refused"
    assert SEEN == []


class Logged:
    """An object whose operators leave traces."""

    def __iter__(self):
        SEEN.append("iter")
        return self

    def __next__(self):
        SEEN.append("next")
        raise StopIteration

    def __setitem__(self, key, value):
        SEEN.append(key)

    def __delitem__(self, key):
        SEEN.append(key)

    def __iadd__(self, other):
        SEEN.append(other)
        return self


def logged(how):
    made = Logged()
    if how == "set":
        made["a"] = 1
    elif how == "delete":
        del made["a"]
    elif how == "add":
        made += 1
    else:
        return list(made)


@pytest.mark.parametrize("how", ["set", "delete", "add", "loop"])
def test_operators_of_what_a_question_makes_are_checked_too(how):
    SEEN.clear()
    answer = ask(f"logged({how!r})", "own", {"logged": logged})
    assert answer.outcome == "refused", answer
    assert SEEN == []


class Record(collections.OrderedDict):
    def __init__(self, **values):
        super().__init__(values)


def test_containers_of_the_job_are_made_and_read_but_not_changed():
    things = {"Record": Record, "record": Record(a=1, b=2)}
    for question in ("list(record.keys())", "record.get('a')", "dict(record.items())", "Record(a=3)['a']"):
        answer = ask(question, "own", things)
        assert answer.outcome == "answered", answer
    for question in ("record.pop('a')", "record.update(a=5)", "record.move_to_end('a')"):
        assert ask(question, "own", things).outcome == "refused"
    assert things["record"] == {"a": 1, "b": 2}
