"""Where a measured machine would be faster with another choice than NCCL's, for NCCL's example tuner plug-in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, zip_longest
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .constants import COLLECTIVES
from .model import Model

if TYPE_CHECKING:
    from .. import Profile

NVLS_GPUS = 8  # its terms were fitted there
# A choice must take less than this share of the measured time: on 90 % of public curves, the model is off by less.
LEAST_GAIN = 0.85
ANY = -1  # what the plug-in matches with every number of pipelined operations and every kind of buffer
# Facts read from NCCL's example plug-in, ext-tuner/example/plugin.c, since 2.29 plugins/tuner/example/plugin.c: words
# that parseCollType knows (it takes any other for allreduce), fields in their order, and lines of comments.
PLUGIN_WORDS = {name: name.replace("_", "") for name in COLLECTIVES}
FIELDS = "collective,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff"
COMMENTS = (
    f"# {FIELDS}",
    "# For NCCL's example tuner plug-in, which reads this file from NCCL_TUNER_CONFIG_FILE.",
    "# If no line matches, the plug-in makes NCCL use one channel, which is slow. Before you build it, replace",
    "# `*nChannels = 1;` by `*nChannels = 0;` in its function pluginGetCollInfo: then NCCL keeps its own number.",
)


class _TunerChoice(NamedTuple):
    algorithm: str
    protocol: str
    channels: int


def tuner_csv(model: Model, profile: Profile) -> str:
    """Return the lines of a tuner file: sizes at which another choice should take less than 85 % of what was measured.

    A size counts only if the model is within 15 % of the measurement for NCCL's own choice: elsewhere it does not know
    what is slow. Only rings and NVLS (of 8 GPUs) of one node are compared, because of others the model only knows what
    NCCL does. Lines that begin with # are comments; with no other line, nothing is worth changing.

    Channels are stated as a number, because the plug-in's -1, which its README explains as NCCL's default, leaves NCCL
    with one channel.

    Raises ValueError for a profile of another number of ranks.
    """
    if profile.num_ranks != model.num_ranks:
        raise ValueError(f"profile must be of {model.num_ranks} ranks, got {profile.num_ranks}")
    lines = list(COMMENTS)
    if model.num_nodes == 1:
        for collective in COLLECTIVES:
            lines += _lines(model, profile, collective)
    return "\n".join(lines) + "\n"


def _lines(model: Model, profile: Profile, collective: str) -> list[str]:
    """Return the lines of a collective, one for each range of sizes with the same choice."""
    points = profile.native_points(collective)
    sizes = [size for size in points if size]  # the model has none of 0 bytes
    known = ["ring"]  # algorithms whose times the model knows, not only NCCL's choices
    if model.gpus_per_node == NVLS_GPUS:
        known.append("nvls")
    table = model.table(sizes)
    table = table[(table.collective == collective) & (table.why_not == "")]
    candidates = table[table.algorithm.isin(known)]
    if candidates.empty:  # not measured, or NCCL's log excludes them, as in a job with NCCL_ALGO=tree
        return []
    better: dict[int, _TunerChoice] = {}
    for size in sizes:
        measured_s = float(np.median([point.median_s for point in points[size]]))
        [modelled_s] = table[(table.num_bytes == size) & table.is_chosen].time_s  # NCCL's own choice, as was measured
        candidates_s = candidates[candidates.num_bytes == size].time_s
        best = candidates.loc[candidates_s.idxmin()]
        is_model_right = abs(modelled_s / measured_s - 1) < 1 - LEAST_GAIN
        if is_model_right and best.time_s < LEAST_GAIN * measured_s:
            better[size] = _TunerChoice(best.algorithm, best.protocol, int(best.channels))
    lines = []
    for span in _ranges(sizes, better):
        choice = span.choice
        cells = (
            PLUGIN_WORDS[collective],
            span.first,
            span.last,
            choice.algorithm,
            choice.protocol,
            choice.channels,
            model.num_nodes,
            model.num_ranks,
            ANY,
            ANY,
        )
        lines.append(",".join(map(str, cells)))
    return lines


class _TunerRange(NamedTuple):
    """A range of sizes, both ends included, with one choice."""

    first: int
    last: int
    choice: _TunerChoice


def _ranges(sizes: Sequence[int], better: Mapping[int, _TunerChoice]) -> Iterator[_TunerRange]:
    """Yield the ranges of sizes with one choice.

    If only the number of channels changes, the earlier range ends just below the next, so that no size between two
    measured ones is left out.
    """

    def algorithm_and_protocol(size: int) -> tuple[str, str] | None:
        choice = better.get(size)
        return None if choice is None else (choice.algorithm, choice.protocol)

    for pair, run in groupby(sizes, algorithm_and_protocol):
        if pair is None:  # NCCL's own choices are good enough at these sizes
            continue
        groups = [list(group) for _, group in groupby(run, better.__getitem__)]  # of sizes with equal channels, too
        for group, next_group in zip_longest(groups, groups[1:]):
            last = next_group[0] - 1 if next_group else group[-1]
            yield _TunerRange(group[0], last, better[group[0]])


def num_choices(lines: str) -> int:
    """Return the number of choices in a tuner file, which is that of its lines without comments."""
    return sum(not line.startswith("#") for line in lines.splitlines())
