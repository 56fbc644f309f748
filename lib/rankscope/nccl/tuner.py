"""Where a measured machine would be faster with another choice than NCCL's, for NCCL's example tuner plug-in."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from .constants import COLLECTIVES
from .model import Model

if TYPE_CHECKING:
    from ..machine import Profile

NVLS_GPUS = 8  # its terms were fitted there
LEAST_GAIN = 0.85  # of the time that was measured: 90 % of public curves are nearer to the model
HEAD = "collective,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff"


def tuner_csv(model: Model, profile: Profile) -> str:
    """Return the lines of a tuner file: sizes at which another choice should take less than 85 % of what was measured.

    A size counts only where the model is within 15 % of the measurement for what NCCL chooses itself: elsewhere it
    does not know what is slow. Only rings and NVLS (of 8 GPUs) of one node are compared: of others the model knows
    what NCCL does, and no more. The first line names the columns; with no other line, nothing is worth changing.

    Raises ValueError for a profile of another number of ranks.
    """
    if profile.num_ranks != model.num_ranks:
        raise ValueError(f"profile must be of {model.num_ranks} ranks, got {profile.num_ranks}")
    lines = [HEAD]
    for collective in COLLECTIVES:
        points = profile.select(collective, algorithm="native") if model.num_nodes == 1 else ()
        sizes = sorted({point.num_bytes for point in points if point.num_bytes})
        table = model.table(sizes or [1])
        table = table[(table.collective == collective) & (table.why_not == "")]
        better: dict[int, tuple[str, str]] = {}
        for size in sizes:
            took_s = float(np.median([point.median_s for point in points if point.num_bytes == size]))
            rows = table[table.num_bytes == size]
            known = rows[rows.algorithm.isin(("ring", "nvls") if model.gpus_per_node == NVLS_GPUS else ("ring",))]
            own_s, best = float(rows[rows.is_chosen].time_s.iloc[0]), known.loc[known.time_s.idxmin()]
            if abs(own_s / took_s - 1) < 1 - LEAST_GAIN and best.time_s < LEAST_GAIN * took_s:
                better[size] = best.algorithm, best.protocol
        for choice, group in groupby(sizes, better.get):
            if choice:
                run = list(group)
                nodes = f"-1,{model.num_nodes},{model.num_ranks},-1,-1"
                lines.append(f"{collective},{run[0]},{run[-1]},{','.join(choice)},{nodes}")
    return "\n".join(lines) + "\n"
