"""Folders that tests name."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
SUPPORT = TESTS / "support"
PACKAGE = ROOT / "src" / "looptap"
ROOMS = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
"""The packages of looptap."""
