"""Packaging: wheels contain the folders, each module under one name."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from places import PACKAGE, ROOMS, ROOT
from source_tree import copied, wheel_of

OF_EXTRAS = (
    "psutil", "pandas", "pyarrow", "textual", "tsdownsample", "tornado", "matplotlib", "plotly", "anywidget",
    "ipywidgets", "PIL", "torch",
)  # fmt: skip
"""Packages that a plain installation does not bring."""
HEAVY = ("torch", "matplotlib", "plotly", "pandas", "IPython", "sklearn", "PIL")

IMPORT_ALL = """
import importlib, pkgutil, sys
from pathlib import Path
import looptap
for module in pkgutil.walk_packages(looptap.__path__, "looptap."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
root = Path(looptap.__file__).resolve().parents[2]
loaded = {}
for name, module in sorted(sys.modules.items()):
    path = getattr(module, "__file__", None)
    ours = path and Path(path).is_file() and "site-packages" not in path
    if ours and Path(path).resolve().is_relative_to(root):
        loaded.setdefault(Path(path).resolve(), []).append(name)
"""


def python(code: str, *flags: str, **options) -> str:
    """Return what a fresh interpreter prints; fail with its error output."""
    done = subprocess.run([sys.executable, *flags, "-c", code], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def shipped(folder: Path) -> set[str]:
    """Return every file of a package folder as its path in the wheel."""
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {f"looptap/{folder.name}/{path}" for path in found if "__pycache__" not in path.parts}


@pytest.fixture(scope="module")
def built(processes, tmp_path_factory):
    """Build the sdist, and the wheel from it, of a clean copy of the tree."""
    tree = copied(tmp_path_factory.mktemp("tree"))
    build = [sys.executable, "-m", "build", "--no-isolation", "--quiet", str(tree)]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(tree.glob("dist/*.tar.gz")), next(tree.glob("dist/*.whl"))


@pytest.fixture(scope="module")
def wheel(built):
    return zipfile.ZipFile(built[1])


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Return a folder that holds looptap as pip would install it."""
    target = tmp_path_factory.mktemp("site")
    wheel.extractall(target)
    return target


def test_the_links_beside_pyproject_lead_to_three_rooms():
    links = {path.name: path.readlink() for path in ROOT.iterdir() if path.is_symlink()}
    assert links == {name: Path("src/looptap") / name for name in ("agent", "client", "visualizers")}


@pytest.mark.parametrize("room", ROOMS)
def test_the_wheel_holds_exactly_the_files_of_each_room(wheel, room):
    inside = {name for name in wheel.namelist() if name.startswith(f"looptap/{room}/")}
    assert inside == shipped(PACKAGE / room)


def test_the_wheel_holds_the_facade_and_its_type_marker(wheel):
    own = {path.name for path in PACKAGE.iterdir() if path.is_file() and path.suffix != ".so"}
    inside = {name.removeprefix("looptap/") for name in wheel.namelist() if name.count("/") == 1}
    assert "py.typed" in own
    assert own <= inside


def test_the_wheel_brings_one_top_level_name_and_the_file_that_reads_looptap_auto(wheel):
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"looptap", "looptap_auto.pth"}


def test_the_sdist_holds_all_that_the_wheel_is_made_of(built, wheel):
    with tarfile.open(built[0]) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    sources = {f"src/{name}" for name in wheel.namelist() if name.startswith("looptap/") and not name.endswith(".so")}
    assert sources | {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "src/looptap_auto.pth"} <= names
    assert {name.split("/")[0] for name in names} <= {path.name for path in ROOT.iterdir()} | {"PKG-INFO", "setup.cfg"}
    assert not any(name.startswith("tests") for name in names)  # setuptools would take some of their files


def test_the_wheel_holds_the_notebook_page_and_third_party_licences(wheel):
    static = {Path(name).name for name in wheel.namelist() if "/pages/static/" in name}
    assert static >= {"stub.js", "chart.js", "chart.css", "uPlot.iife.min.js", "uPlot.min.css", "uPlot.LICENSE"}


def test_an_installed_wheel_imports_without_the_source_tree(installed, tmp_path):
    code = f"import sys; sys.path.insert(0, {str(installed)!r}); import looptap.agent as a; print(a.__file__)"
    place = python(code, cwd=tmp_path).strip()
    assert Path(place).is_relative_to(installed)


WHICH = "from looptap.streams.native.compiled import which_tap; print(which_tap())"


def which(wheel: Path, tmp_path: Path) -> str:
    """Return which tap an installed wheel runs."""
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    first = f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r})"
    code = f"{first}; {WHICH}; import looptap; print(looptap.__file__)"
    environment = {name: value for name, value in os.environ.items() if name != "LOOPTAP_PURE"}
    runs, place = python(code, cwd=tmp_path, env=environment).splitlines()
    assert Path(place).is_relative_to(tmp_path)
    return runs


@pytest.mark.usefixtures("processes")
def test_without_a_compiler_the_tap_is_left_out_and_all_else_is_there(tmp_path):
    wheel, said = wheel_of(tmp_path, CC="no-compiler-here", LOOPTAP_PURE="0")
    assert "error" not in said.lower()
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]
    assert which(wheel, tmp_path) == "pure Python"


@pytest.mark.usefixtures("processes")
def test_a_pure_wheel_suits_any_machine(tmp_path):
    wheel, _ = wheel_of(tmp_path, LOOPTAP_PURE="1")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert which(wheel, tmp_path) == "pure Python"


def test_the_wheel_has_the_tap_where_a_compiler_is(built, tmp_path):
    if shutil.which("cc") is None or os.environ.get("LOOPTAP_PURE", "0") not in ("", "0"):
        pytest.skip("no compiler here, or none wanted")
    assert which(built[1], tmp_path) == "compiled tap"


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("readelf") is None, reason="reads ELF files with readelf")
def test_the_tap_is_hardened_and_knows_no_folder_of_this_machine(built, tmp_path):
    if shutil.which("cc") is None or os.environ.get("LOOPTAP_PURE", "0") not in ("", "0"):
        pytest.skip("no compiler here, or none wanted")
    with zipfile.ZipFile(built[1]) as files:
        name = next(one for one in files.namelist() if one.startswith("looptap/_tap"))
        tap = files.extract(name, tmp_path)
    facts = subprocess.run(["readelf", "-dlW", "--dyn-syms", tap], check=True, capture_output=True, text=True).stdout
    assert "RUNPATH" not in facts
    assert "RPATH" not in facts
    assert "GNU_RELRO" in facts
    assert "BIND_NOW" in facts
    assert "__stack_chk_fail" in facts
    assert "_chk@" in facts  # a function that _FORTIFY_SOURCE checks


def test_the_wheel_requires_nine_light_packages(wheel):
    metadata = next(wheel.read(name).decode() for name in wheel.namelist() if name.endswith("METADATA"))
    needs = [line for line in metadata.splitlines() if line.startswith("Requires-Dist:")]
    always = {re.split(r"[^\w-]", line.split()[1])[0] for line in needs if "extra ==" not in line}
    assert always == {"pyzmq", "msgspec", "numpy", "cloudpickle", "platformdirs", "typer", "rich", "pyyaml", "plotext"}


@pytest.mark.usefixtures("processes")
def test_every_module_is_loaded_once_and_by_the_name_of_the_package():
    code = IMPORT_ALL + "print(list(loaded.values()))"
    loaded = ast.literal_eval(python(code, cwd=ROOT))
    assert [names for names in loaded if len(names) > 1] == []
    assert {name.split(".")[0] for names in loaded for name in names} == {"looptap"}


@pytest.mark.usefixtures("processes")
def test_an_agent_and_a_client_need_no_package_of_an_extra(directory):
    program = f"""
import sys
sys.modules.update(dict.fromkeys({OF_EXTRAS!r}))
import looptap
with looptap.Agent("plain") as agent, looptap.attach("plain") as run:
    loss = run.stream("loss", on="batch")
    agent.emit("batch", loss=0.5)
    print(loss.wait(1), run.config.commit is not None)
"""
    assert python(program).startswith("[0.5]")


@pytest.mark.usefixtures("processes")
def test_a_long_curve_in_a_terminal_needs_no_package_of_an_extra():
    program = f"""
import sys
sys.modules.update(dict.fromkeys({OF_EXTRAS!r}))
import looptap
from looptap.testing import pair
from looptap.visualizers.drawing.backends.with_text import all_as_text
agent, run = pair("plain")
loss = run.stream("step, loss", on="batch", buffer=100_000)
for step in range(20_000):
    agent.emit("batch", step=step, loss=1.0 if step < 10_000 else 0.0)
plot = looptap.plot(loss)
plot.pull()
print(all_as_text(plot.pictures(), 60, 20, color=False))
"""
    rows = python(program).splitlines()
    assert rows[0] == "step, loss"
    assert [len(re.findall("[⠀-⣿]", row)) > 20 for row in (rows[2], rows[-4])] == [True, True], rows


@pytest.mark.usefixtures("processes")
def test_importing_looptap_loads_nothing_heavy():
    assert python(f"import sys, looptap; print([m for m in {HEAVY!r} if m in sys.modules])").strip() == "[]"


@pytest.mark.usefixtures("processes")
def test_a_listing_and_a_client_load_neither_asyncio_nor_what_reads_files_or_compiles_queries():
    unneeded = ["asyncio", "sqlite3", "looptap.store.reader", "looptap.streams.language.compiler"]
    code = f"import sys, looptap.cli.commands.watching.ls; print([m for m in {unneeded!r} if m in sys.modules])"
    assert python(code).strip() == "[]"


@pytest.mark.usefixtures("processes")
def test_a_type_checker_sees_the_packages_of_an_editable_install(tmp_path):
    snippet = tmp_path / "snippet.py"
    snippet.write_text(
        "import looptap.agent\n"
        "from looptap.protocol.limits import Limits\n"
        "reveal_type(Limits(clients=2).clients)\n"
        'Limits(clients="two")\n'
    )
    config = tmp_path / "mypy.ini"
    others = "numpy.*,torch.*,zmq.*,looptap.agent.agent,looptap.client.*,looptap.store.*,looptap.streams.*"
    others += ",looptap.visualizers.*"  # what the facade names, and this does not use
    config.write_text(f"[mypy]\n[mypy-{others}]\nfollow_imports = skip\nfollow_imports_for_stubs = True\n")
    command = [sys.executable, "-m", "mypy", "--config-file", str(config), "--cache-dir", str(tmp_path)]
    done = subprocess.run([*command, "snippet.py"], capture_output=True, text=True, cwd=tmp_path)
    assert 'Revealed type is "int"' in done.stdout.replace("builtins.", ""), done.stdout + done.stderr
    assert 'incompatible type "str"; expected "int"' in done.stdout
    assert "Found 1 error" in done.stdout
