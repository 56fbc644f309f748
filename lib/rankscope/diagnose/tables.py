"""The tables of a diagnosis, which the command prints and its page shows: heads, and then rows of words."""

from __future__ import annotations

import numpy as np

from ..common.units import bytes_words, times_in_one_unit
from ..common.words import printable
from .diagnosis import JobDiagnosis
from .trace import PHASES

RANKS = "Time of each rank per step; exposed: it only waits or communicates; late: own time minus the others' median"
CALLS = "Communication per step, mean over ranks; hidden: while the rank works; last: the rank that others wait for"
_MOST_ROWS = 16
_LEAST_SHARE = 0.01  # of the own time: a phase with less has no column
_LEAST_LATE = 0.005  # of a step: a rank that is late by less is not shown as late


def rank_table(diagnosis: JobDiagnosis) -> list[list[str]]:
    """Return a row per rank, of many ranks for the latest; all times are in one unit. There must be steps."""
    mean_s = diagnosis.phase_s.mean(axis=0)  # ranks by phases
    late_s = diagnosis.late_s.mean(axis=0)
    late_s = np.where(late_s > _LEAST_LATE * diagnosis.step_s, late_s, 0.0)
    shown = np.flatnonzero(mean_s.sum(axis=0) > _LEAST_SHARE * mean_s.sum())
    rows = np.sort(np.argsort(-late_s, kind="stable")[:_MOST_ROWS])
    table_s = np.column_stack([mean_s[:, shown], diagnosis.waiting_s.mean(axis=0), late_s])[rows]
    words = np.array(times_in_one_unit(*table_s.ravel().tolist())).reshape(table_s.shape)
    heads = ["rank", *(PHASES[phase] for phase in shown), "exposed", "late"]
    return [heads, *([str(diagnosis.ranks[row]), *cells] for row, cells in zip(rows, words.tolist(), strict=True))]


def call_table(diagnosis: JobDiagnosis) -> list[list[str]]:
    """Return a row per collective, of many for those that are waited for longest; all times are in one unit."""
    buckets = sorted(diagnosis.buckets, key=lambda bucket: -bucket.exposed_s)[:_MOST_ROWS]
    # these are differences of floats, which may be a little below 0
    seconds = [max(each_s, 0.0) for bucket in buckets for each_s in (bucket.exposed_s, bucket.hidden_s)]
    words = times_in_one_unit(*seconds)
    table = [["what", "size", "exposed", "hidden", "last"]]
    for bucket, exposed, hidden in zip(buckets, words[::2], words[1::2], strict=True):
        size = bytes_words(bucket.num_bytes) if bucket.num_bytes >= 0 else ""
        is_late = bucket.last_rank is not None and bucket.late_s > _LEAST_LATE * diagnosis.step_s
        last = str(bucket.last_rank) if is_late else ""
        table.append([printable(bucket.name), size, exposed, hidden, last])
    return table
