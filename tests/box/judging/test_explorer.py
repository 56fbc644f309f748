"""The panel of a machine of one's own."""

from __future__ import annotations

from pathlib import Path

from rankscope.box import Profile
from rankscope.box.judging.explorer import box
from tests.box.logs.logs_made import table
from tests.explorers.cases import svg


def test_a_machine_of_ones_own_is_a_profile_its_file_or_a_log(tmp_path: Path) -> None:
    assert svg(box(Profile.load("bank:h100_8"))) == svg(box("bank:h100_8"))
    log = tmp_path / "h100s.log"
    log.write_text("\n".join(table("all_gather")))
    explorer = box(log)
    assert explorer.at()[:3] == ("yours", "allgather", "64 MiB")
    others = explorer.settings[-1].values
    assert others[1:5] == ("yours", "aws_p5_8", "dgx_h100_8", "h100_2")  # those with the same GPUs first
