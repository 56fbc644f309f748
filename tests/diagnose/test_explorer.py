"""The panel of pasted texts: what each is, and what it shows."""

from __future__ import annotations

import re

import pytest

from rankscope.diagnose.explorer import recognised
from rankscope.diagnose.pasted_examples import EXAMPLES
from tests.box.logs.logs_made import peer_to_peer

from .hangs.pastes import PASTES


def test_a_pasted_log_names_the_ranks_that_diagnose_names() -> None:
    for paste in PASTES:
        if paste.name == "healthy":
            continue
        title = recognised(paste.text).drawings[0].title
        expected = {min(paste.ranks), max(paste.ranks)} if paste.ranks else set()
        assert {int(number) for number in re.findall(r"\d+", title)} == expected
        assert paste.is_certain != title.endswith("perhaps") or not paste.ranks


def test_tables_of_several_kinds_are_shown_together() -> None:
    copies = peer_to_peer({(0, 1): (22.0, 23.0), (1, 0): (22.0, 23.0)})
    shown = recognised(f"{EXAMPLES['nvidia-smi topo -m']}\n{copies}\n{EXAMPLES['a job that hangs']}")
    assert [drawing.title[:11] for drawing in shown.drawings] == ["Copies reac", "4 GPUs, 1 p", "Look at ran"]
    assert "Rank 2 did not reach collective 808 of the default group." in shown.lines


@pytest.mark.parametrize("text", ["healthy", "x" * 200_001])
def test_a_text_of_no_kind_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="topo -m|200,000"):
        recognised(text)
