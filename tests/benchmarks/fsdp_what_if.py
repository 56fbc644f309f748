"""What other settings of `fully_shard` would give, from traces of one setting, and what they then give.

    python -m tests.benchmarks.fsdp_what_if          # on two ranks over loopback
    python -m tests.benchmarks.fsdp_what_if 4 --rounds 5

Each module trains on Gloo ranks under torch.profiler, in turns with each setting. From the traces of one setting
`what_if` predicts the others, which are compared with their own traces: medians over rounds. A round begins with
another setting each time. The profiler's own cost is in all of them. How far rounds differ stands next to each row,
because no prediction can come nearer.
"""

from __future__ import annotations

import argparse
import copy
import os
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, schedule

from rankscope.diagnose import read_traces
from rankscope.diagnose.forecasts import RangedAnswer
from rankscope.diagnose.sharded_forecast import ShardedForecast, sharded_forecast
from rankscope.ranks import launch
from rankscope.train.fsdp.replay import ShardSettings
from rankscope.train.fsdp.running import shard, wrapped_names

from .fsdp import CASES, loss, names_of

WARM_UP = 2
STEPS = 8
SETTINGS: dict[str, dict[str, Any]] = {
    "reshard": {},
    "no reshard": {"reshard_after_forward": False},
    "prefetch 1": {"prefetch": 1},
}
# What is predicted from the first setting for the second, with the changes that `with_changes` takes.
COMPARED: list[tuple[str, str, dict[str, Any]]] = [
    ("reshard", "no reshard", {"reshard_after_forward": False}),
    ("reshard", "prefetch 1", {"prefetch": 1}),
    ("no reshard", "reshard", {"reshard_after_forward": True}),
]


class Comparison(NamedTuple):
    """Steps in seconds, a value per round: recorded with one setting, predicted for another, and measured there."""

    name: str
    recorded_s: list[float]
    answers: list[RangedAnswer]
    measured_s: list[float]


def record(folder: str, rounds: int, module: nn.Module, batch: Tensor, wrapped: list[str]) -> None:
    """Train with each setting in turn, and leave a trace of this rank for each round and setting."""
    torch.set_num_threads(1)
    os.environ["KINETO_LOG_LEVEL"] = "99"  # it says on stderr when it starts and stops
    rank = dist.get_rank()
    num_ranks = dist.get_world_size()
    models = {}
    for name, settings in SETTINGS.items():
        models[name] = shard(copy.deepcopy(module), wrapped, ShardSettings(num_ranks, **settings))
    for turn in range(rounds):
        for place in range(len(SETTINGS)):
            name = list(SETTINGS)[(turn + place) % len(SETTINGS)]
            path = f"{folder}/{turn}/{name}/rank{rank}.json"
            with profile(
                activities=[ProfilerActivity.CPU],
                record_shapes=True,
                schedule=schedule(wait=0, warmup=WARM_UP, active=STEPS, repeat=1),
                on_trace_ready=partial(save, path),
            ) as profiler:
                for number in range(WARM_UP + STEPS):
                    models[name].zero_grad(set_to_none=True)
                    loss(batch, models[name], rank, number).backward()
                    profiler.step()


def save(path: str, profiler: Any) -> None:
    profiler.export_chrome_trace(path)


def comparisons(folder: Path, rounds: int) -> Iterator[Comparison]:
    forecasts: dict[str, list[ShardedForecast]] = {}
    for name in SETTINGS:
        forecasts[name] = [sharded_forecast(read_traces(folder / str(turn) / name)) for turn in range(rounds)]
    for before, after, changes in COMPARED:
        yield Comparison(
            f"{before} to {after}",
            [forecast.step_s for forecast in forecasts[before]],
            [forecast.with_changes(**changes) for forecast in forecasts[before]],
            [forecast.step_s for forecast in forecasts[after]],
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ranks", type=int, nargs="?", default=2)
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    errors = []
    num_inside = 0
    print(f"{arguments.ranks} ranks over loopback, ms per step: recorded, predicted (range), measured (rounds), error")
    for case, (module, batch, wrap) in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            for turn in range(arguments.rounds):
                for name in SETTINGS:
                    (Path(folder) / str(turn) / name).mkdir(parents=True)
            wrapped = list(wrapped_names(module, names_of(module, wrap), ShardSettings(arguments.ranks)))
            job = (folder, arguments.rounds, module, batch, wrapped)
            launch(record, arguments.ranks, job, timeout_s=600.0)
            for compared in comparisons(Path(folder), arguments.rounds):
                recorded_ms, measured_ms = 1e3 * np.median([compared.recorded_s, compared.measured_s], axis=1)
                steps = [(answer.step_s, answer.low_s, answer.high_s) for answer in compared.answers]
                step_ms, low_ms, high_ms = 1e3 * np.median(steps, axis=0)
                error = step_ms / measured_ms - 1
                is_inside = low_ms <= measured_ms <= high_ms
                errors.append(abs(error))
                num_inside += bool(is_inside)
                outside = "" if is_inside else ", not in the range"
                rounds = f"{min(compared.measured_s) * 1e3:.1f} to {max(compared.measured_s) * 1e3:.1f}"
                print(
                    f"  {case:<27} {compared.name:<21} {recorded_ms:6.1f} {step_ms:6.1f} ({low_ms:.1f} to "
                    f"{high_ms:.1f}) {measured_ms:6.1f} ({rounds}) {error:+6.1%}{outside}",
                    flush=True,
                )
    print(f"median error {np.median(errors):.1%}, largest {max(errors):.1%}")
    print(f"{num_inside} of {len(errors)} measured steps are in the predicted range")


if __name__ == "__main__":
    main()
