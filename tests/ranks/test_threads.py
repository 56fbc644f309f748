"""Ranks in threads: they really meet, and one that fails does not leave the others waiting."""

from __future__ import annotations

import pickle
import threading

import pytest
import torch

from rankscope.ranks import RankError, in_threads
from tests.processes import NOT_HANGING_S

from . import functions


def test_ranks_meet_and_results_come_by_rank():
    def gather(rank, group):
        everybody = [torch.zeros(1, dtype=torch.int64) for _ in range(3)]
        group.allgather([everybody], [torch.tensor([rank * 10])]).wait()
        return rank, [int(tensor) for tensor in everybody]

    assert in_threads(3, gather) == [(rank, [0, 10, 20]) for rank in range(3)]
    assert in_threads(1, lambda rank, group: rank) == [0]


def test_a_rank_that_fails_is_named_and_nobody_waits_for_it():
    def work(rank, group):
        group.barrier().wait()
        if rank == 1:
            raise KeyError("lost")
        group.barrier().wait()

    with pytest.raises(RankError, match="rank 1 failed: KeyError: 'lost'") as caught:
        in_threads(3, work, timeout_s=10_000)
    assert caught.value.rank == 1
    assert isinstance(caught.value.__cause__, KeyError)


def test_an_error_whose_str_raises_is_the_cause():
    with pytest.raises(RankError, match="rank 0 failed: Speechless") as caught:
        in_threads(1, lambda rank, group: functions.fail_speechless())
    assert isinstance(caught.value.__cause__, functions.Speechless)


def test_a_rank_error_can_be_pickled():
    error = RankError("rank 1 failed: KeyError: 'lost'", 1)
    error.add_note("why")
    copied = pickle.loads(pickle.dumps(error))
    assert (type(copied), copied.args, copied.rank, copied.__notes__) == (RankError, error.args, 1, ["why"])


def test_nobody_waits_either_where_the_error_comes_from_another():
    def lost(group):
        raise KeyError("lost")

    def work(rank, group):
        group.barrier().wait()
        try:
            if rank == 1:
                lost(group)
        except KeyError as error:
            raise ValueError("wrapped") from error
        group.barrier().wait()

    with pytest.raises(RankError, match="rank 1 failed: .*wrapped"):
        in_threads(3, work, timeout_s=10_000)


def test_a_rank_that_stays_away_is_given_up_in_time():
    given_up = threading.Semaphore(0)

    def work(rank, group):
        if rank == 0:
            assert all(given_up.acquire(timeout=NOT_HANGING_S) for _ in range(2))
            return
        try:
            group.barrier().wait()
        finally:
            given_up.release()

    with pytest.raises(RankError, match=r"rank [12] failed"):
        in_threads(3, work, timeout_s=2.0)
