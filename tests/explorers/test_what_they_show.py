"""What is particular to each explorer: its pictures and reports are what the library predicts, in the right words."""

from __future__ import annotations

import re
import sys
from fractions import Fraction
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankscope import explorers
from rankscope import networks as networks_module
from rankscope.cluster import Link
from rankscope.collectives import ALGORITHMS, Schedule, best, build, closed_form, simulate, verify
from rankscope.collectives.playback import playback
from rankscope.explorers import ddp, machine, pipeline_parallel, transfers, zero
from rankscope.explorers.allreduce import H100_LINKS, L40S_LINKS, cluster, recipe, schedule
from rankscope.explorers.ddp import Training
from rankscope.explorers.networks import Networks
from rankscope.explorers.parts import predicted
from rankscope.explorers.pipeline import pipeline_of
from rankscope.explorers.pipeline_parallel import LINKS, plan, step
from rankscope.explorers.player import plays
from rankscope.explorers.samplers import epochs
from rankscope.explorers.transfers import LINKS as PCIE
from rankscope.explorers.transfers import between
from rankscope.explorers.zero import memory
from rankscope.figures.assignments import draw_assignment
from rankscope.figures.palette import INK
from rankscope.figures.player import draw_play
from rankscope.figures.svg import to_svg
from rankscope.machine import Profile, bank
from rankscope.machine.bank import is_sick, provenances
from rankscope.machine.link_facts import METHODS
from rankscope.nccl import GPUS, Model
from rankscope.nccl.constants import HOP
from rankscope.parts import idle_share
from rankscope.pipeline import simulate as simulate_pipeline
from rankscope.pipeline_parallel import bubble_share, traffic
from rankscope.pipeline_parallel import build as build_pipeline
from rankscope.pipeline_parallel import simulate as simulate_schedule
from rankscope.sampling import assign
from rankscope.transfer import overlap_share
from rankscope.transfer import simulate as simulate_loop
from rankscope.values.units import bytes_words, cell_words, time_words
from rankscope.zero.model import memory as zero_memory

from ..machine.made import links, point, profile
from .cases import CASES, MODULE, NATIVE_S, SIZES, controls, gpu, profiles, report, shown, six_ranks, svg

(
    SAMPLERS,
    PIPELINE,
    PARTS,
    PLAYER,
    ALLREDUCE,
    MACHINE,
    TRANSFERS,
    MEASURED,
    DDP,
    DDP_BY_HAND,
    DDP_OF_YOURS,
    ZERO,
    OWN,
    UNEVEN,
    BOXES,
    BOXES_OF_YOURS,
    NCCL,
    SCHEDULES,
    REPLICAS,
) = (case.made() for case in CASES.values())

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
    assert line == "rank 0, chunk 0: ends without the shares of ranks 1, 2, 3"
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


# ---- pipeline


@pytest.mark.parametrize(
    ("settings", "line", "words"),
    [
        ({"jitter": 0}, 0, "bottleneck: decode, at most 66.7 batches/s; next is train, at 83.3"),
        ({"jitter": 0}, 1, "delivered over 500 batches: 66.4 batches/s, 100% of the bottleneck's rate"),
        ({"read_ms": 0, "decode_ms": 0, "copy_ms": 0}, 0, "next is read, at any rate"),
        (dict.fromkeys(["read_ms", "decode_ms", "copy_ms", "train_ms"], 0), 0,
         "no stage takes any time: there is no bottleneck"),
        ({"num_ranks": 2}, 5, "at the barrier"),
        # what notebook 03 says to look for
        ({"num_workers": 3, "jitter": 0}, 1, ", 99% of the bottleneck's rate"),
        ({"num_workers": 3, "jitter": 150, "capacity": 16}, 1, ", 74% of the bottleneck's rate"),
        ({"num_workers": 3, "jitter": 150, "capacity": 16, "ordered": False}, 1, ", 100% of the bottleneck's rate"),
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
    assert lines[0] == f"4 trainers, 60 parts each: idle {share:.0%} of the time"
    assert lines[1] == f"with loading ahead, a part arrives every 160 ms and lasts 200 ms: {bound}"
    assert f"  queue of 2  {share:>5.0%} idle" in lines
    assert report(PARTS, load_ms=300)[1].endswith("no queue gets below 33% idle in the long run")
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
    assert lines[1].startswith(f"predicted: {time_words(seconds)}; lower bound on the fastest link: ")
    assert f"allreduce {name}, 12 ranks, step 0 of" in svg(ALLREDUCE, **settings)


def test_allreduces_shapes_follow_the_nodes_and_its_segments_the_slider() -> None:
    def built(algorithm: str, **settings: Any) -> Schedule:
        return schedule(recipe(ALLREDUCE.at(algorithm=algorithm, **settings)))

    assert built("torus_2d", num_nodes=2, gpus_per_node=4) == ALGORITHMS["allreduce"]["torus_2d"](8, shape=(2, 4))
    assert built("segmented_ring", num_segments=5).num_chunks == 8 * 5
    assert built("double_binary_tree", num_segments=5).num_chunks == 2 * 5


@pytest.mark.parametrize(("links", "gpu"), [(H100_LINKS, "h100"), (L40S_LINKS, "l40s")])
def test_links_of_presets_are_those_of_nccls_model(links: dict[str, int], gpu: str) -> None:
    about = GPUS[gpu]
    real = {
        "intra_us": HOP[about.link]["ring"][2],
        "inter_us": HOP["net"]["ring"][2],
        "intra_gb_per_s": about.wire,
        "inter_gb_per_s": about.nic,
    }
    offered = {setting.name: setting.values for setting in ALLREDUCE.settings}
    for name, value in real.items():
        assert links[name] == min(offered[name], key=lambda one: abs(one - value))


def test_allreduce_names_the_quickest() -> None:
    now = {"num_nodes": 4, "message": "4 KiB"}
    ranked = best(2**12, cluster(ALLREDUCE.at(**now)))
    quickest = f"fastest here: {ranked.algorithm}, {time_words(ranked.seconds)}"
    following = f"next: {ranked.candidates[1].algorithm}, {ranked.margin:.0%} longer"
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


def test_an_algorithm_that_refuses_says_so_in_place_of_the_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS["allreduce"], "picky", picky)
    box = CASES["allreduce"].open(algorithm="picky")
    assert "num_ranks must" not in shown(box)[0]
    controls(box)["num_nodes"].value = 3
    said = "num_ranks must not be &lt; 8, got 12"
    assert shown(box)[0].startswith(f"<p>{said}</p><svg")
    assert ">picky<" not in shown(box)[0]
    assert f"picky: {said}\nfastest here: " in shown(box)[1]
    one = CASES["machine"].made()
    assert one.html(one.at(algorithm="picky"))[0].endswith("</svg><p>num_ranks must not be &lt; 8, got 4</p>")
    assert report(one, algorithm="picky") == ["picky: num_ranks must not be < 8, got 4", "gloo's own: 5 ms"]
    assert ">picky<" not in svg(one, "ranking", algorithm="picky")


def test_an_algorithm_that_is_wrong_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS["allreduce"], "idle", lambda n: Schedule("allreduce", "idle", n, 1, lambda: ()))
    lines = report(ALLREDUCE, algorithm="idle")
    assert lines[0].startswith("idle: rank 0, chunk 0: ends without the shares of ranks 1, 2, 3")


def test_another_step_is_painted_without_a_new_search_for_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = sys.modules["rankscope.explorers.allreduce"]
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


# ---- boxes


def test_boxes_says_what_was_measured_what_the_curve_says_and_where_that_is_from() -> None:
    said = report(BOXES, first="h100_8", second="dgx_h100_8", third="none", message="512 MiB")
    assert said[0] == "h100_8: 512 MiB in 2.11 ms, busbw 445 GB/s"
    assert "ai-dynamo/aiconfigurator; Apache-2.0" in said[1]
    assert len(said) == 4
    assert report(BOXES, first="h100_8", message="8 GiB")[0].startswith("h100_8: 8 GiB in ")
    assert ", interpolated (" in report(BOXES, first="h100_8", message="8 GiB")[0]
    assert "all_to_all was not measured" in report(BOXES, first="dgx_h100_8", collective="all_to_all")[0]
    assert "sick: NCCL_P2P_DISABLE=1" in report(BOXES, first="runpod_a100_2_no_p2p")[1]


@pytest.mark.parametrize("message", ["64 KiB", "4 MiB", "128 MiB", "512 MiB"])
@pytest.mark.parametrize("view", ["busbw", "time"])
def test_the_title_of_boxes_is_of_the_size_that_is_set(message: str, view: str) -> None:
    """It said "allreduce of 512 MiB" whatever the slider said."""
    title = BOXES.pictures["picture"](BOXES.at(message=message, view=view)).title
    lines = report(BOXES, message=message, view=view)
    assert title.startswith(f"allreduce of {message}: ")
    for said in title.partition(": ")[2].split(", "):
        name, _, value = said.partition(" ")
        (line,) = [line for line in lines if line.startswith(f"{name}: ")]
        assert f" {value}," in line or line.endswith(f" {value}")


def test_the_title_of_boxes_leaves_out_what_was_not_measured_at_that_size() -> None:
    def title(**settings: str) -> str:
        return str(BOXES.pictures["picture"](BOXES.at(**settings)).title)

    pair = {"first": "abci_a100_4x8", "second": "dgx_h100_8", "third": "none"}
    assert re.fullmatch(r"allreduce of 1 GiB: dgx_h100_8 4\d\d GB/s", title(**pair, message="1 GiB"))
    fleet = {"first": "h100_fleet_8", "second": "none", "third": "none"}
    assert title(**fleet, message="1 MiB") == "allreduce of 1 MiB: measured on none of these machines"


def test_times_that_stand_below_each_other_have_one_unit() -> None:
    """1,329 µs of one machine stood above 4.23 ms of another."""
    lines = report(BOXES, message="512 MiB")
    assert [line.split()[5] for line in lines[::2]] == ["ms,"] * 3
    assert lines[0].startswith("b200_8: 512 MiB in 1.33 ms, ")
    title = BOXES.pictures["picture"](BOXES.at(message="512 MiB", view="time")).title
    assert title == "allreduce of 512 MiB: b200_8 1.33 ms, a100_80gb_8 4.23 ms"
    for line in (report(ALLREDUCE, message="64 MiB")[1], report(NCCL, message="512 MiB")[1]):
        times = re.findall(r"[\d.]+ (ns|µs|ms|s)\b", line)
        assert len(times) >= 2
        assert len(set(times)) == 1
    both = report(PLAYER, message="16 MiB", inter_gb_per_s=5)
    assert len({line.rpartition(" ")[2] for line in both[:2]}) == 1


def test_boxes_shows_yours_first_and_passes_over_machines_without_the_collective() -> None:
    panel = controls(CASES["boxes of yours"].open())
    assert panel["first"].value == "mine"
    assert {INK} in [set(rects.fill) for rects in BOXES_OF_YOURS.pictures["picture"](BOXES_OF_YOURS.at()).rects]
    assert [name for name, _ in panel["second"].options[:3]] == ["none", "mine", "a100_40gb_8"]
    assert not [name for name in panel["first"].options if "copies" in name or "pairs" in name]
    picture = svg(BOXES, first="dgx_h100_8", second="h100_8", third="none", collective="all_to_all")
    assert "dgx_h100_8" not in picture
    assert svg(BOXES, first="dgx_h100_8", second="none", third="none", collective="all_to_all") == ""


# ---- machine


def test_machine_says_what_the_profile_predicts_and_what_was_measured() -> None:
    one = profiles()["one"]
    expected_s = one.predict("allreduce", "ring", 2**18).makespan_s
    lines = report(MACHINE, algorithm="ring", message="256 KiB")
    assert lines[0].startswith(f"predicted: {time_words(expected_s)}, ")
    assert lines[1] == f"measured:  {time_words(0.8 * expected_s)}; predicted +25.0%"
    assert lines[2] == f"gloo's own: {time_words(NATIVE_S)}"
    assert lines[3] == f"link: {one.best_link('intra')}"
    ranking = svg(MACHINE, "ranking", message="256 KiB")
    assert ranking.count(", measured ") == 3
    assert ">measured<" in ranking


def test_machine_shows_native_by_its_curve_at_sizes_that_were_not_measured() -> None:
    native = [point("allreduce", 2**power, 1e-9 * 2**power, algorithm="native") for power in range(9, 24, 2)]
    box = machine({"made": profile([*links(), *native])})
    low, high = map(time_words, profile(native).curve("allreduce").interval_s(2**18))
    assert f"gloo&#x27;s own, interpolated: 262 µs ({low} to {high})" in shown(box)[1]
    controls(box)["num_ranks"].value = 8
    assert "own, interpolated" not in shown(box)[1]
    assert "own, interpolated" not in shown(machine({"made": profile([*links(), *native[:4]])}))[1]


def test_machine_says_where_no_lower_bound_is_known() -> None:
    fleet = {"fleet": Profile.load("bank:h100_fleet_8")}  # of messages from 32 MiB on: α is not known
    assert ", no lower bound is known" in shown(machine(fleet))[1]


def test_machine_passes_over_points_that_do_not_say_by_which_algorithm() -> None:
    unsaid = point("allreduce", 1 << 18, 1e-3, in_place=True)
    assert "not measured at this size" in shown(machine({"made": profile([*links(), unsaid])}))[1]


def test_machine_predicts_other_numbers_of_ranks_and_says_that_they_were_not_measured() -> None:
    lines = report(MACHINE, num_ranks=6)
    expected_s = profiles()["one"].predict("allreduce", "ring", 2**18, num_ranks=6).makespan_s
    assert lines[0].startswith(f"predicted: {cell_words(expected_s)}, ")
    assert lines[1] == "not measured at this size, on 6 ranks"
    assert ", measured " not in svg(MACHINE, "ranking", num_ranks=6)


def test_ranks_that_do_not_fill_their_nodes_are_refused_and_nothing_is_drawn() -> None:
    box = machine({"two nodes": profile(links(), num_nodes=2, ranks_per_node=[2, 2])})
    assert "<svg" in shown(box)[0]
    controls(box)["num_ranks"].value = 3
    said = "num_ranks must be a multiple of the 2 ranks on a node, got 3"
    assert shown(box)[0] == f"<p>{said}</p>"
    assert said in shown(box)[1]
    controls(box)["num_ranks"].value = 6
    assert "<svg" in shown(box)[0]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "profiles must be at least one, by name, got none"),
        ({"box": "box.json"}, r"profiles\['box'\] must be a Profile, got 'box.json'"),
        ("box.json", "profiles must be Profiles by name, got 'box.json'"),
    ],
)
def test_what_is_no_profile_is_no_machine(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        machine(given)


# ---- transfers


def test_transfers_opens_on_facts_and_says_so() -> None:
    assert "from published figures, nothing here is measured" in report(TRANSFERS)[0]
    assert "at best, from published figures" in svg(TRANSFERS, "ranking")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("direction", ["h2d", "d2h"])
def test_a_copy_takes_what_the_facts_say(method: str, direction: str) -> None:
    line = report(TRANSFERS, link="PCIe 4 x16", method=method, direction=direction, size="16 MiB")[1]
    seconds = PCIE["PCIe 4 x16"].seconds(2**24, direction, method)
    share = 2**24 / seconds / PCIE["PCIe 4 x16"].bytes_per_s(direction)
    assert line.startswith(f"copy: 16 MiB by {method} in {time_words(seconds)}, ")
    assert line.endswith(f", {share:.0%} of the link")


@pytest.mark.parametrize("prefetched", [False, True])
def test_a_batch_takes_what_the_loop_does(prefetched: bool) -> None:
    lines = report(TRANSFERS, load_ms=0, step_ms=5, prefetched=prefetched)
    copy_s = PCIE["PCIe 5 x16"].seconds(2**26, "h2d", "pageable")
    batch_s = max(copy_s, 0.005) if prefetched else copy_s + 0.005
    bound = "copies" if prefetched else "copy + step"
    assert lines[2] == f"loop: {time_words(batch_s)} per batch; {bound} alone would take {time_words(batch_s)}"
    loop = simulate_loop(300, 0.0, copy_s, 0.005, num_workers=2, prefetched=prefetched)
    assert lines[3].endswith(f"max(copy, step) is {time_words(copy_s)}, achieved to {overlap_share(loop):.0%}")


def test_loading_and_pinning_can_bound_the_loop() -> None:
    slow = report(TRANSFERS, load_ms=60, num_workers=1)[2]
    assert slow == "loop: 60 ms per batch; loading alone would take 60 ms"
    free = {"load_ms": 0, "step_ms": 0, "prefetched": True, "method": "pinned"}
    pin_s = 2**26 / PCIE["PCIe 5 x16"].host_copy_bytes_per_s
    assert report(TRANSFERS, **free)[2].endswith(f"pinning alone would take {time_words(pin_s)}")
    assert report(MEASURED, **free)[2].endswith(f"pinning alone would take {time_words(2**26 / 4e9)}")


def test_with_a_profile_times_are_the_measured_ones() -> None:
    box = transfers(gpu())
    assert controls(box)["link"].value == "measured: made up"
    assert "64 MiB to the GPU, measured" in shown(box)[0]
    assert "nothing here is measured" not in shown(box)[1]
    assert report(MEASURED)[1].startswith(f"copy: 64 MiB by pageable in {time_words(2**26 / 8e9)}, 8 GB/s, ")
    controls(box)["link"].value = "PCIe 5 x16"
    assert "published figures" in shown(box)[0]


def test_what_a_profile_does_not_have_is_said() -> None:
    assert report(MEASURED, direction="d2h") == ["the profile has no d2h copies by pageable"]
    assert svg(MEASURED, "ranking", direction="d2h") == ""
    assert svg(MEASURED, "ranking").count("pin_on_the_fly") == 0
    measured = gpu()
    unknown = transfers(Profile(dict(measured.provenance) | {"topology": ""}, {}, measured.points))
    assert "how its GPU is connected is not known" in shown(unknown)[1]
    assert "of the link" not in shown(unknown)[1]


def test_times_lie_on_lines_between_measured_sizes() -> None:
    points = [point("pin", size, size / 1e9, cached=True) for size in SIZES]
    for size in (2**12, 2**15, 2**21, 2**28, 2**30):
        assert between(points, size) == pytest.approx(size / 1e9, rel=1e-5)
    assert between(points, 2**4) == pytest.approx(2**12 / 1e9)
    assert between([], 1024) is None
    times = [between(points, 2**power) for power in range(10, 31)]
    assert (np.diff(np.array(times, dtype=float)) >= 0).all()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (profile([]), "profile must have copies to or from a GPU .*, got none"),
        ("gpu.json", "profile must be a Profile, got 'gpu.json'"),
    ],
)
def test_a_profile_without_copies_is_refused(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        transfers(given)


# ---- ddp


def test_ddps_default_is_one_of_the_caps() -> None:
    box = ddp()
    before = shown(box)
    assert controls(box)["cap"].value == "default"
    controls(box)["cap"].value = "64 MiB"
    assert shown(box) == DDP.html(DDP.at(cap="64 MiB")) != before
    assert "a cap of 64 MiB" in shown(box)[0]


def test_ddps_report_is_of_the_step_that_is_drawn() -> None:
    shown = Training(Networks())
    held = report(DDP, slower=50)[1]
    assert held.startswith(f"{shown.timeline(DDP.at(slower=50)).makespan_s * 1e3:.3g} ms per step: computing alone ")
    lines = report(DDP)
    assert lines[0] == "ResNet-50: 161 gradients of 97.5 MiB, 13.1 ms of backward per micro-batch; 32 ranks"
    waiting_ms = shown.timeline(DDP.at()).select(kind="wait").busy_s * 1e3
    assert f"held up 0 ms, waiting {waiting_ms:.3g} ms (exposed communication)" in lines[1]


def test_ddp_starts_on_a_real_machine_that_ran_such_a_job() -> None:
    """It started on a bare ring of 32 ranks with 50 µs per hop: 1 MiB took 3.18 ms, and it advised a cap of 32 MiB."""
    cost = Profile.load("bank:abci_a100_4x8").cost()
    assert float(Training(Networks()).networks.cost(DDP.at())(2**20)) == float(cost(2**20)) < 0.2e-3
    lines = report(DDP)
    assert lines[3].startswith("write DistributedDataParallel(module, bucket_cap_mb=1): ")
    assert "2.6% less than the default's" in lines[3]
    assert lines[-3].startswith("network: ABCI 2.0: 4 nodes of 8 × A100-SXM4-40GB, ")
    assert lines[-3].endswith(", 32 ranks, measured with NCCL")
    assert lines[-2].startswith("source: aistabci/abci2.0benchmark; MIT")
    assert lines[-1] == "beyond 32 MiB, the largest size that was measured, times are extrapolated"
    assert "extrapolated" not in report(DDP, network="a100_80gb_8")[-1]


def test_ddp_lists_the_bank_then_the_model_then_gloo_then_a_link_by_hand() -> None:
    names = [name for _, name in controls(ddp())["network"].options]
    banks = [name for name in names if name in bank()]
    assert names == [
        *banks,
        *("nccl:a100", "nccl:h100", "nccl:b200"),
        *("emulated, 100 Mbit/s, 5 ms", "loopback, two cores"),
        "latency and bandwidth",
    ]
    assert len(banks) >= 40
    assert [name for name, about in provenances().items() if is_sick(about) and name in names] == [
        name for label, name in controls(ddp())["network"].options if ", faulty" in label
    ]
    own = controls(ddp({"mine": six_ranks(), "loopback, two cores": six_ranks()}))["network"]
    assert own.value == "mine"
    assert [name for _, name in own.options] == ["mine", "loopback, two cores", *names[:-2], names[-1]]


@pytest.mark.parametrize(("network", "num_ranks"), [("aws_p4d_2x8", 16), ("v100_25gbe_2x1_no_gdr", 2)])
def test_a_measured_network_has_its_own_number_of_ranks(network: str, num_ranks: int) -> None:
    box = ddp(network="nccl:h100", num_ranks=1024)
    panel = controls(box)
    assert not panel["num_ranks"].disabled
    panel["network"].value = network
    assert (panel["num_ranks"].value, panel["num_ranks"].disabled) == (num_ranks, True)
    assert panel["num_ranks"].tooltip == f"this network was measured with {num_ranks} ranks"
    assert f"on {num_ranks} ranks with DDP&#x27;s default" in shown(box)[0].replace("'", "&#x27;")
    assert box.line.value == f'explorers.ddp(network="{network}")'
    assert shown(box) == shown(ddp(network=network, num_ranks=512))
    panel["network"].value = "nccl:h100"
    assert (panel["num_ranks"].value, panel["num_ranks"].disabled) == (num_ranks, False)


def test_a_network_of_any_size_follows_the_ranks() -> None:
    shown = Training(Networks())
    cost = shown.networks.cost
    for num_ranks, gpus, nodes in ((8, 8, 1), (64, 8, 8), (2, 2, 1)):
        table = cost(DDP.at(network="nccl:h100", num_ranks=num_ranks))
        for size in (2**10, 2**20, 2**28):
            expected_s = Model("h100", gpus, nodes).choose("allreduce", size).time_s
            assert float(table(size)) == pytest.approx(expected_s, rel=1e-9)
    assert cost(DDP.at(network="nccl:a100", num_ranks=4096))(2**20) > cost(DDP.at(network="nccl:a100"))(2**20)
    assert report(DDP, network="nccl:b200")[-1].startswith("NCCL's model, not a measurement: ")


def test_latency_and_bandwidth_have_an_effect_by_hand_alone() -> None:
    panel = controls(ddp())
    said = "only the network “latency and bandwidth” is set by hand"
    for name in ("alpha_us", "gb_per_s"):
        assert (panel[name].disabled, panel[name].tooltip) == (True, said)
    panel["network"].value = "latency and bandwidth"
    assert not any(panel[name].disabled for name in ("alpha_us", "gb_per_s", "num_ranks"))
    now = DDP_BY_HAND.at(network="latency and bandwidth", alpha_us=20, gb_per_s=3, num_ranks=64)
    ring_s = closed_form("allreduce", "ring", 64, 2**20, Link(20e-6, 3e9))
    assert float(Training(Networks()).networks.cost(now)(2**20)) == ring_s
    assert DDP_BY_HAND.report(now)[-1] == "network: a ring over 64 ranks with links of 20 µs and 3 GB/s"


def test_ddp_of_your_own_profile() -> None:
    assert report(DDP_OF_YOURS)[0].endswith("; 6 ranks")
    now = DDP_OF_YOURS.at()
    networks = Networks({"mine": six_ranks()})
    assert (now.network, now.num_ranks, networks.num_ranks(now)) == ("mine", 6, 6)
    assert float(networks.cost(now)(2**13)) == pytest.approx(1e-4 + 2**13 / 1e9)
    assert DDP_OF_YOURS.line(now) == "explorers.ddp(profiles)"
    assert 6 in dict(controls(ddp({"mine": six_ranks()}))["num_ranks"].options).values()
    model = report(DDP_OF_YOURS, network="nccl:h100", num_ranks=6)
    assert model[0].endswith("; 6 ranks")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("box.json", "profiles must be Profiles by name, got 'box.json'"),
        ({"box": "box.json"}, r"profiles\['box'\] must be a Profile, got 'box.json'"),
        ({"box": profile(links())}, "profile 'made up' must have the backend's own allreduce at two sizes or more"),
        ({"latency and bandwidth": profile([])}, "profiles must have other names than 'latency and bandwidth'"),
    ],
)
def test_what_has_no_allreduce_is_no_network(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ddp(given)


def test_every_preset_of_ddp_is_there_without_the_packages_that_know_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list shows whatever is registered: without any provider, a link by hand and your own profiles are left."""
    monkeypatch.setattr(networks_module, "PROVIDERS", ["rankscope.not_installed.networks:any"])
    box = ddp()
    assert [name for _, name in controls(box)["network"].options] == ["latency and bandwidth"]
    assert "<svg" in shown(box)[0]
    labels = [button.description for button in box.presets]
    assert "a network of 3 GB/s" in labels
    assert "ResNet-50 on 32 A100s" not in labels
    assert controls(ddp({"mine": six_ranks()}))["network"].value == "mine"


# ---- zero


def test_zero_says_what_its_memory_does() -> None:
    expected = zero_memory(7.5e9, 16, 2, largest_layer=300_000_000, activation_bytes=7 * 10**9)
    lines = report(ZERO, stage=2, layer_millions=300, activations_gb=7, num_ranks=16)
    fits, traffic, *_ = lines[len(expected.words()) :]
    assert lines[: len(expected.words())] == expected.words()
    assert fits == "24 GB: does not fit; 80 GB: fits; 141 GB: fits"
    assert traffic.startswith("stage 2, 16 ranks: each rank sends 28.1 GB per step")


def test_a_layer_is_no_larger_than_its_model_and_buckets_are_ddps() -> None:
    now = ZERO.at(model="125 M", layer_millions=2000, buckets=True)
    found = [memory(None, now, stage) for stage in range(4)]
    assert found[3].terms["largest_layer"] == 125_000_000 * 4
    assert [one.terms["buckets"] > 0 for one in found] == [True, True, False, False]


def test_zero_of_your_own_module() -> None:
    box = zero(MODULE, num_ranks=2, stage=3)
    assert controls(box)["model"].value == "your module"
    assert escape(str(zero_memory(MODULE, 2, 3))) in shown(box)[1]
    models = controls(zero())["model"].options
    assert controls(zero(module=MODULE))["model"].options == (("your module", "your module"), *models)
    controls(box)["model"].value = "1.5 B"
    assert shown(box) == OWN.html(OWN.at(model="1.5 B", num_ranks=2, stage=3))


# ---- uneven


@pytest.mark.parametrize(
    ("settings", "lines"),
    [
        ({"handling": "drop"}, ["80 samples: 32 lost, 0 repeated", "step: 1, 1", "0.00 to 1.67 times"]),
        ({"handling": "pad"}, ["80 samples: 0 lost, 40 repeated", "step: 1, 1, 1, 1, 1", "0.67 to 2.00 times"]),
        ({"handling": "join"}, ["0 lost, 0 repeated", "step: 1, 1, 0.667, 0.333, 0.333", "1.00 to 1.00 times"]),
        ({"handling": "join", "divide_by_initial": False}, ["0 lost", "step: 1, 1, 1, 1, 1", "0.67 to 2.00 times"]),
    ],
)
def test_uneven_says_what_becomes_of_the_samples(settings: dict[str, Any], lines: list[str]) -> None:
    for line, found in zip(lines, report(UNEVEN, **settings), strict=True):
        assert line in found


# ---- pipeline_parallel


def test_pipeline_parallel_says_what_the_schedule_does() -> None:
    assert report(SCHEDULES, schedule="gpipe", num_ranks=3, num_microbatches=5, activation_mb=2) == [
        "gpipe ranks=3 microbatches=5 chunks=1",
        "bubble: 28.6% of the step; 2/7 = 28.6% where links are free",
        "activations kept per rank, in microbatches: 5, 5, 5",
        "each rank sends at most 20 MB per step",
    ]
    assert bubble_share("gpipe", 3, 5) == Fraction(2, 7)
    assert max(traffic(build_pipeline("gpipe", 3, 5), 2e6)) == 20e6


def test_a_link_that_is_not_free_makes_the_step_longer() -> None:
    settings = {"schedule": "gpipe", "num_ranks": 2, "num_microbatches": 1, "link": "1 GB/s, 50 µs"}
    _, spans, _ = step(SCHEDULES.at(**settings))
    assert (
        spans.makespan_s
        == simulate_schedule(build_pipeline("gpipe", 2, 1), 0.010, 0.020, LINKS["1 GB/s, 50 µs"], 4e6).makespan_s
    )
    assert spans.makespan_s == pytest.approx(0.060 + 2 * (50e-6 + 4e-3))
    assert report(SCHEDULES, **settings)[1].startswith("bubble: 55.9% of the step; 1/2 = 50.0%")


def test_microbatches_that_rounds_do_not_fit_become_the_next_number_that_does() -> None:
    now = {"schedule": "interleaved_1f1b", "num_ranks": 4, "num_microbatches": 9}
    assert plan(SCHEDULES.at(**now)).num_microbatches == 10
    assert report(SCHEDULES, **now)[-1] == "(9 microbatches do not fill its rounds)"
    for num_ranks in range(1, 9):
        for number in (1, 2, 7, 13, 31, 32):
            now = {"num_ranks": num_ranks, "num_microbatches": number, "schedule": "interleaved_1f1b"}
            assert "bubble" in report(SCHEDULES, **now, num_chunks=3, backward_percent=0)[1]
    assert "<svg" in shown(pipeline_parallel(**now))[0]


# ---- data_parallel


def test_data_parallel_says_how_both_compare_with_one_gpu() -> None:
    lines = report(REPLICAS, model="LLaMA-7B", num_gpus=8, batch="9 samples")
    assert lines[0] == "one GPU alone: 19.8 s per step"
    assert lines[-1] == "DataParallel uses 5 of 8 GPUs: it cuts the batch as torch.chunk does"
    assert len(lines) == 5
    assert len(report(REPLICAS)) == 4


def test_data_parallel_draws_both_steps_of_each_gpu() -> None:
    now = REPLICAS.at(num_gpus=3, batch="8 samples")
    drawn = REPLICAS.pictures["picture"](now)
    assert len(drawn.y_ticks) == 3 * 4
    assert drawn.title.startswith("ResNet-50 on 3 GPUs: a step takes 36.3 ms with DataParallel (DP), ")


# ---- nccl


@pytest.mark.parametrize("size", [2**10, 2**20, 2**30])
def test_nccl_says_what_the_model_chooses(size: int) -> None:
    choice = Model("a100", 8, 4, (2, 27), nics=4).choose("allreduce", size)
    now = {"gpu": "a100", "num_nodes": 4, "version": "2.27", "nics": 4, "message": bytes_words(size)}
    first, second, *_ = report(NCCL, **now)
    assert first.startswith(f"{now['message']}: {choice.algorithm} {choice.protocol} on {choice.channels:.0f} of ")
    assert second.startswith(f"NCCL expects {time_words(choice.nccl_s)}; ")
    assert NCCL.pictures["picture"](NCCL.at(**now)).title.endswith(
        f"{choice.algorithm} {choice.protocol} at {now['message']}"
    )


def test_nccl_names_public_machines_and_what_nvls_saves() -> None:
    lines = report(NCCL, message="1 GiB")
    assert lines[0].startswith("1 GiB: nvls simple")
    assert {"aws_p5_8: 4.26 ms", "dgx_h100_8: 4.02 ms"} < set(lines)
    assert report(NCCL, message="1 GiB", nvls=False)[0].startswith("1 GiB: ring simple")
    assert NCCL.without_effect(NCCL.at(gpu="a100"))["nvls"]
    assert "nics" not in NCCL.without_effect(NCCL.at(num_nodes=2))
