"""The sentences after the rules: which algorithm to use, copies, noise; and what `show` and `import` print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rankscope.box import Profile, bank, verdict
from rankscope.box.points import Point
from rankscope.box.sentences import fastest
from rankscope.box.tables import overview
from rankscope.cli import main
from tests.box.made import collective, links, profile
from tests.measurements import MEASUREMENTS

CASES = (MEASUREMENTS or Path()).parent / "cases"
SIZES = [1024, 2048, 4096, 8192, 16384]


# ---- which algorithm to use


def used(times: dict[str, float], noise: float = 0.0) -> str:
    """What is said of algorithms that take so many seconds at each size."""
    made = {name: (lambda size, time_s=time_s: time_s) for name, time_s in times.items()}
    return " ".join(fastest(collective(profile(), made, sizes=SIZES, noise=noise)))


def test_an_algorithm_that_is_clearly_faster_is_used() -> None:
    assert "use ring from 1 KiB to 16 KiB." in used({"ring": 1.0, "native": 2.0})
    assert "use swing from 1 KiB to 16 KiB." in used({"ring": 2.0, "swing": 1.0})


def test_no_algorithm_is_used_because_of_noise() -> None:
    """At 4 ranks on 2 cores, "use binomial_tree from 2 KiB" was said of a difference below the spread."""
    said = used({"native": 1.0, "binomial_tree": 0.8}, noise=0.4)
    assert "use native from 1 KiB to 16 KiB." in said
    assert "use any from 1 KiB" in used({"ring": 1.0, "swing": 0.98}, noise=0.2)
    assert "use native" in used({"native": 1.0, "ring": 0.97})
    few = [
        Point("allreduce", 8, (time_s,), (True,), {"algorithm": name}) for name, time_s in (("ring", 1.0), ("a", 9.0))
    ]
    assert "use any" in " ".join(fastest(profile(few)))  # single times have no spread


def test_ranges_of_the_fastest() -> None:
    times = {"ring": lambda size: 1.0 if size < 4096 else 3.0, "swing": lambda size: 2.0}
    made = collective(
        profile(), {**times, "native": lambda size: 2.5 if size < 16384 else 1.98}, sizes=SIZES, noise=0.0
    )
    (said,) = fastest(made)
    assert "ring from 1 KiB to 2 KiB, swing from 4 KiB to 8 KiB, native at 16 KiB" in said
    assert list(fastest(profile(links()))) == []
    assert list(fastest(collective(profile(), {"native": lambda size: 1.0}))) == []


# ---- what the commands print


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


@pytest.mark.skipif(MEASUREMENTS is None, reason="the shared cases are not beside this checkout")
@pytest.mark.parametrize("name", FIRST)
def test_a_public_log_has_the_right_verdict(name: str) -> None:
    from rankscope.box import read_log

    sentence = verdict(read_log(CASES / name)[0])[0]
    assert re.match(FIRST[name], sentence), sentence
