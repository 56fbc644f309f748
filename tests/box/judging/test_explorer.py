"""The panel of a machine of one's own."""

from __future__ import annotations

from pathlib import Path

from rankscope.box.judging.explorer import box
from tests.box.logs.logs_made import table


def test_a_log_is_a_machine_next_to_others_of_which_those_with_the_same_gpus_come_first(tmp_path: Path) -> None:
    log = tmp_path / "h100s.log"
    log.write_text("\n".join(table("all_gather")))
    explorer = box(log)
    assert explorer.at()[:3] == ("yours", "allgather", "256 MiB")  # the table has 256 MiB and 2 GiB
    assert explorer.settings[-1].values[1:5] == ("yours", "aws_p5_8", "dgx_h100_8", "h100_2")
