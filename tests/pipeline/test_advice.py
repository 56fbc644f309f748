"""Advice names what was made the bottleneck, promises no more than there is, and holds when it is followed."""

from __future__ import annotations

import time

import numpy as np
import pytest
from attrs import evolve
from torch.utils.data import DataLoader, Dataset

from rankscope.pipeline import advise, record_dataloader
from rankscope.pipeline.advice import COLUMNS, LoaderProfile, LoaderSettings, PinningCosts, simulate_profile
from rankscope.pipeline.dataloader import profile_columns

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]
BATCHES = 60


def profile(num_workers=1, cores=64, accelerator=False, pinning=None, startup_s=0.0, prefetch_factor=2, **means_s):
    """A profile of batches whose times vary by a fifth; what is not named takes next to nothing."""
    rng = np.random.default_rng(0)
    names = ("read", "collate", "cpu", "receive", "pin", "wait", "step", "step_cpu", "handover")
    columns = {f"{name}_s": means_s.get(name, 1e-5) * rng.uniform(0.8, 1.2, BATCHES) for name in names}
    settings = LoaderSettings(num_workers, prefetch_factor, pin_memory=accelerator and "pin" in means_s)
    return LoaderProfile(settings, BATCHES, cores, accelerator, startup_s=startup_s, pinning=pinning, **columns)


@pytest.mark.parametrize(
    ("part", "settings"),
    [
        ("reading", {"read": 0.03, "collate": 0.01, "step": 0.01}),
        ("collating", {"read": 0.01, "collate": 0.03, "step": 0.01}),
        ("reading", {"read": 0.03, "step": 0.01, "num_workers": 0}),
        ("hand-over", {"handover": 0.03, "read": 0.01, "step": 0.01}),
        ("hand-over", {"receive": 0.03, "read": 0.03, "step": 0.001, "num_workers": 4}),
        ("pinning", {"pin": 0.03, "read": 0.01, "step": 0.01, "accelerator": True}),
        ("training step", {"read": 0.03, "step": 0.03, "num_workers": 4}),
        ("worker start-up", {"read": 0.001, "step": 0.001, "startup_s": 5.0}),
        ("CPU cores", {"read": 0.03, "cpu": 0.03, "step": 0.005, "num_workers": 8, "cores": 2}),
        ("CPU cores", {"read": 0.03, "cpu": 0.03, "step": 0.01, "step_cpu": 0.01, "num_workers": 8, "cores": 2}),
        ("reading", {"read": 0.03, "cpu": 0.03, "step": 0.005, "num_workers": 2, "cores": 8}),
    ],
)
def test_the_bottleneck_is_the_part_that_takes_longest(part, settings):
    assert advise(profile(**settings)).bottleneck == part


def test_waiting_reads_want_workers_and_the_step_is_next():
    advice = advise(profile(read=0.06, step=0.01, wait=0.05))
    assert advice.best.settings == LoaderSettings(8)
    assert advice.best.speedup == pytest.approx(6, rel=0.2)
    assert advice.bottleneck_next == "training step"
    assert advice.waiting_share == pytest.approx(5 / 6, rel=0.05)
    assert advice.recorded_s == pytest.approx(BATCHES * 0.06, rel=0.05)
    assert [row.predicted_s for row in advice.rows] == sorted(row.predicted_s for row in advice.rows)
    report = str(advice)
    assert "bottleneck: reading; the training loop waits for 83 % of the epoch" in report
    assert "recommended: 8 workers, prefetch_factor 2, in order" in report
    assert "times as fast as the recorded settings (both predicted)" in report
    assert "The bottleneck is then training step." in report


def test_settings_are_told_in_words():
    assert str(LoaderSettings(0)) == "no workers"
    assert str(LoaderSettings(2, 4, pin_memory=True)) == "2 workers, prefetch_factor 4, in order, pinned"
    assert str(LoaderSettings(1, in_order=False)) == "1 worker, prefetch_factor 2, in_order=False"


def test_a_loop_that_does_not_wait_is_left_alone():
    advice = advise(profile(num_workers=4, read=0.02, step=0.03, wait=0.0005))
    assert advice.bottleneck == advice.bottleneck_next == "training step"
    assert advice.best is advice.current
    assert "recommended: nothing" in str(advice)


def test_no_more_is_promised_than_the_cores_allow():
    two_cores = profile(num_workers=1, cores=2, read=0.03, cpu=0.03, step=0.005, step_cpu=0.005)
    bound_s = two_cores.cpu_bound_s
    assert bound_s == pytest.approx(BATCHES * 0.035 / 2, rel=0.05)
    advice = advise(two_cores, num_workers=[0, 1, 2, 4, 16, 64])
    assert all(row.predicted_s > 0.99 * bound_s for row in advice.rows)
    assert advice.best.settings.num_workers <= 4
    note = f"CPU work alone takes {bound_s:.3g} s on 2 cores, so more workers cannot go below that"
    assert note in advice.notes
    many_cores = advise(evolve(two_cores, num_cores=64), num_workers=[16])
    assert many_cores.best.predicted_s < 0.5 * bound_s  # the check above can fail


def test_the_order_is_kept_unless_leaving_it_is_worth_it():
    even = profile(read=0.04, step=0.01)
    assert advise(even).best.settings.in_order
    uneven = evolve(even, read_s=np.where(np.arange(BATCHES) % 12 == 0, 0.4, 0.004))
    advice = advise(uneven, num_workers=[4], prefetch_factors=[1])
    assert not advice.best.settings.in_order
    assert any("from run to run" in note for note in advice.notes)


def test_pinning_is_tried_where_it_is_known_and_left_out_where_there_is_nothing_to_pin_for():
    assert "pin_memory would not help" in advise(profile(read=0.01)).notes[0]
    assert "could not be measured" in advise(profile(read=0.01, accelerator=True)).notes[0]
    costs = PinningCosts(pageable_copy_s=0.010, pin_s=0.004, pinned_copy_s=0.002)
    advice = advise(profile(read=0.02, step=0.02, num_workers=2, accelerator=True, pinning=costs))
    assert advice.best.settings.pin_memory
    assert advice.best.speedup > 1.3
    pinned = profile(read=0.02, step=0.02, pin=0.004, num_workers=4, accelerator=True, pinning=costs)
    without_pinning = simulate_profile(pinned, evolve(pinned.settings, pin_memory=False))
    assert "pin" not in {span.kind for span in without_pinning}
    assert without_pinning.makespan_s == pytest.approx(BATCHES * 0.028, rel=0.1)
    expensive = PinningCosts(pageable_copy_s=0.003, pin_s=0.040, pinned_copy_s=0.002)  # a copy that is itself slow
    advice = advise(profile(read=0.02, step=0.02, num_workers=2, accelerator=True, pinning=expensive))
    assert not advice.best.settings.pin_memory


@pytest.mark.parametrize(
    ("settings", "change", "note"),
    [
        ({"num_workers": 0}, {}, "recorded without workers, so their start-up and hand-over are unknown"),
        ({}, {name: np.ones(12) for name in COLUMNS}, "batches recorded: 12; predictions from so few are rough"),
        ({"read": 0.02, "wait": 0.01}, {}, "the prediction for the recorded settings is off by +"),
    ],
)
def test_what_makes_a_prediction_rough_is_noted(settings, change, note):
    assert note in "\n".join(advise(evolve(profile(**settings), **change)).notes)
    assert note not in "\n".join(advise(profile(read=0.02, wait=0.02)).notes)


def test_an_epoch_can_be_completed_and_workers_that_persist_have_started_long_ago():
    short = profile(startup_s=5.0, read=0.01)
    lasting = evolve(short, settings=evolve(short.settings, persistent_workers=True))
    short_s = advise(short, num_batches=60).current.predicted_s
    whole_epoch_s = advise(short, num_batches=600).current.predicted_s
    lasting_s = advise(lasting, num_batches=60).current.predicted_s
    assert whole_epoch_s - short_s == pytest.approx(540 * 0.01, rel=0.05)
    assert short_s - lasting_s == pytest.approx(5.0)


def test_the_wait_for_a_lock_in_some_receives_is_part_of_the_hand_over():
    even = profile(num_workers=4, read=0.03, step=0.001)
    held_up = evolve(even, receive_s=np.where(np.arange(BATCHES) % 5 == 0, 0.03, 1e-4))
    held_up_s = simulate_profile(held_up, held_up.settings).makespan_s
    assert held_up_s > simulate_profile(even, even.settings).makespan_s
    assert held_up_s > simulate_profile(held_up, held_up.settings, faster="hand-over").makespan_s


def test_columns_are_seconds_in_the_order_of_the_batches():
    columns = profile_columns([(n, 0, n + 6, 1, 2, 3, 4, 5, 7, 8, hand) for n, hand in ((1, -1), (0, 9_000_000_000))])
    assert columns["handover_s"].tolist() == [9.0]
    assert columns["read_s"].tolist() == [6e-9, 7e-9]
    assert set(columns) == set(COLUMNS)


# ---- advice that is followed


class Waiting(Dataset):
    """It waits for long, beside which little is what else a busy machine makes a batch wait for."""

    def __len__(self):
        return 16

    def __getitem__(self, index):
        time.sleep(0.1)
        return index


def epoch_s(batches):
    start = time.perf_counter()
    for _ in batches:
        time.sleep(0.002)
    return time.perf_counter() - start


@pytest.mark.slow
def test_advice_for_a_waiting_dataset_holds_when_it_is_followed():
    """Workers that stay, so that how long they take to start, on a machine busy with something else, has no part."""
    for _ in range(5):  # until one epoch was not held up by something else
        before = record_dataloader(DataLoader(Waiting(), num_workers=1, persistent_workers=True))
        epoch_s(before)
        advice = advise(before, num_workers=[1, 2, 4])
        if advice.bottleneck == "reading":
            break
    assert advice.bottleneck == "reading"
    best = advice.best.settings
    assert best.num_workers > 1
    settings = {"num_workers": best.num_workers, "prefetch_factor": best.prefetch_factor, "in_order": best.in_order}
    after = DataLoader(Waiting(), persistent_workers=True, **settings)
    epoch_s(after)
    gains = []
    for _ in range(5):
        gains.append(epoch_s(before) / epoch_s(after))
        if gains[-1] > 1.4:
            break
    assert max(gains) > 1.4, gains
