"""The natural questions, asked of a job: kind, fields and names of their charts."""

from __future__ import annotations

import importlib.util
import threading

import numpy as np
import pytest
import torch
from clocks import Clock, trained
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from waiting import soon

from looptap.testing import pair
from looptap.training.echoing import Echo
from looptap.training.progress import Patience, Progress
from looptap.visualizers.drawing.picture import Band, Bars, Grid, Images, Line, Points, Table, Text
from looptap.visualizers.plot import Plot

CLASSES = 10


def layers():
    """Return a small model with filters of 3 × 3 and ten parameters."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
        nn.Flatten(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, CLASSES),
    )  # fmt: skip


class Job:
    """A loop with what the questions ask for."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.agent, self.run = pair("job")
        self.model = layers()
        self.optimizer = torch.optim.SGD(
            [{"params": self.model[0].parameters(), "lr": 0.01}, {"params": self.model[2:].parameters()}],
            lr=0.1, momentum=0.9,
        )  # fmt: skip
        self.clock = Clock()
        self.progress = Progress(10, epochs=100, validation=20, rule=Patience(3), clock=self.clock)
        data = TensorDataset(torch.randn(32, 3, 8, 8), torch.arange(32) % CLASSES)
        self.echo = Echo(DataLoader(data, 16), 2)
        self.batch = next(iter(self.echo))
        trained(self.progress, self.clock, 10, error=lambda epoch: 0.3 + 0.5 / (epoch + 1))
        self.agent.expose(model=self.model, optimizer=self.optimizer, progress=self.progress, echo=self.echo)

    def step(self, step: int) -> None:
        """Train on one batch; every second one ends an epoch."""
        x, target = self.batch
        output = self.model(x)
        losses = nn.functional.cross_entropy(output, target, reduction="none")
        self.optimizer.zero_grad()
        losses.mean().backward()
        self.optimizer.step()
        acc = (output.argmax(1) == target).float().mean()
        values = {"loss": losses.mean(), "acc": acc, "losses": losses, "x": x, "target": target, "output": output}
        points = torch.stack([output[:, 0], output[:, 1]], 1)
        self.agent.emit("batch", step=step, **values, points=points)
        if step % 2 == 0:
            self.agent.emit("epoch", epoch=step // 2, val_loss=1.0 / step, val_acc=0.1 * step)

    def ask(self, query: str, on: str = "batch", chart: str = ""):
        """Return the kind, the picture and the newest value of a question's chart."""
        stream = self.run.stream(query, on=on)
        plot = Plot(stream, chart=chart)
        for step in range(1, 9):
            self.step(step)
        plot.pull()
        (cell,) = plot.cells
        return "" if cell.chart is None else cell.chart.kind, plot.pictures()[0], stream


@pytest.fixture
def job():
    made = Job()
    yield made
    made.run.close()
    made.agent.close()


def facts(picture):
    """Return the marks' types and names."""
    return {(type(mark).__name__, getattr(mark, "name", "")) for mark in picture.marks if getattr(mark, "name", True)}


QUESTIONS = [
    ("step, loss", "batch", "line", {("Line", "loss")}, ("step", "loss")),
    ("epoch, val_loss, val_acc", "epoch", "line", {("Line", "val_loss"), ("Line", "val_acc")}, ("epoch", "")),
    ("loss, acc", "batch", "line", {("Line", "loss"), ("Line", "acc")}, ("batch", "")),
    ("layer_norms(model, 'grad')", "batch", "layers", None, ("batch", "")),
    ("model[0].weight", "batch", "images", None, ("", "")),
    ("confusion(target, output, 10)", "batch", "confusion", None, ("prediction", "target")),
    ("batch_topk(9, losses, image=x, target=target)", "batch", "images", None, ("", "")),
    ("progress.remaining", "batch", "band", {("Line", "progress.remaining"), ("Band", "progress.remaining low–high")},
     ("batch", "progress.remaining")),
    ("progress.stop_at", "batch", "band", None, ("batch", "progress.stop_at")),
    ("step, progress.remaining", "batch", "band", None, ("step", "progress.remaining")),
    ("echo.ratio", "batch", "line", None, ("batch", "echo.ratio")),
    ("x.mean((2, 3))", "batch", "scatter3d", None, ("x", "y")),
    ("optimizer", "batch", "table", None, ("", "")),
    ("{'train': loss, 'val': latest('epoch').val_loss}", "batch", "line", {("Line", "train"), ("Line", "val")},
     ("batch", "")),
    ("points, target", "batch", "scatter", {("Points", str(label)) for label in range(CLASSES)}, ("x", "y")),
    ("embedding(output, labels=target, images=x)", "batch", "scatter",
     {("Points", str(label)) for label in range(CLASSES)}, ("x", "y")),
    ("progress.report", "batch", "table", None, ("", "")),
    ("summary(model)", "batch", "table", None, ("", "")),
    ("update_ratio(model, optimizer)", "batch", "layers", None, ("batch", "")),
]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(("query", "on", "kind", "names", "titles"), QUESTIONS, ids=[one[0] for one in QUESTIONS])
def test_a_natural_question_gives_the_chart_that_a_colleague_would_draw(job, query, on, kind, names, titles):
    found, picture, stream = job.ask(query, on)
    assert not stream.error_count, stream.traceback
    assert found == kind
    assert (picture.x.title, picture.y.title) == titles
    if names is not None:
        assert names <= facts(picture)
    assert picture.marks


def test_layers_are_rows_of_a_map_and_their_norms_lines_at_one_click(job):
    _, picture, stream = job.ask("layer_norms(model, 'grad')")
    (grid,) = picture.marks
    assert isinstance(grid, Grid)
    assert grid.rows[:2] == ("0.weight", "0.bias")
    assert grid.columns[0] == "1"
    plot = Plot(stream)
    plot.pull()
    (cell,) = plot.cells
    seen = []
    for _ in cell.kinds:
        seen.append(cell.chart.kind)
        cell.draw_as(cell.kinds[1])
        cell.pull()
        assert cell.draw().marks
    assert seen == ["layers", "line", "flow"]


def test_the_gradient_flow_is_bars_by_layer_whose_history_fades(job):
    kind, picture, _ = job.ask("layer_norms(model, 'grad')", chart="gradient flow")
    bars, *history = picture.marks
    assert kind == "flow"
    assert isinstance(bars, Bars)
    assert bars.labels[:2] == ("0.weight", "0.bias")
    assert len(history) > 2
    assert all(isinstance(mark, Line) for mark in history)
    assert [mark.opacity for mark in history] == sorted(mark.opacity for mark in history)


def test_filters_are_as_many_pictures_channels_first(job):
    _, picture, _ = job.ask("model[0].weight")
    (images,) = picture.marks
    assert isinstance(images, Images)
    assert [image.shape for image in images.images] == [(3, 3, 3)] * 16
    assert "Black is" in picture.guess
    assert not any("lack is" in badge for badge in picture.badges)  # it warns of nothing


def test_the_worst_samples_say_their_label_first(job):
    _, picture, _ = job.ask("batch_topk(9, losses, image=x, target=target, output=output)")
    (images,) = picture.marks
    assert len(images.images) == 9
    assert all(caption.startswith("target ") and ", output " in caption for caption in images.captions)


def test_names_of_a_tuple_are_those_of_its_values(job):
    _, picture, stream = job.ask("progress.remaining")
    assert stream.fields == ("median", "low", "high")
    assert stream.latest.median == job.progress.remaining.median
    assert stream.to_numpy("low").shape == (8,)
    assert any(isinstance(mark, Band) for mark in picture.marks)


def test_an_optimizer_is_a_table_of_its_groups(job):
    _, picture, _ = job.ask("optimizer")
    (table,) = picture.marks
    assert isinstance(table, Table)
    assert table.titles[:3] == ("group", "lr", "momentum")
    assert [row[:3] for row in table.rows] == [("0", "0.01", "0.9"), ("1", "0.1", "0.9")]


def test_the_commands_are_a_table_with_names(job):
    threading.Thread(target=lambda: job.run.set("optimizer.lr", 0.02), daemon=True).start()
    soon(lambda: job.step(1) or job.optimizer.param_groups[0]["lr"] == 0.02)
    plot = Plot(job.run.stream("commands"))
    soon(lambda: plot.pull() or job.step(1) or plot.cells[0].chart is not None)
    (table,) = plot.pictures()[0].marks
    assert isinstance(table, Table)
    assert {"what", "old", "new", "outcome"} <= set(table.titles)


def test_the_points_of_an_embedding_have_their_samples(job):
    _, picture, _ = job.ask("embedding(output, labels=target, images=x)")
    points = [mark for mark in picture.marks if isinstance(mark, Points)]
    assert sum(len(mark.x) for mark in points) == 16
    assert all(len(mark.images) == len(mark.x) for mark in points)
    assert points[0].images[0].shape == (8, 8, 3)


@pytest.mark.parametrize(("chart", "module"), [("umap", "umap"), ("t-SNE", "sklearn")])
def test_a_projection_is_made_by_the_client_or_says_what_is_not_installed(job, chart, module):
    kind, picture, _ = job.ask("embedding(output, labels=target, dimensions=8)", chart=chart)
    assert kind == chart.lower().replace("-", "")
    if importlib.util.find_spec(module) is None:
        assert f"pip install {'umap-learn' if module == 'umap' else 'scikit-learn'}" in picture.marks[0].lines[0]
    else:
        assert sum(len(mark.x) for mark in picture.marks) == 16


@pytest.mark.parametrize("method", ["gradient", "input", "integrated", "smooth"])
def test_a_saliency_is_beside_its_image_and_leaves_no_trace(job, method):
    before = [parameter.detach().clone() for parameter in job.model.parameters()]
    query = f"batch_topk(2, losses, image=x, saliency=saliency(model, x, target, method={method!r}), target=target)"
    stream = job.run.stream(query, on="batch")
    x, target = job.batch
    state = torch.random.get_rng_state()
    job.agent.emit("batch", x=x, target=target, losses=torch.arange(16.0))
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(before, job.model.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in job.model.parameters())
    plot = Plot(stream)
    plot.pull()
    (images,) = plot.pictures()[0].marks
    assert images.images[0].shape == (8, 8 + 2 + 8, 3)
    assert images.captions[0].endswith("image | saliency")


@pytest.mark.parametrize(
    "make",
    [
        lambda parameters: torch.optim.SGD(parameters, 1e-3, weight_decay=0.1),
        lambda parameters: torch.optim.SGD(parameters, 1e-3, momentum=0.9, nesterov=True),
        lambda parameters: torch.optim.Adam(parameters, 1e-4),
        lambda parameters: torch.optim.AdamW(parameters, 1e-4),
        lambda parameters: torch.optim.RMSprop(parameters, 1e-4),
    ],
)
def test_the_update_ratio_is_that_of_the_step_that_was_made(make):
    from looptap.streams.values.model_helpers import update_ratio

    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer = make(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(16, 8)).square().mean().backward()
        before = [parameter.detach().clone() for parameter in model.parameters()]
        optimizer.step()
    truth = [((new - old).norm() / old.norm()).item() for old, new in zip(before, model.parameters(), strict=True)]
    assert list(update_ratio(model, optimizer)) == ["weight", "bias"]
    np.testing.assert_allclose(list(update_ratio(model, optimizer).values()), truth, rtol=0.1)
    with pytest.raises(ValueError, match="The optimizer has no parameter of this model"):
        update_ratio(nn.Linear(2, 2), optimizer)
    optimizer.zero_grad()
    with pytest.raises(ValueError, match="No parameter has a gradient at this event"):
        update_ratio(model, optimizer)


def test_what_cannot_be_drawn_says_so_in_the_place_of_the_chart(job):
    job.agent.expose(thing=object())
    _, picture, stream = job.ask("thing")
    (text,) = picture.marks
    assert isinstance(text, Text)
    assert "object" in " ".join(text.lines)
    assert stream.error_count


def test_numbers_that_are_all_nan_are_no_empty_picture(job):
    _, picture, _ = job.ask("float('nan')")
    (text,) = picture.marks
    assert isinstance(text, Text)
    assert "NaN" in text.lines[0]
