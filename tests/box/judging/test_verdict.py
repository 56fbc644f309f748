"""What `show` prints and draws, and what the verdict on public logs is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rankscope.box import Profile, bank, read_log, verdict
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
    "06_four_200g_cards_fine/a100_2x8.txt": r"As expected: .* 87 % of the 100 GB/s of 4 network cards",
    "09_h100_pcie_bridge/ar.txt": r"Cannot tell: .* 58 % of the 200 GB/s .* 39 % of the 300 GB/s",
    "13_a100_2x4_3gbs/ar.txt": r"Low: .* of 2 network cards",
    "91_alltoall_two_nodes/a2a.txt": r"As expected: all_to_all .* 94 %",
}


@pytest.mark.parametrize("name", FIRST)
def test_a_public_log_has_the_right_verdict(name: str) -> None:
    path = CASES / name
    if not path.is_file():
        pytest.skip("the shared cases are not beside this checkout")
    sentence = verdict(read_log(path)[0])[0]
    assert re.match(FIRST[name], sentence), sentence
