"""What is particular to each explorer of the core: what it shows is what the library predicts, in the right words."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankscope import explorers
from rankscope.collectives import ALGORITHMS, Schedule, best, build, simulate, verify
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
from rankscope.parts import idle_share
from rankscope.pipeline import simulate as simulate_pipeline
from rankscope.sampling import assign

from .cases import controls, report, shown, svg
from .explorer_cases import CASES

SAMPLERS = CASES["samplers"].made()
PIPELINE = CASES["pipeline"].made()
PARTS = CASES["parts"].made()
PLAYER = CASES["player"].made()
ALLREDUCE = CASES["allreduce"].made()
UNEQUAL_LENGTHS = CASES["unequal_lengths"].made()

# ---- player


def test_player_draws_what_the_library_plays_and_compares_both() -> None:
    now = PLAYER.at(num_nodes=2, moment=30)
    built = [build("allreduce", name, 8) for name in ("ring", "halving_doubling")]
    both = [playback(one, 2**20, cluster(now)) for one in built]
    slower_s = both[0].finish_s
    assert svg(PLAYER, num_nodes=2, moment=30) == to_svg(draw_play(both, 0.3 * slower_s))
    first, second, third = report(PLAYER, num_nodes=2)
    assert first == f"ring allreduce: 14 steps, 112 messages; the busiest rank sends 1.75 MiB; {time_words(slower_s)}"
    assert second.startswith("halving_doubling allreduce: 6 steps, 48 messages; the busiest rank sends 1.75 MiB; ")
    ratio = slower_s / both[1].finish_s
    assert third == f"halving_doubling allreduce is {ratio:.3g} times as fast as ring allreduce here"
    assert len(report(PLAYER, against="none")) == 1
    assert report(PLAYER, against="ring")[2] == "ring allreduce takes as long as ring allreduce here"


def test_players_shapes_follow_the_nodes_and_it_offers_your_own(monkeypatch: pytest.MonkeyPatch) -> None:
    torus = PLAYER.at(algorithm="torus_2d", against="broadcast chain", num_nodes=3, gpus_per_node=2)
    first, second = plays(torus)
    assert first.schedule == build("allreduce", "torus_2d", 6, shape=(3, 2))
    assert second.schedule.num_chunks <= 4
    monkeypatch.setitem(ALGORITHMS["allreduce"], "mine", lambda n: build("allreduce", "flat", n))
    assert "flat finishes after" in svg(PLAYER, algorithm="mine", against="none")
    wrong = Schedule.of_steps([], collective="allreduce", algorithm="wrong", num_ranks=4, num_chunks=1)
    monkeypatch.setitem(ALGORITHMS["allreduce"], "wrong", lambda n: wrong)
    (line,) = report(PLAYER, algorithm="wrong")
    assert line == "rank 0, chunk 0: the result lacks the contributions of ranks 1, 2, 3"
    pictures, _ = PLAYER.html(PLAYER.at(algorithm="wrong"))
    assert pictures == f"<p>{line}</p>"
    assert PLAYER.without_effect(PLAYER.at(algorithm="wrong"))["moment"] == line


def test_player_says_what_does_not_exist_for_so_many_ranks() -> None:
    (line,) = report(PLAYER, algorithm="allgather recursive_doubling", gpus_per_node=3)
    assert line == "algorithms must exist for 3 ranks, got recursive_doubling"
    (line,) = report(PLAYER, algorithm="all_to_all pairwise", num_nodes=4, gpus_per_node=8)
    assert line == "a player shows at most 4096 chunks, ranks × chunks, got 32768: take fewer ranks"


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


def test_a_reason_is_true_where_samples_are_many() -> None:
    balanced = SAMPLERS.at(sampler="balanced", num_ranks=8, size=22)
    assert SAMPLERS.without_effect(balanced)["shuffle"] == "the samples are read in the same order with and without it"
    one_by_one = UNEQUAL_LENGTHS.at(sampler="balanced", num_ranks=1, batch_size=1)
    reason = "these samples are grouped in the same way within every window"  # though the epoch has many windows
    assert UNEQUAL_LENGTHS.without_effect(one_by_one)["window"] == reason


def test_samplers_draws_the_assignment_and_audits_the_epochs_so_far() -> None:
    assert svg(SAMPLERS) == to_svg(draw_assignment(assign(50, 4).with_loader(4)))
    assert [one.epoch for one in epochs(SAMPLERS.at(epoch=3))] == [0, 1, 2, 3]
    assert [one.epoch for one in epochs(SAMPLERS.at(epoch=2, forget_set_epoch=True))] == [0, 0, 0]
    assert "was set_epoch forgotten?" in "\n".join(report(SAMPLERS, epoch=2, forget_set_epoch=True))
    assert "was set_epoch forgotten?" not in "\n".join(report(SAMPLERS, epoch=2))


def test_without_set_epoch_samplers_names_the_epoch_of_the_job_and_that_of_the_order() -> None:
    """The preset "epoch 3 without set_epoch" had the title "epoch 0" over a report of "epochs 0 and 0"."""
    preset = SAMPLERS.presets["epoch 3 without set_epoch"]
    assert "50 samples over 4 ranks, epoch 3 in the order of epoch 0: 2 read again" in svg(SAMPLERS, **preset)
    words = "4 of 4 epochs read in the same order on every rank, that of epoch 0: was set_epoch forgotten?"
    assert report(SAMPLERS, **preset)[-1] == f"  repeated order: {words}"
    assert "50 samples over 4 ranks, epoch 3: 2 read again" in svg(SAMPLERS, epoch=3)


def test_samplers_switches_off_what_libtorch_does_not_have() -> None:
    panel = controls(CASES["samplers"].open())
    for sampler, is_torch in (("libtorch_random", False), ("torch", True), ("libtorch_sequential", False)):
        panel["sampler"].value = sampler
        assert [panel[name].disabled for name in ("seed", "shuffle")] == [not is_torch] * 2


# ---- unequal lengths


def test_unequal_lengths_shows_that_balancing_equalizes_steps() -> None:
    explorer = CASES["unequal_lengths"].made()
    lines = {name: report(explorer, **preset) for name, preset in explorer.presets.items()}
    at_random = lines["unequal lengths, in random order"]
    balanced = lines["the same, balanced"]
    times = {}
    for name, words in lines.items():
        times[name] = float(words[0].split("takes ")[1].split(" times")[0])
    assert times["unequal lengths, in random order"] > 1.3
    assert times["the same, balanced"] < 1.05
    assert times["64 ranks, in random order"] > times["unequal lengths, in random order"]
    assert times["64 ranks, balanced"] < 1.05
    assert at_random[2] == "16 steps of up to 8 samples per rank"
    assert balanced[2] == "16 batches per rank of 8 samples"
    assert report(explorer, num_ranks=64, batch_size=8, size=512)[2] == "1 step of up to 8 samples per rank"
    assert "weight bias" not in "".join(report(explorer, sampler="weighted"))


# ---- pipeline


@pytest.mark.parametrize(
    ("settings", "line", "words"),
    [
        ({"jitter": 0}, 0, "bottleneck: decode, at most 66.7 batches/s; next is train, at 83.3 batches/s"),
        ({"jitter": 0}, 1, "delivered over 500 batches: 66.4 batches/s, 100 % of the bottleneck's rate"),
        ({"read_ms": 0, "decode_ms": 0, "copy_ms": 0}, 0, "next is read, at any rate"),
        (dict.fromkeys(["read_ms", "decode_ms", "copy_ms", "train_ms"], 0), 0,
         "no stage takes any time: there is no bottleneck"),
        ({"num_ranks": 2}, 5, "at the barrier"),
        # what notebook 02 says to look for
        ({"num_workers": 3, "jitter": 0}, 1, ", 99 % of the bottleneck's rate"),
        ({"num_workers": 3, "jitter": 150, "capacity": 16}, 1, ", 74 % of the bottleneck's rate"),
        ({"num_workers": 3, "jitter": 150, "capacity": 16, "ordered": False}, 1, ", 100 % of the bottleneck's rate"),
    ],
)  # fmt: skip
def test_pipeline_names_what_bounds_it(settings: dict[str, Any], line: int, words: str) -> None:
    assert words in report(PIPELINE, **settings)[line]


def test_pipeline_varies_reading_and_decoding_alone() -> None:
    for num_ranks in (1, 4):
        spans = simulate_pipeline(pipeline_of(PIPELINE.at(jitter=150, num_ranks=num_ranks)), 20, num_ranks=num_ranks)
        seconds = {kind: spans.select(kind=kind) for kind in ("read", "decode", "copy", "train")}
        spread = {kind for kind, some in seconds.items() if np.ptp(some.stop_s - some.start_s) > 1e-9}
        assert spread == {"read", "decode"}


def test_pipelines_shares_are_those_of_the_simulation() -> None:
    spans = simulate_pipeline(pipeline_of(PIPELINE.at()), 500)
    train = spans.select(kind="train").busy_s / spans.makespan_s
    assert report(PIPELINE)[-1].startswith(f"  {'train':<7}{train:>5.0%} working")


# ---- parts


def test_parts_counts_what_the_simulation_gives() -> None:
    share = idle_share(predicted(PARTS.at(queue_size=2), 60))
    lines = report(PARTS, queue_size=2)
    bound = "training is the bottleneck, if the queue is long enough"
    assert lines[0] == f"4 trainers, 60 parts each: idle {percent_words(share)} of the time"
    assert lines[1] == f"with loading ahead, a part arrives every 160 ms and lasts 200 ms: {bound}"
    assert f"  queue of 2  {share:>5.0%} idle" in lines
    assert report(PARTS, load_ms=300)[1].endswith("in the long run trainers are idle at least 33 % of the time")
    assert "every 150 ms" in report(PARTS, load_ms=300, num_loaders=2)[1]
    assert "every 53.3 ms" in report(PARTS, num_loaders=3)[1]


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
    said = "<p>64 ranks with 64 chunks each are too many to draw here: at most 1024 cells</p><svg"
    assert pictures.startswith(said)
    assert "verified: 126 steps" in words
    assert "<svg" in svg(ALLREDUCE, num_nodes=8, gpus_per_node=8, algorithm="recursive_doubling")


def picky(num_ranks: int) -> Schedule:
    """An algorithm for 8 ranks alone."""
    if num_ranks != 8:
        raise ValueError(f"num_ranks must not be < 8, got {num_ranks}")
    ring: Schedule = ALGORITHMS["allreduce"]["ring"](num_ranks)
    return ring


def test_an_algorithm_that_is_wrong_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS["allreduce"], "idle", lambda n: Schedule("allreduce", "idle", n, 1, lambda: ()))
    lines = report(ALLREDUCE, algorithm="idle")
    assert lines[0].startswith("idle: rank 0, chunk 0: the result lacks the contributions of ranks 1, 2, 3")


def test_another_step_is_painted_without_a_new_search_for_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = sys.modules["rankscope.explorers.core.allreduce"]
    searches: list[int] = []
    monkeypatch.setattr(module, "best", lambda *given, **options: searches.append(1) or best(*given, **options))
    module._ranked.cache_clear()
    box = CASES["allreduce"].open(num_nodes=4, algorithm="double_binary_tree", inter_us=20)
    seen = {shown(box)[0]}
    for number in range(2, 6):
        controls(box)["step"].value = number
        seen.add(shown(box)[0])
    assert (len(seen), len(searches)) == (5, 1)
    controls(box)["inter_us"].value = 15
    assert len(searches) == 2


def test_an_algorithm_that_refuses_says_so_in_place_of_the_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS["allreduce"], "picky", picky)
    box = CASES["allreduce"].open(algorithm="picky")
    assert "num_ranks must" not in shown(box)[0]
    controls(box)["num_nodes"].value = 3
    said = "num_ranks must not be &lt; 8, got 12"
    assert shown(box)[0].startswith(f"<p>{said}</p><svg")
    assert ">picky<" not in shown(box)[0]
    assert f"picky: {said}\nfastest here: " in shown(box)[1]


def test_times_that_stand_next_to_each_other_have_one_unit() -> None:
    """1,329 µs of one machine stood above 4.23 ms of another."""
    times = re.findall(r"[\d.]+ (ns|µs|ms|s)\b", report(ALLREDUCE, message="64 MiB")[1])
    assert len(times) >= 2
    assert len(set(times)) == 1
    both = report(PLAYER, message="16 MiB", inter_gb_per_s=5)
    assert len({line.rpartition(" ")[2] for line in both[:2]}) == 1
