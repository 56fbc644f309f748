"""The bank: each machine says where it is from, under a licence that lets us ship it, and can be loaded anywhere."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from rankscope.box import Profile, bank
from rankscope.box.machines import FOLDER, SICK, is_sick, provenances
from rankscope.cli import main
from tests.extents import first_in_test
from tests.tools import make_bank
from tests.tools.make_bank import LICENCES

ROOT = Path(__file__).parents[2]
MEASUREMENTS = ROOT.parent / "shared" / "measurements"
NAMES = sorted(bank())
MOST_BYTES = 2 * 10**6
# Names of each kind that docs/gpu_box.md lists.
LISTED = (
    *("a100_40gb_8", "dgx_h100_8", *(f"{gpu}_{number}" for gpu in ("h100", "b200") for number in (2, 4, 8))),
    *("gb200_4", "l40s_8", "rtx_pro_6000_8", "alps_gh200_2x4", "alps_gh200_2x4_no_plugin"),
    *("runpod_a100_2", "runpod_a100_2_no_p2p", "v100_25gbe_2x1_no_gdr", "aws_p4d_2x8", "rtx5090_4_copies"),
    *("quadro_rtx6000_copies", "v100_pcie_copies", "mi100_copies"),
    *(f"abci_a100_{nodes}x8" for nodes in (1, 2, 4, 8, 16)),
    *(f"abci_v100_{nodes}x4" for nodes in (1, 2, 4, 8, 16, 32)),
)


@pytest.mark.parametrize("name", NAMES)
def test_each_machine_says_where_it_is_from_and_under_which_licence(name: str) -> None:
    profile = Profile.load(f"bank:{name}")
    source = profile.provenance["source"]
    assert re.fullmatch(r"[\w.-]+/[\w.-]+|rankscope", source["repository"])
    assert source["path"]
    assert source["program"]
    assert re.fullmatch(r"[0-9a-f]{40}", source["commit"]) or source["repository"] == "rankscope"
    assert source["licence"] in LICENCES
    assert profile.points
    assert bank()[name] == profile.provenance["name"]
    assert bank()[name].isprintable()
    assert re.fullmatch(r"[a-z0-9_]+", name)
    assert len(name) <= 28


def test_the_bank_has_the_listed_machines_is_small_and_is_shipped() -> None:
    missing = set(LISTED) - set(NAMES)
    assert not missing, f"docs/gpu_box.md lists {sorted(missing)}, which the bank lacks."
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= MOST_BYTES
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["rankscope"]
    package = ROOT / "lib" / "rankscope"
    assert set(FOLDER.iterdir()) <= {path for pattern in patterns for path in package.glob(pattern)}


def test_the_guide_lists_the_bank() -> None:
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
            assert profile.predicted_s(collective, 3 * 2**20) > profile.predicted_s(collective, 2**20) > 0


def test_listing_loads_no_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Profile, "load", lambda path: pytest.fail("loaded"))
    provenances.cache_clear()
    assert len(bank()) >= 40


def test_the_sick_ones_say_so() -> None:
    sick = [name for name, about in provenances().items() if is_sick(about)]
    assert {"runpod_a100_2_no_p2p", "alps_gh200_2x4_no_plugin", "v100_25gbe_2x1_no_gdr"} <= set(sick)
    assert all(len(provenances()[name]["source"]["notes"]) > len(SICK) + 20 for name in sick)
    assert len(NAMES) - len(sick) >= 40


def test_a_name_that_is_not_there_is_refused_in_one_sentence_with_the_nearest_names() -> None:
    with pytest.raises(
        ValueError, match=r"the bank has no 'dgx_h100'. Did you mean dgx_h100_8\? `rankscope bank`"
    ) as caught:
        Profile.load("bank:dgx_h100")
    assert "\n" not in str(caught.value)
    for path in ("bank:../profile", "bank:", "bank:\x1b[31m", "bank:" + "x" * 5000):
        with pytest.raises(ValueError, match="the bank has no"):
            Profile.load(path)


def test_the_command_line_takes_a_name_where_it_takes_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Profile.load("bank:h100_8").save("box.json")
    assert main(["show", "bank:dgx_h100_8"]) == main(["compare", "box.json", "bank:dgx_h100_8"]) == 0
    printed = capsys.readouterr().out
    assert "DGX H100: 8 × H100 80GB HBM3" in printed
    assert "NVIDIA/dgxc-benchmarking" in printed
    assert main(["show", "bank:dgx"]) == 2
    assert "the bank has no 'dgx'. Did you mean dgx_h100_8? `rankscope bank`" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", first_in_test(12, random.Random(4).sample(NAMES, len(NAMES))))
def test_each_machine_can_be_shown(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", f"bank:{name}"]) == 0
    assert bank()[name].split()[0] in capsys.readouterr().out


@pytest.mark.slow
def test_the_bank_needs_neither_torch_nor_scipy() -> None:
    code = "import sys; from rankscope.box import bank; bank(); print({'torch', 'scipy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_the_table_of_the_bank_is_the_bank_and_a_stranger_can_add_his_box(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {name for name, about in provenances().items() if about["source"]["repository"] == make_bank.OURS}
    assert set(make_bank.MACHINES) == set(NAMES) - own
    assert {name: machine.hardware for name, machine in make_bank.MACHINES.items()} == {
        n: bank()[n] for n in NAMES if n not in own
    }
    monkeypatch.setattr(make_bank, "FOLDER", tmp_path)
    box = Profile.load("bank:h100_8")
    provenance = {name: value for name, value in box.provenance.items() if name != "source"}
    mine = Profile(provenance, box.protocol, box.points)
    mine.save(tmp_path / "box.json")
    monkeypatch.setattr(sys, "argv", ["make_bank", "--add", str(tmp_path / "box.json"), "my_8", "8 × H100", "CC0-1.0"])
    make_bank.main()
    added = Profile.load(tmp_path / "my_8.json")
    assert added.points == box.points
    assert added.provenance["source"]["licence"] == "CC0-1.0"
    for words, problem in (
        (("My 8", "8 × H100", "MIT"), "small letters"),
        (("my_8", "8 × H100", "GPL-3.0"), "licence"),
    ):
        with pytest.raises(ValueError, match=problem):
            make_bank.add(str(tmp_path / "box.json"), *words)


@pytest.mark.skipif(not MEASUREMENTS.is_dir(), reason="the published logs are not beside this checkout")
def test_the_bank_is_what_its_command_makes_of_the_published_logs() -> None:
    index = {row["file"]: row for row in json.loads((MEASUREMENTS / "index.json").read_text())}
    for name, machine in make_bank.MACHINES.items():
        assert make_bank.made(MEASUREMENTS, machine, index) == Profile.load(f"bank:{name}"), name
