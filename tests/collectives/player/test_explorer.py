"""The explorer of the player ranks, verifies and plays what the library does."""

from __future__ import annotations

import pytest

from rankscope import explorers
from rankscope.collectives import ALGORITHMS, Algorithm, Schedule, best, simulate, verify
from rankscope.collectives.player.explorer import cluster, plays, ranking
from rankscope.collectives.player.model import playback
from rankscope.collectives.player.picture import draw_play, play_svg
from rankscope.common.units import time_words
from rankscope.drawing.marks import Text
from tests.collectives.cases import built
from tests.explorers.cases import Case, report
from tests.figures.shown import boxes

PLAYER = Case("player").made()
THREE_NODES = {"num_nodes": 3, "gpus_per_node": 4}


@pytest.mark.parametrize("name", ALGORITHMS["allreduce"])
def test_on_more_ranks_than_play_it_ranks_and_verifies(name: str) -> None:
    if built("allreduce", name, 12) is None:
        pytest.skip("not for 12 ranks")
    now = PLAYER.at(algorithm=name, **THREE_NODES)
    (chosen, other, *_), bound_s = ranking(now)
    alone = best(2**20, cluster(now), algorithms=[name])
    assert (chosen.name, chosen.seconds, bound_s) == (name, alone.seconds, alone.bound_s)
    assert other.seconds == min(one.seconds for one in best(2**20, cluster(now)).candidates if one.algorithm != name)
    assert 0 < chosen.latency_s < chosen.seconds
    if "segments" not in chosen.effort:
        assert simulate(chosen.schedule, 2**20, cluster(now)).makespan_s == pytest.approx(chosen.seconds)
        assert simulate(chosen.schedule, 0.0, cluster(now)).makespan_s == pytest.approx(chosen.latency_s)
    first, second, *_ = report(PLAYER, algorithm=name, **THREE_NODES)
    assert first.startswith(f"{name}: {time_words(chosen.seconds)}; ")
    assert first.endswith(str(verify(chosen.schedule)))
    assert second.startswith(f"{other.name}: {time_words(other.seconds)}; ")
    assert plays(now) == []
    assert PLAYER.shown(now).drawn.count("<svg") == 1


def test_the_ranking_shows_the_time_of_every_algorithm_and_how_much_of_it_is_latency() -> None:
    now = PLAYER.at(**THREE_NODES)
    drawing, *_ = PLAYER.draw(now)
    runners, _ = ranking(now)
    bars = {box.key: box for box in boxes(drawing) if box.key}
    assert {*bars} == {*ALGORITHMS["allreduce"]}
    ring = next(runner for runner in runners if runner.name == "ring")
    ends_px = {runner.name: bars[runner.name].x + bars[runner.name].width for runner in runners}
    starts_px = {runner.name: bars[runner.name].x for runner in runners}
    px_per_s = (ends_px["ring"] - starts_px["ring"]) / (ring.seconds - ring.latency_s)
    left_px = starts_px["ring"] - ring.latency_s * px_per_s
    for runner in runners:
        if runner.name != "flat":  # more than 20 times the fastest, so its bar is cut
            assert starts_px[runner.name] == pytest.approx(left_px + runner.latency_s * px_per_s)
            assert ends_px[runner.name] == pytest.approx(left_px + runner.seconds * px_per_s)
    texts = [mark.text for mark in drawing.marks if isinstance(mark, Text)]
    assert [runner.effort in texts for runner in runners] == [True] * len(runners)
    assert [name for name, bar in bars.items() if bar.edge] == ["ring"]


def test_the_chosen_algorithm_races_the_fastest_other_one_below_the_ranking() -> None:
    now = PLAYER.at(num_nodes=2)
    both = [playback(runner.schedule, 2**20, cluster(now)) for runner in ranking(now)[0][:2]]
    assert [play.schedule.algorithm for play in both] == ["ring", "halving_doubling"]
    _, race = PLAYER.draw(now)
    assert PLAYER.shown(now).drawn.endswith(play_svg(both, race.title))
    assert race.height_px == draw_play(both, 0.0, race.title).height_px
    assert [play.finish_s for play in both] == pytest.approx([one.seconds for one in ranking(now)[0][:2]])


def test_the_busiest_rank_is_the_one_that_sends_most() -> None:
    root_sends_all = ranking(PLAYER.at(algorithm="broadcast flat", gpus_per_node=8))[0][0]
    assert root_sends_all.effort == "1 step, 7 MiB"


def test_of_many_segments_four_play_and_the_time_is_that_of_all() -> None:
    now = PLAYER.at(algorithm="double_binary_tree", message="1 GiB", gpus_per_node=8)
    runner = ranking(now)[0][0]
    fastest = best(2**30, cluster(now), algorithms=["double_binary_tree"]).candidates[0]
    assert runner.effort.startswith(f"{fastest.options['num_segments']} segments, ")
    assert runner.seconds == fastest.seconds
    assert plays(now)[0].schedule.num_chunks == 2 * 4  # two trees


def test_an_algorithm_that_is_wrong_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    open_player = explorers.player  # before the change: what Shift+Tab shows of it is written once
    idle = Algorithm(lambda n: Schedule("allreduce", "idle", n, 1, []))
    monkeypatch.setitem(ALGORITHMS["allreduce"], "idle", idle)
    for settings in ({"algorithm": "idle"}, {"algorithm": "idle", "num_nodes": 3}):
        panel = open_player(**settings)
        assert "rank 0, chunk 0" in panel.shown.value
        assert "<svg" not in panel.shown.value
