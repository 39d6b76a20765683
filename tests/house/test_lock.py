"""The lock of `make setup`: each package that it installs, with hashes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "requirements.lock").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def asked() -> dict[str, Requirement]:
    """Return what `make setup` installs, but for torch."""
    extras, left, found = PROJECT["optional-dependencies"], ["test", "loaders"], {}
    texts = list(PROJECT["dependencies"])
    while left:
        texts += extras[left.pop()]
    for text in texts:
        requirement = Requirement(text)
        if requirement.name == PROJECT["name"]:
            texts += [one for extra in requirement.extras for one in extras[extra]]
        elif requirement.name != "torch":
            found[canonicalize_name(requirement.name)] = requirement
    return found


def locked() -> dict[str, list[tuple[Version, int]]]:
    """Return the versions of each package, each with its number of hashes."""
    found: dict[str, list[tuple[Version, int]]] = {}
    for entry in re.split(r"\n(?=[a-z0-9])", LOCK.partition("\n")[2]):
        name, version = re.match(r"([a-z0-9.-]+)==(\S+)", entry).groups()
        found.setdefault(canonicalize_name(name), []).append((Version(version), entry.count("--hash=sha256:")))
    return found


@pytest.mark.parametrize("name", sorted(asked()))
def test_the_lock_has_a_version_that_the_project_accepts(name):
    assert all(asked()[name].specifier.contains(version) for version, _ in locked()[name]), "run `make lock`"


def test_each_version_has_hashes_and_torch_is_left_to_the_index():
    versions = locked()
    assert all(hashes for found in versions.values() for _, hashes in found)
    assert "torch" not in versions
    assert not [name for name in versions if name.startswith(("nvidia-", "cuda-"))]
    assert "://" not in LOCK
