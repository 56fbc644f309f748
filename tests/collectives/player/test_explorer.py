"""The explorer of the player shows what the library plays."""

from __future__ import annotations

import pytest

from rankscope import explorers
from rankscope.collectives import ALGORITHMS, Algorithm, Schedule, build
from rankscope.collectives.explorer import cluster
from rankscope.collectives.player.explorer import plays
from rankscope.collectives.player.model import playback
from rankscope.collectives.player.picture import draw_play, play_svg
from rankscope.common.units import time_words
from rankscope.drawing.drawing import to_svg
from tests.explorers.cases import Case, report, svg

PLAYER = Case("player").made()


def test_player_draws_what_the_library_plays_and_compares_both() -> None:
    now = PLAYER.at(num_nodes=2)
    built = [build("allreduce", name, 8) for name in ("ring", "halving_doubling")]
    both = [playback(one, 2**20, cluster(now)) for one in built]
    slower_s = both[0].finish_s
    assert svg(PLAYER, num_nodes=2) == to_svg(draw_play(both, 0.4 * slower_s))
    assert PLAYER.shown(now).drawn == play_svg(both)
    first, second = report(PLAYER, num_nodes=2)
    for words in ("14 steps", "112 messages", "1.75 MiB", time_words(slower_s)):
        assert words in first
    for words in ("6 steps", "48 messages", "1.75 MiB"):
        assert words in second
    assert len(report(PLAYER, against="none")) == 1


def test_player_refuses_what_nobody_could_follow_or_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="8 ranks"):
        plays(PLAYER.at(num_nodes=4, gpus_per_node=8))
    wrong = Schedule("allreduce", "wrong", 4, 1, [])
    monkeypatch.setitem(ALGORITHMS["allreduce"], "wrong", Algorithm(lambda n: wrong))
    panel = explorers.player(algorithm="wrong")
    assert "rank 0, chunk 0" in panel.shown.value
    assert "<svg" not in panel.shown.value
