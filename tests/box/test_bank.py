"""The bank: each machine says where it is from, under a licence that lets us ship it, and can be loaded anywhere."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from rankscope.box import Profile, bank, read_log
from rankscope.box.logs import merged
from rankscope.box.machines import FILE
from rankscope.common.files import read_json
from tests.measurements import MEASUREMENTS
from tests.tools import make_bank

ROOT = Path(__file__).parents[2]
NAMES = sorted(bank())


def test_each_machine_says_where_it_is_from_and_under_which_licence() -> None:
    for name in NAMES:
        profile = Profile.load(f"bank:{name}")
        source = profile.provenance["source"]
        assert re.fullmatch(r"[\w.-]+/[\w.-]+|rankscope", source["repository"]), name
        assert source["path"], name
        assert source["program"], name
        assert re.fullmatch(r"[0-9a-f]{40}", source["commit"]) or source["repository"] == "rankscope", name
        assert source["licence"] in make_bank.LICENCES, name
        assert profile.points, name


def test_the_bank_is_shipped_and_the_guide_lists_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["rankscope"]
    package = ROOT / "lib" / "rankscope"
    assert FILE in {path for pattern in patterns for path in package.glob(pattern)}
    assert FILE.stat().st_size < 60_000
    rows = (ROOT / "docs" / "gpu_box.md").read_text().partition("| `bank:` names")[2].partition("\n\n")[0]
    listed = []
    for head, choices, tail in re.findall(r"`([a-z0-9_]+)(?:\{([a-z0-9_,]+)\}([a-z0-9_]*))?`", rows):
        listed += [f"{head}{choice}{tail}" for choice in choices.split(",")]
    assert sorted(listed) == NAMES


def test_four_collectives_of_the_boxes_that_were_measured_with_all_of_them() -> None:
    for name in ("a100_80gb_8", "h100_2", "h100_8", "b200_8", "gb200_4", "l40s_2", "rtx_pro_6000_8"):
        profile = Profile.load(f"bank:{name}")
        for collective in ("allreduce", "allgather", "reduce_scatter", "all_to_all"):
            assert len(profile.select(collective)) == 21
            curve = profile.curve(collective)
            assert curve.seconds(3 * 2**20) > curve.seconds(2**20) > 0


@pytest.mark.slow
def test_the_bank_needs_no_torch() -> None:
    code = "import sys; from rankscope.box import bank; bank(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_stranger_can_add_his_box(tmp_path: Path) -> None:
    box = Profile.load("bank:h100_8")
    provenance = {name: value for name, value in box.provenance.items() if name != "source"}
    Profile(provenance, box.protocol, box.points).save(tmp_path / "box.json")
    file = tmp_path / "bank.json.gz"
    make_bank.add(str(tmp_path / "box.json"), "my_8", "8 × H100", "CC0-1.0", file=file)
    machines = read_json(file, dict[str, Profile])
    assert sorted(machines) == sorted([*NAMES, "my_8"])
    assert machines["my_8"].points == box.points
    assert machines["my_8"].provenance["source"]["licence"] == "CC0-1.0"
    assert machines["h100_8"] == box
    with pytest.raises(ValueError, match="licence"):
        make_bank.add(str(tmp_path / "box.json"), "my_8", "8 × H100", "GPL-3.0", file=file)


@pytest.mark.skipif(MEASUREMENTS is None, reason="the published logs are not beside this checkout")
def test_the_points_of_the_bank_are_those_of_the_published_logs() -> None:
    assert MEASUREMENTS is not None
    rows = json.loads((MEASUREMENTS / "index.json").read_text())
    files = {(row["source_repo"], row["source_path"]): row["file"] for row in rows if "source_path" in row}
    compared = 0
    for name in NAMES:
        profile = Profile.load(f"bank:{name}")
        source = profile.provenance["source"]
        paths = [MEASUREMENTS / files[source["repository"], path] for path in source["path"].split(", ")]
        is_table = paths[0].suffix != ".csv" and "json" not in paths[0].stem
        if not source["program"].startswith(("nccl-tests", "nvbandwidth")) or not is_table:
            continue  # the bank keeps the figures of other programs, which are no longer read
        profiles = [one for path in paths for one in read_log(path)]
        assert set(merged(profiles, name).points) == set(profile.points), name
        compared += 1
    assert compared >= 25
