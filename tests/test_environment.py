"""The lists of what to install agree with each other."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONDA_NAMES = {"pytorch": "torch"}


def declared() -> dict[str, Requirement]:
    extras = PROJECT["optional-dependencies"]
    lines = [*PROJECT["dependencies"], *(line for extra in extras.values() for line in extra)]
    found = {canonicalize_name(requirement.name): requirement for requirement in map(Requirement, lines)}
    return {name: requirement for name, requirement in found.items() if name != "rankscope"}  # an extra of our own


def constrained() -> list[Requirement]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("name", sorted(declared()))
def test_each_direct_dependency_is_pinned_within_its_range(name: str) -> None:
    pins = [pin for pin in constrained() if canonicalize_name(pin.name) == name]
    assert pins, f"constraints.txt lacks {name}"
    for pin in pins:
        (clause,) = pin.specifier
        assert clause.operator == "=="
        version = Version(clause.version)
        assert version in declared()[name].specifier
        assert version.local is None, "any build of that version will do"


def test_conda_asks_for_what_the_project_declares() -> None:
    text = (ROOT / "environment.yml").read_text()
    ranges = dict(re.findall(r"^  - (\w+)(>=[\d.]+)$", text, re.MULTILINE))
    assert ranges.pop("python") == PROJECT["requires-python"]
    assert {"pytorch", "jupyterlab", "ipywidgets", "matplotlib", "nbval"} == ranges.keys()
    for name, wanted in ranges.items():
        assert str(declared()[CONDA_NAMES.get(name, name)].specifier) == wanted
