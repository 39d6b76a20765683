"""Draws docs/architecture.svg from the imports of the tree. `make architecture`.

The places of the boxes are given here; the arrows are found. An arrow is an import between two packages, lazy and
type-only imports included, unless a longer path of arrows already says it. The numbers are the steps of "Life of a
value" in docs/architecture.md. tests/docs/test_architecture_page.py compares the drawing with the tree.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from textwrap import wrap

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "looptap"
PAGE = ROOT / "docs" / "architecture.md"
DRAWING = ROOT / "docs" / "architecture.svg"
FOUNDATION = ("protocol", "store", "streams")
"""Rooms that all others import: arrows into them from outside are not drawn."""

WIDTH, HEIGHT = 900, 932
TOP_PIXELS, ROW_PIXELS = 40, 80
FIRST_LINE_PIXELS, LINE_PIXELS = 34, 13
"""From the upper edge of a box to the first line of its words, and from line to line."""
CHARACTER_PIXELS = 5.8
"""The average width of a character of the words in a box."""
COLUMNS = {"training thread": (8, 268), "I/O thread": (284, 268), "client process": (560, 332)}
A, B, C = (x for x, _ in COLUMNS.values())


@dataclass(frozen=True)
class Box:
    """A package, its place, and the words below its name."""

    package: str
    x: float
    row: float
    width: float
    words: str
    height: float = 56

    @property
    def y(self) -> float:
        """The upper edge."""
        return TOP_PIXELS + self.row * ROW_PIXELS

    @property
    def middle(self) -> tuple[float, float]:
        """The centre."""
        return self.x + self.width / 2, self.y + self.height / 2

    @property
    def lines(self) -> list[str]:
        """The words as they are broken."""
        return wrap(self.words, int((self.width - 14) / CHARACTER_PIXELS))

    @property
    def overflows(self) -> bool:
        """True if the words leave the box."""
        return bool(self.words) and FIRST_LINE_PIXELS + LINE_PIXELS * len(self.lines) - 9 > self.height


FRAMES = [
    Box("training", A + 6, 0.05, 256, "", 147),
    Box("integrations", B + 6, 0.05, 256, "scripts, frameworks and trackers", 48),
    Box("agent", A + 6, 1.95, 532, "", 542),
    Box("cli", C + 6, 0.05, 320, "", 88),
    Box("visualizers", C + 6, 1.95, 320, "", 170),
    Box("client", C + 6, 4.35, 320, "", 289),
    Box("protocol", A + 6, 8.98, 256, "messages, codec, keys, connection files, limits, errors", 62),
    Box("store", B + 6, 8.98, 256, "the SQLite file of a run: writer, reader, exports", 62),
    Box("streams", A + 6, 9.92, 876, "", 88),
]
"""The rooms, around their packages."""
BOXES = [
    Box("training.progress", A + 14, 0.3, 116, "the time left", 38),
    Box("training.echoing", A + 138, 0.3, 116, "data, used again", 38),
    Box("training.selection", A + 14, 0.83, 116, "what to train on", 38),
    Box("training.sampling", A + 138, 0.83, 116, "order and losses", 38),
    Box("training.prioritized", A + 14, 1.36, 116, "what moves a loss", 38),
    Box("agent", A + 14, 2.22, 240, "Agent: emit, expose, stream, control; opening and closing"),
    Box("agent.control", A + 14, 3.35, 240, "commands: validated on the I/O thread, applied inside emit"),
    Box("agent.queries", A + 14, 4.48, 240, "code of clients, compiled and attached to event types"),
    Box("agent.loop", A + 14, 5.61, 240, "event types, attached queries, overhead budget"),
    Box("agent.server", B + 14, 2.22, 240, "what is answered: sessions, subscriptions, declared streams"),
    Box("agent.run", B + 14, 3.35, 240, "identity, advertisement, history and end of a run"),
    Box("agent.machine", B + 14, 4.48, 240, "processors, memory, disks, network and devices, read while asked"),
    Box("agent.scalars", B + 14, 5.61, 240, "the numbers that events carry, from the first one on"),
    Box("agent.io", B + 14, 7.0, 240, "reactor, sockets, authenticator"),
    Box("agent.handoff", A + 150, 7.9, 252, "value queue, history, wakeup: the only objects that both threads touch"),
    Box("cli.top", C + 14, 0.32, 96, "the screen"),
    Box("cli.commands", C + 118, 0.32, 96, "a module a verb"),
    Box("cli.demo", C + 222, 0.32, 96, "jobs to try"),
    Box("visualizers.surfaces", C + 14, 2.22, 144, "window, page, file, terminal, notebook"),
    Box("visualizers", C + 178, 2.221, 140, "Plot and its cells"),
    Box("visualizers.charts", C + 170, 3.25, 148, "kinds, and which one is chosen"),
    Box("visualizers.drawing", C + 82, 3.25, 80, "pictures"),
    Box("visualizers.data", C + 14, 3.25, 60, "numbers"),
    Box("client.guard", C + 222, 4.62, 96, "rules over many runs"),
    Box("client", C + 118, 4.62, 96, "attach, Run"),
    Box("client.sinks", C + 10, 5.8, 68, "into others"),
    Box("client.control", C + 90, 5.8, 68, "set, stop"),
    Box("client.ranks", C + 170, 5.8, 68, "several ranks"),
    Box("client.streams", C + 250, 5.8, 68, "live streams"),
    Box("client.transport", C + 14, 7.0, 96, "links and reconnects"),
    Box("client.session", C + 118, 7.0, 200, "requests, replies, callbacks"),
    Box("client.directory", C + 14, 4.621, 96, "which runs there are"),
    Box("streams.stream", A + 10, 10.2, 66, "buffer, readers"),
    Box("streams.loop", A + 82, 10.2, 52, "its place"),
    Box("streams.columns", A + 140, 10.2, 72, "typed arrays"),
    Box("streams.language", A + 218, 10.2, 76, "words of queries"),
    Box("streams.operators", A + 300, 10.2, 80, "stages"),
    Box("streams.proving", A + 386, 10.2, 68, "checks of each step"),
    Box("streams.harmless", A + 460, 10.2, 74, "harmless things"),
    Box("streams.aggregations", A + 540, 10.2, 100, "reducers"),
    Box("streams.values", A + 646, 10.2, 62, "copies, helpers"),
    Box("streams.preserving", A + 714, 10.2, 86, "modes, put back"),
    Box("streams.native", A + 806, 10.2, 72, "compiled"),
]
LEGEND = [
    (C + 14, 8.22, "Arrow: imports. Dashed: against the order of the rows."),
    (C + 14, 8.42, "Number: a step in the life of a value, section 2."),
    (C + 14, 9.25, "Everything above imports protocol, store or streams;"),
    (C + 14, 9.45, "those arrows are left out."),
]
SOCKET = ("agent.io", "client.transport", "CURVE socket")


@cache
def modules() -> dict[str, Path]:
    """Return every module of the rooms by its dotted name below `looptap`."""
    rooms = {frame.package for frame in FRAMES}
    paths = sorted(path for room in rooms for path in (PACKAGE / room).rglob("*.py"))
    parts = {path: path.relative_to(PACKAGE).with_suffix("").parts for path in paths}
    return {".".join(names[:-1] if names[-1] == "__init__" else names): path for path, names in parts.items()}


def package_of(module: str) -> str:
    """Return the box of a module: the first two parts of its package."""
    package = module if modules()[module].name == "__init__.py" else module.rpartition(".")[0]
    return ".".join(package.split(".")[:2])


IMPORT = re.compile(
    r"^[ ]*from (?P<package>looptap\.[\w.]+) import (?P<names>\([^)]*\)|.*)"
    r"|^[ ]*import (?P<module>looptap\.[\w.]+)"
    r"|import_module\(\s*\"(?P<lazy>looptap\.[\w.]+)\"",
    re.MULTILINE,
)
"""Matches an import of ours in the text, in a tenth of the time of a parse."""


def imported(path: Path) -> Iterator[str]:
    """Yield the modules of ours that a module imports, wherever in it."""
    for found in IMPORT.finditer(path.read_text()):
        package = found["package"] or found["module"] or found["lazy"]
        yield package
        yield from (f"{package}.{name}" for name in re.findall(r"\w+", found["names"] or ""))


def imports() -> dict[str, set[str]]:
    """Return which boxes import which: packages in a room, and rooms across.

    The foundation is left out. A module that lies in a room itself and imports nothing of it serves all its packages,
    and is in no box.
    """
    drawn = {box.package for box in BOXES}
    reached = {
        module: {name for found in imported(path) if (name := found.removeprefix("looptap.")) in modules()}
        for module, path in modules().items()
    }
    serving = {
        module
        for module, targets in reached.items()
        if module.count(".") == 1 and not any(target.split(".")[0] == module.split(".")[0] for target in targets)
    }
    found: dict[str, set[str]] = defaultdict(set)
    for module, targets in reached.items():
        for target in targets - serving:
            here, there = package_of(module), package_of(target)
            room, other = here.partition(".")[0], there.partition(".")[0]
            if room != other and other not in FOUNDATION:
                found[f"room {room}"].add(f"room {other}")
            elif room == other and here != there and {here, there} <= drawn:
                found[here].add(there)
    return found


def reaches(graph: dict[str, set[str]], start: str, end: str) -> bool:
    """Return whether more than one arrow leads from a box to another."""
    seen, ahead = {start}, [there for there in graph[start] if there != end]
    while ahead:
        here = ahead.pop()
        if end in graph[here]:
            return True
        if here not in seen:
            seen.add(here)
            ahead += graph[here]
    return False


def places() -> dict[str, Box]:
    """Return the boxes and frames by the names that arrows use."""
    return {box.package: box for box in BOXES} | {f"room {frame.package}": frame for frame in FRAMES}


def arrows() -> list[tuple[str, str]]:
    """Return the imports that no longer path implies, all those upwards among them."""
    row = {name: box.row for name, box in places().items()}
    found = imports()
    down = {here: {there for there in found.get(here, ()) if row[there] >= row[here]} for here in row}
    up = [(here, there) for here, targets in found.items() for there in targets if row[there] < row[here]]
    kept = [(here, there) for here in down for there in down[here] if not reaches(down, here, there)]
    return sorted([*kept, *up])


def steps() -> dict[str, list[int]]:
    """Return the steps of "Life of a value" in each package, by a row's first path."""
    found: dict[str, list[int]] = defaultdict(list)
    section = PAGE.read_text().partition("## 2. ")[2].partition("\n## ")[0]
    packages = {box.package for box in (*BOXES, *FRAMES)}
    for number, row in re.findall(r"^\| (\d+) \|(.+)", section, re.MULTILINE):
        for path in re.findall(r"`([a-z_]+(?:/\w+)+)", row.split("|")[2]):
            parts = path.split("/")
            package = next(name for name in (".".join(parts[:2]), parts[0]) if name in packages)
            if int(number) not in found[package]:
                found[package].append(int(number))
    return found


STYLE = """
text { font: 11px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #4b5563 }
.name { font: 600 12px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #111827 }
.head { font-size: 15px; font-weight: 600; fill: #111827 }
.room { font-size: 12px; font-weight: 600; fill: #6b7280 }
.ground { fill: #ffffff } .column { fill: #f3f4f6 } .frame { fill: none; stroke: #c4c9d1 }
.box { fill: #ffffff; stroke: #9ca3af } .both { fill: #fff4e0; stroke: #d08700 }
.arrow { fill: none; stroke: #6b7280; stroke-width: 1.3 } .up { stroke-dasharray: 3 3 } #tip { fill: #6b7280 }
.wire { fill: none; stroke: #d08700; stroke-width: 3 } .label { fill: #9a6300; font-weight: 600 }
.step { fill: #1d4ed8 } .number { fill: #ffffff; font-size: 10px; font-weight: 600 }
@media (prefers-color-scheme: dark) {
text { fill: #b4bcc8 } .name, .head { fill: #f3f4f6 } .room { fill: #9aa4b2 }
.ground { fill: #0d1117 } .column { fill: #161b22 } .frame { stroke: #3d4552 }
.box { fill: #21262d; stroke: #596273 } .both { fill: #3a2c0c; stroke: #d08700 }
.arrow { stroke: #8b95a5 } #tip { fill: #8b95a5 } .label { fill: #f0b84d }
.step { fill: #3b82f6 } .number { fill: #ffffff }
}
"""


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    """Return a line of text."""
    style = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}"{style} text-anchor="{anchor}">{escape(words)}</text>'


def rect(box: Box, kind: str) -> str:
    """Return the outline of a box."""
    size = f'x="{box.x:g}" y="{box.y:g}" width="{box.width:g}" height="{box.height:g}"'
    return f'<rect {size} rx="6" class="{kind}"/>'


def drawn_box(box: Box, numbers: list[int]) -> Iterator[str]:
    """Yield a package: its name, what it is, and the steps that a value takes in it."""
    room, _, name = box.package.partition(".")
    yield rect(box, "both" if box.package == "agent.handoff" else "box")
    yield text(box.x + 8, box.y + 18, name or room, "name")
    for line, words in enumerate(box.lines):
        yield text(box.x + 8, box.y + FIRST_LINE_PIXELS + LINE_PIXELS * line, words)
    for place, number in enumerate(reversed(numbers)):
        x, y = box.x + box.width - 2 - 18 * place, box.y
        yield f'<circle cx="{x:g}" cy="{y:g}" r="8.5" class="step"/>'
        yield text(x, y + 3.5, str(number), "number", "middle")


def drawn_frame(frame: Box, numbers: list[int]) -> Iterator[str]:
    """Yield a room: a frame with its name, and its words if no package is drawn."""
    if frame.words:
        yield from drawn_box(frame, numbers)
    else:
        yield rect(frame, "frame")
        yield text(frame.x + 8, frame.y + 15, frame.package, "room")


def arrow(here: Box, there: Box) -> str:
    """Return a curve from one box to the nearest side of the other."""
    (x, y), (to_x, to_y) = here.middle, there.middle
    if round(here.row, 1) == round(there.row, 1):
        sign = 1 if to_x > x else -1
        start, end = (x + sign * here.width / 2, y), (to_x - sign * there.width / 2, to_y)
        bend = (start[0] + end[0]) / 2
        path = f"M{start[0]:g},{start[1]:g} C{bend:g},{start[1]:g} {bend:g},{end[1]:g} {end[0]:g},{end[1]:g}"
    else:
        sign = 1 if to_y > y else -1
        left, right = max(here.x, there.x) + 8, min(here.x + here.width, there.x + there.width) - 8
        if left < right and sign > 0:
            x = to_x = (left + right) / 2
        elif left < right:
            x = to_x = right
        else:
            to_x = min(max(x, there.x + 12), there.x + there.width - 12)
            x = min(max(to_x, here.x + 12), here.x + here.width - 12)
        start, end = (x, y + sign * here.height / 2), (to_x, to_y - sign * there.height / 2)
        bend = (start[1] + end[1]) / 2
        path = f"M{start[0]:g},{start[1]:g} C{start[0]:g},{bend:g} {end[0]:g},{bend:g} {end[0]:g},{end[1]:g}"
    kind = "arrow up" if there.row < here.row else "arrow"
    return f'<path d="{path}" class="{kind}" marker-end="url(#head)"/>'


def drawing() -> str:
    """Return the whole drawing as SVG."""
    boxes = places()
    numbers = steps()
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
        ' role="img" aria-label="Packages of looptap in three columns: training thread, I/O thread, client process">',
        f"<style>{STYLE}</style>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path id="tip" d="M0,0.5 L8,4 L0,7.5 z"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" class="ground"/>',
    ]
    bottom = min(frame.y for frame in FRAMES if frame.package in FOUNDATION) - 14
    for name, (x, width) in COLUMNS.items():
        parts.append(f'<rect x="{x}" y="8" width="{width}" height="{bottom - 8:g}" rx="8" class="column"/>')
        parts.append(text(x + width / 2, 30, name, "head", "middle"))
    for frame in FRAMES:
        parts += drawn_frame(frame, numbers.get(frame.package, []))
    parts += [arrow(boxes[here], boxes[there]) for here, there in arrows()]
    near, far = (boxes[name] for name in SOCKET[:2])
    y = near.middle[1]
    parts.append(f'<path d="M{near.x + near.width:g},{y:g} H{far.x:g}" class="wire"/>')
    for box in BOXES:
        parts += drawn_box(box, numbers.get(box.package, []))
    parts.append(text((near.x + near.width + far.x) / 2, y - 44, SOCKET[2], "label", "middle"))
    parts += [text(x, TOP_PIXELS + row * ROW_PIXELS, words) for x, row, words in LEGEND]
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    DRAWING.write_text(drawing())
