"""House rules: imports between folders, docstrings, names, sizes, paths."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from places import PACKAGE, ROOMS, ROOT
from trees import tree_of

import looptap

MAY_IMPORT = {
    "streams": {"numpy", "msgspec"},
    "protocol": {"streams", "msgspec", "zmq", "platformdirs", "numpy", "yaml"},
    "store": {"streams", "protocol", "msgspec", "numpy"},
    "agent": {"streams", "protocol", "store", "msgspec", "zmq", "numpy", "cloudpickle", "psutil"},
    "client": {"streams", "protocol", "store", "msgspec", "zmq", "numpy", "cloudpickle"},
    "visualizers": {
        *("streams", "client", "numpy", "tsdownsample", "PIL"),
        *("matplotlib", "plotly", "plotext", "rich", "anywidget", "ipywidgets", "traitlets", "IPython", "tornado"),
    },
    "cli": {"client", "visualizers", "store", "streams", "protocol", "msgspec", "typer", "rich", "textual"},
    "integrations": {"agent", "streams", "transformers", "accelerate", "keras"},  # an adapter each
    "training": {"streams", "numpy"},
    "examples": {"looptap", "training", "torch", "numpy"},
}
"""What each folder may import besides the standard library and itself; `looptap` is the facade."""

ON_DEMAND = {
    "streams": {"pandas", "pyarrow"},  # Stream.to_pandas, Stream.to_arrow
    "store": {"pyarrow"},  # StoredStream.to_parquet
    "client": {"prometheus_client", "opentelemetry", "wandb", "mlflow", "trackio", "tensorboard"},  # a sink each
    "protocol": {"torch"},  # a tensor arrives as a tensor where torch is at hand
    "cli": {"examples", "training", "integrations"},  # looptap demo; the guess of progress; looptap run
    "integrations": {"torch", "sitecustomize", "training"},  # of the job; the estimate of a framework's training
    "visualizers": {"pandas", "rich"},  # Plot.summary
    "training": {"torch"},
}
"""What a folder may import besides, inside a function only."""

STREAMS_OF_TRAINING = {
    "control",  # the declaration of what can be set
    "errors",
    "durations",  # durations in words
    "untouched",  # running a model without a trace is needed on both sides, and is written once
    "module_state",
    "random_state",  # so are random numbers that are put back
    "loop_place",  # where a loop stands is looked up by the hooks of a script, too, and written once
    "loop_observer",  # what an agent calls on what it exposes, without either knowing the other
    "forwarding",  # a wrong argument is reported by the name of the object that users know
}
"""What a training system may import of `streams`: modules that know neither queries nor streams nor agents."""

MAX_LINES = 450  # a sign, not a fence: a module that is one idea is better than two halves
MAX_DOCSTRING_LINE_CHARACTERS = 79
"""Of the first line, without its quotes and indentation."""

UNUSUAL_WORDS = re.compile(r"(?<![^\W_])(told|nobody|somebody|anew|whoever|goes[ _]on)(?![^\W_])", re.IGNORECASE)
"""Words with a shorter or more usual one in texts and names: reported, unused, another user, again, continues."""

WITH_UNUSUAL_WORDS = ("tests/house/test_house.py", "tests/protocol/transcripts/record.py")
"""Files that need them: this one, and a name that recorded transcripts have."""

MODULES = sorted(PACKAGE.rglob("*.py"))
"""Every module of looptap."""
SOURCES = sorted(
    {*MODULES, *(path for name in ("tests", "benchmarks", "docs") for path in (ROOT / name).rglob("*.py"))}
)
"""Every Python file of the repository."""


@dataclass(frozen=True)
class Import:
    target: str
    """A folder of ours, `looptap` for the facade, or the top-level name of another package."""
    line: int
    at_import: bool
    """False inside a function or below `if TYPE_CHECKING:`."""
    typing_only: bool


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements in a node, without going through expressions."""
    return (n for n in ast.iter_child_nodes(node) if isinstance(n, ast.stmt | ast.excepthandler | ast.match_case))


def all_statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield a module and all its statements."""
    yield tree
    for node in statements(tree):
        yield from all_statements(node)


def targets(module: str, names: list[str]) -> Iterator[str]:
    """Yield what `import module` or `from module import names` reaches."""
    top, *below = module.split(".")
    if top != "looptap":
        yield top
    elif below:
        yield below[0] if below[0] in ROOMS else "looptap"
    else:
        yield from (name if name in ROOMS else "looptap" for name in names or [""])


def imports(tree: ast.AST, package: list[str]) -> Iterator[Import]:
    """Yield all imports of a module of ``package`` (its name in parts), resolved."""

    def walk(node: ast.AST, inside: bool, typing_only: bool) -> Iterator[Import]:
        found: list[str] = []
        if isinstance(node, ast.Import):
            found = [target for alias in node.names for target in targets(alias.name, [])]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            name = ".".join([*base, *filter(None, [node.module])])
            found = list(targets(name, [alias.name for alias in node.names]))
        for target in found:
            yield Import(target, node.lineno, not inside and not typing_only, typing_only)
        inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        guarded = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for child in statements(node):
            yield from walk(child, inside, typing_only or (guarded and child not in node.orelse))

    yield from walk(tree, False, False)


def dotted(path: Path) -> list[str]:
    """Return the package that a module of a folder belongs to, in parts."""
    return ["looptap", *path.relative_to(PACKAGE).parent.parts]


def forbidden(folder: str, found: Import) -> bool:
    """Return True for an import that the tables do not allow at this place."""
    if found.target == folder or found.target in sys.stdlib_module_names:
        return False
    if found.target in MAY_IMPORT[folder]:
        return False
    if found.typing_only and found.target not in {*ROOMS, "looptap"}:
        return False
    return found.at_import or found.target not in ON_DEMAND.get(folder, set())


@pytest.mark.parametrize("folder", ROOMS)
def test_a_folder_imports_only_what_its_row_of_the_table_allows(folder):
    wrong = [
        f"{path.relative_to(ROOT)}:{found.line} imports {found.target}"
        for path in sorted((PACKAGE / folder).rglob("*.py"))
        for found in imports(tree_of(path), dotted(path))
        if forbidden(folder, found)
    ]
    assert wrong == []


def test_a_training_system_knows_no_queries_and_no_streams():
    found = {
        match
        for path in sorted((PACKAGE / "training").rglob("*.py"))
        for line in re.findall(r"looptap\.streams(?:(?:\.\w+)+| import [\w, ]+)", path.read_text())
        for match in re.findall(r"\w+(?!\w*\.)", line.replace("looptap.streams", "").replace("import", ""))
    }
    assert found <= STREAMS_OF_TRAINING


def test_agent_and_client_never_meet_even_in_the_table():
    assert "client" not in MAY_IMPORT["agent"] | ON_DEMAND.get("agent", set())
    assert "agent" not in MAY_IMPORT["client"] | ON_DEMAND.get("client", set())


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("import looptap.client.run", "client"),
        ("from looptap import client", "client"),
        ("from looptap import Agent", "looptap"),
        ("from looptap.client import run", "client"),
        ("from ..client import run", "client"),
        ("from .. import client", "client"),
        ("from .queries import Query", "agent"),
        ("def f():\n    import looptap.client", "client"),
        ("if TYPE_CHECKING:\n    from looptap.client import Run", "client"),
        ("import torch.nn", "torch"),
    ],
)
def test_the_walk_sees_every_way_to_write_an_import(source, target):
    (found,) = imports(ast.parse(source), ["looptap", "agent"])
    assert found.target == target
    assert forbidden("agent", found) == (target != "agent")


def test_the_facade_imports_eagerly_only_the_standard_library():
    found = imports(tree_of(PACKAGE / "__init__.py"), ["looptap"])
    eager = {one.target for one in found if one.at_import} - set(sys.stdlib_module_names)
    assert eager <= {"looptap"}  # its display in a notebook, which imports nothing


def test_a_public_module_says_what_it_is_in_a_docstring():
    public = [path for path in MODULES if path.stem.startswith("__") or not path.stem.startswith("_")]
    assert [path for path in public if tree_of(path).body and not ast.get_docstring(tree_of(path))] == []


def test_the_first_line_of_a_docstring_is_at_most_79_characters():
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    long = [
        f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}: {line}"
        for path in SOURCES
        for node in all_statements(tree_of(path))
        if isinstance(node, documented)
        and len(line := (ast.get_docstring(node) or "").partition("\n")[0]) > MAX_DOCSTRING_LINE_CHARACTERS
    ]
    assert long == []


def test_texts_and_names_use_usual_words():
    sources = [path for path in SOURCES if str(path.relative_to(ROOT)) not in WITH_UNUSUAL_WORDS]
    lines = ((path, n, text) for path in sources for n, text in enumerate(path.read_text().splitlines(), 1))
    assert [f"{path.relative_to(ROOT)}:{n}: {text}" for path, n, text in lines if UNUSUAL_WORDS.search(text)] == []


def test_a_module_is_at_most_450_lines():
    sizes = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in MODULES}
    assert {name: lines for name, lines in sizes.items() if lines > MAX_LINES} == {}


def in_order(name: str) -> tuple[int, str]:
    """Return a sort key: constants, then classes, then the rest (RUF022)."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


def test_the_names_of_the_facade_are_sorted_and_all_there():
    names = list(looptap.__all__)
    assert names == sorted(names, key=in_order)
    assert [name for name in names if not hasattr(looptap, name)] == []
    assert set(names) <= set(dir(looptap))


def test_a_name_that_the_facade_does_not_have_proposes_the_nearest():
    with pytest.raises(AttributeError, match=r"looptap has no 'atach'\. Did you mean 'attach'\?"):
        _ = looptap.atach


def test_the_stub_of_the_facade_has_a_line_for_each_name_and_nothing_else():
    lines = (PACKAGE / "__init__.pyi").read_text().splitlines()
    line_of_a_name = r"from (\.\w+)+ import (\w+) as \2|from \. import testing as testing|__version__: str"
    wrong = [line for line in lines[1:] if line and not re.fullmatch(line_of_a_name, line)]
    assert wrong == []


@pytest.mark.usefixtures("processes")
def test_a_shell_completes_the_names_of_the_facade_before_they_are_loaded():
    code = (
        "import rlcompleter, looptap; completer = rlcompleter.Completer({'looptap': looptap});"
        "print(completer.complete('looptap.stream_', 0))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("looptap.stream_of")


def tracked() -> list[Path]:
    """Return the files that git tracks or would track; without git, all files."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    except (OSError, subprocess.CalledProcessError):
        return MODULES
    return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


@pytest.mark.usefixtures("processes")
def test_no_file_names_the_path_of_a_machine_or_the_host_of_a_registry():
    homes = r"(?<![\w.>}~-])/(?:home/\w|Users/\w|root/|work/|opt/(?:pypi|wheels))"
    hosts = r"\b(?:pypi|pythonhosted|anaconda|npmjs)\.org|\b(?:download\.pytorch|deb\.debian)\b"
    pattern = re.compile(f"{homes}|{hosts}".encode())
    found = [
        f"{path.relative_to(ROOT)}: {match.group().decode()}"
        for path in tracked()
        if path != Path(__file__).resolve()
        for match in pattern.finditer(path.read_bytes())
    ]
    assert found == []
