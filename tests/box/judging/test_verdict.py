"""What `show` prints and draws, and what the verdict on public logs is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rankscope.box import Profile, bank, verdict
from rankscope.cli import main
from rankscope.cli.tables import overview
from tests.measurements import MEASUREMENTS

CASES = (MEASUREMENTS or Path()).parent / "cases"


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main(list(words)) == 0
    return capsys.readouterr().out.splitlines()


def test_the_first_line_is_the_verdict_and_ten_more_are_enough(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "show", "bank:runpod_a100_2_no_p2p")
    assert lines[0].startswith("· The GPUs of a node communicate through host memory")
    assert len([line for line in lines if line.strip()]) <= 14  # of 80 columns
    assert len(printed(capsys, "show", "bank:runpod_a100_2_no_p2p", "--all")) > len(lines)
    pairs = printed(capsys, "show", "bank:h100_fleet_a_pairs_2x1")
    assert "There is nothing to compare" in pairs[0]
    assert "known or suspected fault: some pairs are far slower" in " ".join(pairs)


def test_every_machine_of_the_bank_can_be_shown_in_full() -> None:
    for name in bank():
        assert len(list(overview(Profile.load(f"bank:{name}"), everything=True))) > 1


def test_show_draws_a_picture(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    picture = tmp_path / "box.svg"
    printed(capsys, "show", "bank:runpod_a100_2_no_p2p", "--picture", str(picture))
    assert picture.read_text().count("<svg") == 1


FIRST = {  # of public logs, what the verdict begins with
    "05_one_nic_no_peers/h100_2x8_one_nic.txt": r"For the 8 GPUs of a node, NCCL uses 1 network card.* 9[34] %",
    "05_one_nic_no_peers/h100_2x8_hca_list.txt": r"For the 8 GPUs of a node, NCCL uses 8 network cards.* 12 %",
    "06_separate_runs/two_nodes_interleaved.txt": r"2 separate runs.*MPI=1",
    "23_formats_of_2026/nccl_tests_version_3.json": r"process 7 \(rank 7 on n1\)",
    "14_compare_two_logs/nccl_2_18.txt": r"There is nothing to compare this machine with",
    "22_small/plateau.txt": r"There is nothing to compare this machine with",
}


@pytest.mark.parametrize("name", FIRST)
def test_a_public_log_has_the_right_verdict(name: str) -> None:
    from rankscope.box import read_log

    if not (CASES / name).exists():
        pytest.skip("the shared cases are not beside this checkout")
    sentence = verdict(read_log(CASES / name)[0])[0]
    assert re.match(FIRST[name], sentence), sentence
