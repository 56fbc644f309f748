"""The lists of what to install agree with each other, and a conda user's environment comes out right."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
CONDA = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def declared() -> dict[str, Requirement]:
    extras = PROJECT["optional-dependencies"]
    lines = [*PROJECT["dependencies"], *(line for extra in extras.values() for line in extra)]
    found = {canonicalize_name(r.name): r for r in map(Requirement, lines)}
    return {name: one for name, one in found.items() if name != "rankscope"}  # an extra of our own


def constrained() -> dict[str, Version]:
    lines = (line.split("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines())
    pins = (line.split("==") for line in lines if line)
    return {canonicalize_name(name): Version(version) for name, version in pins}


def locked() -> dict[str, tuple[Requirement, int]]:
    """Each package of requirements.lock as a requirement, and how many hashes it has."""
    lines = re.split(r"^(?=\w)", (ROOT / "requirements.lock").read_text(), flags=re.M)[1:]
    entries = [(Requirement(entry.partition("\\")[0]), entry.count("--hash=sha256:")) for entry in lines]
    return {canonicalize_name(one.name): (one, hashes) for one, hashes in entries}


def test_each_direct_dependency_is_constrained_and_nothing_else() -> None:
    problems = [
        f"constraints.txt lacks {name}: add {name}==VERSION" for name in declared().keys() - constrained().keys()
    ]
    problems += [
        f"constraints.txt has {name}, which pyproject.toml does not ask for: delete its line, or add it there"
        for name in constrained().keys() - declared().keys()
    ]
    assert not problems, "\n".join(sorted(problems))


@pytest.mark.parametrize("name", sorted(declared()))
def test_constraint_lies_in_the_declared_range(name: str) -> None:
    version = constrained()[name]
    allowed = declared()[name].specifier
    assert version in allowed, f"constraints.txt has {name}=={version}, pyproject.toml asks for {allowed}: change one."
    assert version.local is None, f"constraints.txt has {name}=={version}, a build of its own: write {version.public}."


def test_the_lock_holds_each_constrained_version_and_no_torch() -> None:
    lock, pins = locked(), constrained()
    missing = {name for name in pins if name not in lock}
    assert missing == {"torch"}, (
        f"requirements.lock lacks {sorted(missing)}, and may lack torch alone, whose build is chosen later: make lock"
    )
    for name in pins.keys() - {"torch"}:
        locked_version = lock[name][0].specifier
        assert pins[name] in locked_version, (
            f"requirements.lock has {name}{locked_version}, and constraints.txt {name}=={pins[name]}: make lock"
        )
    of_a_build = [name for name in lock if name.startswith(("nvidia", "cuda", "triton"))]
    assert not of_a_build, (
        f"requirements.lock has {of_a_build}, which a build of torch brings: leave them out in lock.py"
    )


def test_each_locked_package_has_one_version_and_hashes() -> None:
    for name, (requirement, hashes) in locked().items():
        operators = [clause.operator for clause in requirement.specifier]
        assert operators == ["=="], f"requirements.lock has {requirement}, not one version as in a==1.2: make lock"
        assert hashes, f"requirements.lock has {requirement} without a hash, so that nothing checks its file: make lock"
        assert not requirement.url, (
            f"requirements.lock takes {name} from {requirement.url}, not from an index: make lock"
        )


def test_environment_asks_for_the_python_that_the_project_does() -> None:
    wanted = {f"python{PROJECT['requires-python']}", "pip"}
    missing = wanted - {entry for entry in CONDA if isinstance(entry, str)}
    assert not missing, (
        f"environment.yml must list {sorted(missing)} under dependencies, as pyproject.toml asks for it."
    )


@pytest.mark.oracle
@pytest.mark.skipif(os.environ.get("RANKSCOPE_OFFLINE") == "1", reason="RANKSCOPE_OFFLINE=1: asks the package index")
def test_environment_resolves_to_what_is_tested(tmp_path: Path) -> None:
    """conda gives the pip section to pip in a file next to the yml. uv resolves that file in a tenth of pip's time."""
    copy = tmp_path / "copy"
    shutil.copytree(ROOT / "lib", copy / "lib", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ["pyproject.toml", "README.md", "LICENSE", "constraints.txt"]:
        shutil.copy(ROOT / name, copy)
    (of_pip,) = (entry["pip"] for entry in CONDA if isinstance(entry, dict))
    (copy / "requirements.txt").write_text("\n".join(of_pip))
    command = [sys.executable, "-m", "uv", "pip", "compile", "-q", "--no-annotate", "--no-header", "requirements.txt"]
    patient = {"UV_HTTP_TIMEOUT": "120", "UV_HTTP_RETRIES": "12"}  # an index that does not answer now and then
    environment = patient | {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(command, cwd=copy, env=environment, text=True, timeout=600, capture_output=True)
    assert done.returncode == 0, f"What environment.yml gives to pip cannot be resolved: {done.stderr[-4000:]}"
    lines = done.stdout.splitlines()
    assert "-e ." in lines
    versions = dict(line.partition(" ;")[0].split("==") for line in lines if "==" in line)
    assert {name: Version(Version(versions[name]).public) for name in constrained()} == constrained()
