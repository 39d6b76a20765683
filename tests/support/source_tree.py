"""Builds of a clean copy of the tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from places import ROOT

START_FILE = "looptap_auto.pth"
"""What Python runs as it starts, in an environment with looptap."""


def copied(tree: Path) -> Path:
    """Copy what a checkout has into ``tree``: no builds, no links, and one test."""
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "CHANGELOG.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    (tree / "tests" / "house").mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "house" / "test_packaging.py", tree / "tests" / "house")
    clean = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so")
    shutil.copytree(ROOT / "src", tree / "src", ignore=clean)
    return tree


def wheel_of(folder: Path, **environment: str) -> tuple[Path, str]:
    """Return a wheel that is built in this environment, and what the build said."""
    tree = folder / "tree"
    tree.mkdir()
    copied(tree)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--quiet", str(tree)]
    done = subprocess.run(build, capture_output=True, text=True, env={**os.environ, **environment})
    assert done.returncode == 0, done.stdout + done.stderr
    return next(tree.glob("dist/*.whl")), done.stdout + done.stderr
