"""docs/architecture.md and its drawing agree with the tree."""

from __future__ import annotations

import builtins
import importlib.util
import re
import sys
from functools import cache

from places import PACKAGE, ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text()
SPEC = importlib.util.spec_from_file_location("architecture_drawing", ROOT / "docs" / "architecture.py")
assert SPEC is not None
assert SPEC.loader is not None
architecture = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = architecture  # dataclasses look their module up
SPEC.loader.exec_module(architecture)


def test_the_drawing_is_what_the_imports_of_the_tree_make_of_it():
    assert architecture.DRAWING.read_text() == architecture.drawing(), "run: make architecture"


def test_the_words_of_a_package_stay_in_its_box():
    assert [box.package for box in (*architecture.BOXES, *architecture.FRAMES) if box.overflows] == []


def test_each_package_has_a_place_in_the_drawing():
    rooms = {frame.package for frame in architecture.FRAMES}
    whole = {frame.package for frame in architecture.FRAMES if frame.words}
    packages = {architecture.package_of(module) for module in architecture.modules()}
    drawn = {box.package for box in architecture.BOXES} | rooms
    assert {package for package in packages if package.split(".")[0] not in whole} - drawn == set()
    assert drawn - packages - rooms == set()


def test_each_step_of_a_value_has_its_number_in_the_drawing():
    assert sorted({number for numbers in architecture.steps().values() for number in numbers}) == list(range(1, 13))


@cache
def words() -> tuple[set[str], set[str]]:
    """Return the classes of the product, and all words of source, tests and Makefile."""
    sources = [path.read_text() for path in architecture.modules().values()]
    sources += [path.read_text() for path in PACKAGE.glob("*.py*")]
    classes = {name for text in sources for name in re.findall(r"^ *class (\w+)", text, re.MULTILINE)}
    for compiled in (PACKAGE / "agent" / "loop" / "tap").glob("*.[ch]"):
        classes |= set(re.findall(r"\"looptap\._tap\.(\w+)\"", compiled.read_text()))
    others = [(ROOT / "Makefile").read_text(), *(path.read_text() for path in (ROOT / "tests").rglob("*.py"))]
    return classes, {word for text in (*sources, *others) for word in re.findall(r"[A-Za-z_]\w+", text)}


def is_there(path: str) -> bool:
    """Return True if a path on the page leads to a file, a module or a folder."""
    return any((folder / name).exists() for folder in (PACKAGE, ROOT) for name in (path, f"{path}.py"))


def test_each_path_on_the_page_exists():
    paths = {span for span in re.findall(r"`([^`\s]+)`", PAGE) if "/" in span or span.endswith((".py", ".md"))}
    links = {f"docs/{link}" for link in re.findall(r"\]\(([^):#]+)", PAGE)}
    assert len(paths) > 60
    assert {path for path in paths | links if not is_there(path)} == set()


def test_each_module_that_the_documentation_names_exists():
    pages = [ROOT / "CONTRIBUTING.md", ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    named = {(page.name, path) for page in pages for path in re.findall(r"`([a-z]+/[\w/]+\.py)`", page.read_text())}
    assert len(named) > 60
    assert {found for found in named if not is_there(found[1]) and not is_there(f"tests/{found[1]}")} == set()


def test_each_name_on_the_page_is_one_of_the_source():
    classes, known = words()
    spans = [span for span in re.findall(r"`([^`]+)`", PAGE) if "/" not in span]
    names = {name for span in spans for name in re.findall(r"[A-Za-z_]\w+", span)}
    assert len(names) > 40
    capitalized = {name for name in names if re.match(r"[A-Z][a-z]", name)}
    assert capitalized - classes - set(dir(builtins)) == set()
    assert names - known == set()


def test_the_page_is_short():
    assert len(PAGE.splitlines()) <= 250
