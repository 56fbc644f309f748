"""What is particular to each explorer of the core: what it shows is what the library predicts, in the right words."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from rankscope import explorers
from rankscope.collectives import ALGORITHMS, Algorithm, Schedule, build, simulate, verify
from rankscope.collectives.playback import playback
from rankscope.common.units import time_words
from rankscope.explorers.core.allreduce import cluster, schedule
from rankscope.explorers.core.parts import predicted
from rankscope.explorers.core.player import plays
from rankscope.explorers.core.samplers import epochs
from rankscope.figures.assignments import draw_assignment
from rankscope.figures.player import draw_play, play_svg
from rankscope.figures.svg import to_svg
from rankscope.pipeline import idle_share
from rankscope.sampling import assign, audit
from rankscope.sampling.kinds import SAMPLERS as KINDS

from ..collectives.cases import built
from .cases import report, svg
from .explorer_cases import CASES

SAMPLERS = CASES["samplers"].made()
PARTS = CASES["parts"].made()
PLAYER = CASES["player"].made()
ALLREDUCE = CASES["allreduce"].made()

# ---- player


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


# ---- samplers


def test_samplers_draws_the_epoch_and_compares_it_with_the_one_before() -> None:
    assert svg(SAMPLERS) == to_svg(draw_assignment(assign(50, 4).with_loader(4)))
    assert [one.epoch for one in epochs(SAMPLERS.at())] == [0]
    assert [one.epoch for one in epochs(SAMPLERS.at(epoch=3))] == [2, 3]
    assert [one.epoch for one in epochs(SAMPLERS.at(epoch=2, forget_set_epoch=True))] == [0, 0]
    assert "of epoch 1" in svg(SAMPLERS, epoch=2, forget_set_epoch=True)
    assert "of epoch 1" not in svg(SAMPLERS, epoch=2)


def test_samplers_takes_a_million_samples() -> None:
    now = SAMPLERS.at(size=10**6, num_ranks=24)
    assert audit(epochs(now)).duplicates == 8
    assert report(SAMPLERS, size=10**6, num_ranks=24)[0].startswith("rank 0 reads 41667 samples")
    assert "8 of 1,000,000 samples are read twice" in svg(SAMPLERS, size=10**6, num_ranks=24)


def test_drop_last_may_have_an_effect_although_ranks_divide_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was disabled there, as if every sampler dealt single samples."""
    torch = KINDS["torch"]

    def in_batches_of_five(recipe: Any) -> Any:
        reads = torch.reads(recipe)
        if not recipe.drop_last:
            return reads
        return reads._replace(indices=tuple(indices[: indices.size // 5 * 5] for indices in reads.indices))

    monkeypatch.setitem(KINDS, "fives", replace(torch, reads=in_batches_of_five))
    panel = explorers.samplers(sampler="fives", size=48)
    assert not panel.controls["drop_last"].disabled
    before = panel.shown.value
    panel.controls["drop_last"].value = True
    assert panel.shown.value != before


# ---- unequal lengths


def test_unequal_lengths_shows_that_balancing_equalizes_steps() -> None:
    explorer = CASES["unequal_lengths"].made()
    lines = {name: report(explorer, **preset) for name, preset in explorer.presets.items()}
    times = {name: float(words[1].split("takes ")[1].split(" times")[0]) for name, words in lines.items()}
    assert times["unequal lengths, in random order"] > 1.3
    assert times["the same, balanced"] < 1.05
    assert times["64 ranks, in random order"] > times["unequal lengths, in random order"]
    assert times["64 ranks, balanced"] < 1.05
    assert lines["the same, balanced"][0].startswith("16 steps")
    assert report(explorer, num_ranks=64, batch_size=8, size=512)[0].startswith("1 step ")


# ---- parts


def test_what_no_queue_of_parts_gets_below_a_long_one_comes_near_to() -> None:
    share = idle_share(predicted(PARTS.at(load_ms=300, queue_size=8, jitter=20), 300))
    assert 1 - 200 / 300 < share < 1 - 200 / 300 + 0.02


# ---- allreduce


@pytest.mark.parametrize("name", ALGORITHMS["allreduce"])
def test_allreduce_draws_what_it_verifies_and_simulates(name: str) -> None:
    if built("allreduce", name, 12) is None:
        pytest.skip("not for 12 ranks")
    settings = {"algorithm": name, "num_nodes": 3, "gpus_per_node": 4, "num_segments": 3}
    now = ALLREDUCE.at(**settings)
    drawn = schedule(now)
    lines = report(ALLREDUCE, **settings)
    seconds = simulate(drawn, 2**20, cluster(now)).makespan_s
    assert lines[0] == f"verified: {verify(drawn)}"
    assert lines[1].startswith(f"predicted: {time_words(seconds)}; lower bound on the fastest link: ")
    assert svg(ALLREDUCE, **settings).count("<svg") == 2


def test_an_algorithm_that_is_wrong_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS["allreduce"], "idle", Algorithm(lambda n: Schedule("allreduce", "idle", n, 1, [])))
    assert "rank 0, chunk 0" in explorers.allreduce(algorithm="idle").shown.value
