"""What is particular to each explorer of the core: what it shows is what the library predicts, in the right words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankscope import explorers
from rankscope.collectives import ALGORITHMS, Algorithm, Schedule, best, build, simulate, verify
from rankscope.collectives.playback import playback
from rankscope.common.units import percent_words, time_words
from rankscope.explorers.core.allreduce import cluster, recipe, schedule
from rankscope.explorers.core.parts import predicted
from rankscope.explorers.core.pipeline import pipeline_of
from rankscope.explorers.core.player import plays
from rankscope.explorers.core.samplers import epochs
from rankscope.figures.assignments import draw_assignment
from rankscope.figures.player import draw_play
from rankscope.figures.svg import to_svg
from rankscope.pipeline import idle_share
from rankscope.pipeline import simulate as simulate_pipeline
from rankscope.sampling import assign

from .cases import controls, report, shown, svg
from .explorer_cases import CASES

SAMPLERS = CASES["samplers"].made()
PIPELINE = CASES["pipeline"].made()
PARTS = CASES["parts"].made()
PLAYER = CASES["player"].made()
ALLREDUCE = CASES["allreduce"].made()

# ---- player


def test_player_draws_what_the_library_plays_and_compares_both() -> None:
    now = PLAYER.at(num_nodes=2, moment=30)
    built = [build("allreduce", name, 8) for name in ("ring", "halving_doubling")]
    both = [playback(one, 2**20, cluster(now)) for one in built]
    slower_s = both[0].finish_s
    assert svg(PLAYER, num_nodes=2, moment=30) == to_svg(draw_play(both, 0.3 * slower_s))
    first, second, third = report(PLAYER, num_nodes=2)
    for words in ("14 steps", "112 messages", "1.75 MiB", time_words(slower_s)):
        assert words in first
    for words in ("6 steps", "48 messages", "1.75 MiB"):
        assert words in second
    assert f"{slower_s / both[1].finish_s:.3g} times as fast" in third
    assert len(report(PLAYER, against="none")) == 1
    assert "as long as" in report(PLAYER, against="ring")[2]


def test_players_shapes_follow_the_nodes_and_it_offers_your_own(monkeypatch: pytest.MonkeyPatch) -> None:
    torus = PLAYER.at(algorithm="torus_2d", against="broadcast chain", num_nodes=3, gpus_per_node=2)
    first, second = plays(torus)
    assert first.schedule == build("allreduce", "torus_2d", 6, shape=(3, 2))
    assert second.schedule.num_chunks <= 4
    monkeypatch.setitem(ALGORITHMS["allreduce"], "mine", Algorithm(lambda n: build("allreduce", "flat", n)))
    assert "flat finishes after" in svg(PLAYER, algorithm="mine", against="none")
    wrong = Schedule("allreduce", "wrong", 4, 1, [])
    monkeypatch.setitem(ALGORITHMS["allreduce"], "wrong", Algorithm(lambda n: wrong))
    (line,) = report(PLAYER, algorithm="wrong")
    assert "rank 0, chunk 0" in line
    pictures, _ = PLAYER.html(PLAYER.at(algorithm="wrong"))
    assert pictures == f"<p>{line}</p>"
    assert "moment" in PLAYER.without_effect(PLAYER.at(algorithm="wrong"))


def test_player_steps_from_message_to_message_and_plays_its_slider(tmp_path: Path) -> None:
    box = explorers.player(against="none", moment=0, intra_gb_per_s=200, gamma_ps=0)
    assert (box.play.min, box.play.max, box.play.value) == (0, 100, 0)
    assert (box.linked.source, box.linked.target) == ((box.play, "value"), (box.controls["moment"], "value"))
    seen = [0]
    for _ in range(7):
        box.buttons["step"].click()
        seen.append(box.now.moment)
    assert seen == [0, 17, 34, 50, 67, 84, 100, 100]  # six steps, rounded up, and no further
    assert "16 of 16 chunks finished" in shown(box)[0]
    for _ in range(2):
        box.buttons["step back"].click()
    assert box.now.moment == 67
    alone = explorers.player(gpus_per_node=1)
    alone.buttons["step"].click()
    assert alone.now.moment == 40
    refused = explorers.player(algorithm="allgather recursive_doubling", gpus_per_node=3)
    refused.buttons["step"].click()
    assert refused.controls["moment"].disabled
    assert refused.still() == ""


# ---- samplers


def test_samplers_draws_the_assignment_and_audits_the_epochs_so_far() -> None:
    assert svg(SAMPLERS) == to_svg(draw_assignment(assign(50, 4).with_loader(4)))
    assert [one.epoch for one in epochs(SAMPLERS.at(epoch=3))] == [0, 1, 2, 3]
    assert [one.epoch for one in epochs(SAMPLERS.at(epoch=2, forget_set_epoch=True))] == [0, 0, 0]
    assert "was set_epoch forgotten?" in "\n".join(report(SAMPLERS, epoch=2, forget_set_epoch=True))
    assert "was set_epoch forgotten?" not in "\n".join(report(SAMPLERS, epoch=2))


def test_samplers_switches_off_what_libtorch_does_not_have() -> None:
    panel = controls(CASES["samplers"].open())
    for sampler, is_torch in (("libtorch_random", False), ("torch", True), ("libtorch_sequential", False)):
        panel["sampler"].value = sampler
        assert [panel[name].disabled for name in ("seed", "shuffle")] == [not is_torch] * 2


# ---- unequal lengths


def test_unequal_lengths_shows_that_balancing_equalizes_steps() -> None:
    explorer = CASES["unequal_lengths"].made()
    lines = {name: report(explorer, **preset) for name, preset in explorer.presets.items()}
    times = {name: float(words[0].split("takes ")[1].split(" times")[0]) for name, words in lines.items()}
    assert times["unequal lengths, in random order"] > 1.3
    assert times["the same, balanced"] < 1.05
    assert times["64 ranks, in random order"] > times["unequal lengths, in random order"]
    assert times["64 ranks, balanced"] < 1.05
    assert lines["unequal lengths, in random order"][2].startswith("16 steps")
    assert lines["the same, balanced"][2].startswith("16 batches")
    assert report(explorer, num_ranks=64, batch_size=8, size=512)[2].startswith("1 step ")
    assert "weight bias" not in "".join(report(explorer, sampler="weighted"))


# ---- pipeline


def test_pipeline_varies_reading_and_decoding_alone() -> None:
    for num_ranks in (1, 4):
        spans = simulate_pipeline(pipeline_of(PIPELINE.at(jitter=150, num_ranks=num_ranks)), 20, num_ranks=num_ranks)
        seconds = {kind: spans.select(kind=kind) for kind in ("read", "decode", "copy", "train")}
        spread = {kind for kind, some in seconds.items() if np.ptp(some.stop_s - some.start_s) > 1e-9}
        assert spread == {"read", "decode"}


# ---- parts


def test_what_no_queue_of_parts_gets_below_a_long_one_comes_near_to() -> None:
    share = idle_share(predicted(PARTS.at(load_ms=300, queue_size=8, jitter=20), 300))
    assert 1 - 200 / 300 < share < 1 - 200 / 300 + 0.02


@pytest.mark.parametrize(("aligned", "num_starts"), [(True, 1), (False, 4)])
def test_parts_end_together_or_not(aligned: bool, num_starts: int) -> None:
    second = predicted(PARTS.at(jitter=0, load_ms=100, aligned=aligned), 2).select(kind="load", item=1)
    assert len(np.unique(second.start_s.round(3))) == num_starts


# ---- allreduce


@pytest.mark.parametrize("name", ALGORITHMS["allreduce"])
def test_allreduce_draws_what_it_verifies_and_simulates(name: str) -> None:
    settings = {"algorithm": name, "num_nodes": 3, "gpus_per_node": 4, "num_segments": 3}
    now = ALLREDUCE.at(**settings)
    drawn = schedule(recipe(now))
    lines = report(ALLREDUCE, **settings)
    seconds = simulate(drawn, 2**20, cluster(now)).makespan_s
    assert lines[0] == f"verified: {verify(drawn)}"
    assert lines[1].startswith(f"predicted: {time_words(seconds)}, ")
    assert " times the lower bound; lower bound on the fastest link: " in lines[1]
    assert f"allreduce {name}, 12 ranks, step 0 of" in svg(ALLREDUCE, **settings)


def test_allreduces_shapes_follow_the_nodes_and_its_segments_the_slider() -> None:
    def built(algorithm: str, **settings: Any) -> Schedule:
        return schedule(recipe(ALLREDUCE.at(algorithm=algorithm, **settings)))

    assert built("torus_2d", num_nodes=2, gpus_per_node=4) == ALGORITHMS["allreduce"]["torus_2d"](8, shape=(2, 4))
    assert built("segmented_ring", num_segments=5).num_chunks == 8 * 5
    assert built("double_binary_tree", num_segments=5).num_chunks == 2 * 5


def test_allreduce_names_the_quickest() -> None:
    now = {"num_nodes": 4, "message": "4 KiB"}
    ranked = best(2**12, cluster(ALLREDUCE.at(**now)))
    quickest = f"fastest here: {ranked.algorithm}, {time_words(ranked.seconds)}"
    following = f"next: {ranked.candidates[1].algorithm}, {percent_words(ranked.margin)} longer"
    assert report(ALLREDUCE, **now)[-1] == f"{quickest}; {following}"


def test_allreduces_step_goes_to_the_end_and_no_further() -> None:
    box = CASES["allreduce"].open(step=14)
    panel = controls(box)
    assert panel["step"].max == 14
    assert "after 14 steps" in shown(box)[0]
    panel["algorithm"].value = "recursive_doubling"
    assert (panel["step"].max, panel["step"].value) == (3, 3)
    assert svg(ALLREDUCE, algorithm="recursive_doubling", step=3) in shown(box)[0]
    panel["num_nodes"].value = panel["gpus_per_node"].value = 1
    assert (panel["step"].max, panel["step"].value) == (0, 0)


def test_allreduce_says_what_is_too_much_to_draw_and_shows_all_else() -> None:
    now = ALLREDUCE.at(num_nodes=8, gpus_per_node=8)
    pictures, words = ALLREDUCE.html(now)
    assert pictures.startswith("<p>64 ranks with 64 chunks")
    assert "<svg" in pictures
    assert "126 steps" in words
    assert "<svg" in svg(ALLREDUCE, num_nodes=8, gpus_per_node=8, algorithm="recursive_doubling")


def test_an_algorithm_that_is_wrong_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS["allreduce"], "idle", Algorithm(lambda n: Schedule("allreduce", "idle", n, 1, [])))
    lines = report(ALLREDUCE, algorithm="idle")
    assert "rank 0, chunk 0" in lines[0]
