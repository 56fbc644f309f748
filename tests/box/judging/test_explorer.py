"""The panel of a machine of one's own: a profile, its file, and a log."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankscope.box import Profile
from rankscope.box.judging.explorer import box
from tests.box.logs.logs_made import printed, table
from tests.explorers.cases import report, svg


def test_a_machine_of_ones_own_is_a_profile_its_file_or_a_log(tmp_path: Path) -> None:
    sick = Profile.load("bank:runpod_a100_2_no_p2p")
    made = box(sick)
    assert svg(made) == svg(box(sick.save(tmp_path / "sick.json")))
    assert report(made) == report(box(), machine="runpod_a100_2_no_p2p")
    rows = printed("all_reduce", 8, [2**power for power in range(10, 31, 2)])
    log = tmp_path / "h100s.log"
    log.write_text("\n".join(table(rows=rows)))
    explorer = box(log)
    (of_64_mib,) = [row for row in rows if row.size == 2**26]
    title = explorer.draw(explorer.at())[0].title
    assert float(title.partition(" GB/s; others")[0]) == pytest.approx(float(of_64_mib.halves[1][2]), rel=0.01)
    # after "machines like it" and the own one, those with the same GPUs
    (others,) = [setting for setting in explorer.settings if setting.name == "others"]
    assert others.values[1:5] == ("yours", "aws_p5_8", "dgx_h100_8", "h100_2")
