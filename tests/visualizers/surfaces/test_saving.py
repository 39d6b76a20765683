"""Saved pictures: each format contains the drawing; each error is a sentence."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from looptap.visualizers.drawing.picture import Axis, Bars, Line, Picture, Table
from looptap.visualizers.surfaces.saving import save_pictures

X = np.arange(50.0)
LOSS = Picture((Line(X, np.exp(-X / 10), name="loss <b>$x$</b>", color="#ff0000"),), title="of <i>a run</i>")
BARS = Picture((Bars(np.array([1.0, 2.0]), ("cats", "dogs"), color="#00ff00"),), x=Axis("animals"))


def has(pixels, color):
    return (np.abs(pixels[..., :3].astype(int) - color).sum(axis=-1) < 60).any()


def test_a_png_holds_all_pictures_side_by_side(tmp_path):
    pixels = np.asarray(Image.open(save_pictures([LOSS, BARS], tmp_path / "both.png", rows=1)))
    left, right = np.array_split(pixels, 2, axis=1)
    assert has(left, (255, 0, 0))
    assert not has(left, (0, 255, 0))
    assert has(right, (0, 255, 0))
    assert not has(right, (255, 0, 0))


def test_an_svg_holds_the_curve_and_no_text_of_the_job_as_markup(tmp_path):
    text = save_pictures(LOSS, tmp_path / "loss.svg").read_text()
    assert re.search(r'<path d="M[^"]*" clip-path="[^"]*" style="fill: none; stroke: #ff0000', text)
    assert "<b>" not in text
    assert "<i>" not in text


def test_a_saved_pdf_is_a_pdf(tmp_path):
    assert save_pictures(LOSS, tmp_path / "loss.pdf").read_bytes().startswith(b"%PDF-")


def test_a_page_opens_offline_and_is_small(tmp_path):
    page = save_pictures([LOSS, BARS], tmp_path / "both.html").read_text()
    assert len(page) < 300_000
    assert not re.search(r"<script[^>]* src=|https?://(?!www\.w3\.org/2000/svg)[^ ]*\.js", page)
    assert "<b>$x$" not in page


def test_text_has_the_labels_and_no_escape_sequence(tmp_path):
    text = save_pictures([LOSS, BARS], tmp_path / "both.txt").read_text()
    assert re.search(r"cats +█+▌? +1\n", text)
    assert re.search(r"[⠁-⣿]{3}", text)
    assert "\x1b" not in text


def test_frames_follow_each_other_in_a_gif(tmp_path):
    frames = [Picture((Line(X[:n], X[:n], color="#ff0000"),), frame=(n, 50)) for n in (10, 30, 50)]
    with Image.open(save_pictures(frames, tmp_path / "frames.gif", seconds=0.5)) as image:
        assert image.n_frames == 3
        assert image.info["duration"] == 500


def test_a_picture_that_cannot_be_saved_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"'loss\.doc' does not say what to write; end it with one of \.png, .*\."):
        save_pictures(LOSS, tmp_path / "loss.doc")
    with pytest.raises(FileNotFoundError, match=r"The directory .*nowhere does not exist"):
        save_pictures(LOSS, tmp_path / "nowhere" / "loss.png")
    with pytest.raises(ValueError, match="There is no picture to write"):
        save_pictures([], tmp_path / "loss.png")


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(("suffix", "package", "extra"), [
    (".png", "matplotlib", "window"), (".txt", "plotext", "terminal"),
])  # fmt: skip
def test_a_missing_library_is_reported_with_the_install_command(suffix, package, extra, tmp_path):
    code = (
        "import sys, numpy as np\n"
        "sys.modules[sys.argv[2]] = None\n"
        "from looptap.visualizers.surfaces.saving import save_pictures\n"
        "from looptap.visualizers.drawing.picture import Line, Picture\n"
        "try: save_pictures(Picture((Line(np.arange(3.), np.arange(3.)),)), sys.argv[1])\n"
        "except ImportError as error: print(error)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / f"a{suffix}"), package]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert f"A {suffix} file needs {package}: pip install 'looptap[{extra}]'" in done.stdout, done


@pytest.mark.usefixtures("processes")
def test_nothing_of_the_libraries_is_loaded_before_it_is_needed_and_pyplot_never(tmp_path):
    code = (
        "import sys, numpy as np\n"
        "from looptap.visualizers.surfaces.saving import save_pictures\n"
        "from looptap.visualizers.drawing.picture import Line, Picture\n"
        "assert not {'matplotlib', 'plotly', 'plotext', 'PIL'} & set(sys.modules), 'early'\n"
        "save_pictures(Picture((Line(np.arange(3.), np.arange(3.)),)), sys.argv[1])\n"
        "assert 'matplotlib.figure' in sys.modules\n"
        "assert not {'matplotlib.pyplot', 'plotly'} & set(sys.modules), 'pyplot'\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "a.png")], check=True, timeout=300)


def test_a_csv_has_a_row_for_each_x_and_a_table_for_each_axis_and_panel(tmp_path):
    line = Line(X[:3], X[:3] / 2, name="loss, of all")
    bars = Bars(np.array([4.0, 5.0]), edges=np.array([0.0, 0.5, 1.0]), name="weights", across="top", side="right")
    both = Picture((line, bars), x=Axis("step"), top=Axis("value"))
    table = Picture((Table(("name", "value"), (("lr", "0.1"),)),))
    text = save_pictures([both, table], tmp_path / "both.csv").read_bytes().decode()
    one, other, last = text.split("\r\n\r\n")
    assert one == 'step,"loss, of all"\r\n0,0\r\n1,0.5\r\n2,1'
    assert other == "value,weights\r\n0,4\r\n0.5,5"
    assert last == "name,value\r\nlr,0.1\r\n"


def test_no_text_of_a_job_is_a_formula_in_a_csv(tmp_path):
    table = Picture((Table(("=name", "value"), (("+lr", "-0.1"), ("@x", "=1+1"))),))
    saved = save_pictures(table, tmp_path / "a.csv")
    assert saved.read_bytes().decode() == "'=name,value\r\n'+lr,-0.1\r\n'@x,'=1+1\r\n"


FULL = """
import resource, sys
from test_saving import LOSS
from looptap.visualizers.surfaces.saving import save_pictures

resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))  # as on a disk that is full
save_pictures(LOSS, sys.argv[1])
"""


@pytest.mark.usefixtures("processes")
@pytest.mark.skipif(sys.platform == "win32", reason="there are no limits of files here")
def test_a_picture_that_cannot_be_written_to_its_end_leaves_the_old_one(tmp_path):
    file = tmp_path / "loss.png"
    file.write_text("the old one")
    found = subprocess.run(
        [sys.executable, "-c", FULL, str(file)], cwd=Path(__file__).parent, capture_output=True, text=True
    )
    assert "File too large" in found.stderr
    assert file.read_text() == "the old one"
    assert [*tmp_path.iterdir()] == [file]


def test_a_link_to_a_picture_stays_a_link(tmp_path):
    (tmp_path / "link.txt").symlink_to("loss.txt")
    save_pictures(LOSS, tmp_path / "link.txt")
    assert (tmp_path / "link.txt").is_symlink()
    assert "of <i>a run</i>" in (tmp_path / "loss.txt").read_text()
