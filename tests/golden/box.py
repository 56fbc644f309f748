"""The machines of the bank, and what is read from published logs: points, links, expected times and verdicts."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from rankscope import box
from rankscope.box.compare import compare  # what the command of that name prints
from rankscope.collectives import build, simulate

from .values import Cases, attempt, floats, plain

_WITHIN = Path(__file__).parents
_PUBLISHED = [folder / "shared" / "measurements" for folder in _WITHIN if (folder / "shared/measurements").is_dir()]
MEASUREMENTS = _PUBLISHED[0] if _PUBLISHED else None  # stands next to a checkout, and is no part of it
NOTEBOOK_PROFILES = _WITHIN[2] / "notebooks" / "profiles"  # measured by the library itself
_MEASURED = ("emulated_100mbit_5ms_4_ranks", "emulated_100mbit_5ms_8_ranks", "loopback_2_cores_4_ranks")
KINDS = ("nccl-tests", "nvbandwidth")  # of logs
_NUMBER = re.compile(r"\d[\d.,]*")
_RULE = re.compile(r"\(rule (\w+)\)")
_MACHINE = ("backend", "num_ranks", "num_nodes", "ranks_per_node")
_SIZES = (1000, 65536, 3_000_000, 200_000_000)


def cases() -> Cases:
    names = sorted(box.bank())
    all_cases: Cases = {name: partial(_loaded, f"bank:{name}") for name in names}
    for name in _MEASURED:
        all_cases[name] = partial(_loaded, NOTEBOOK_PROFILES / f"{name}.json")
    for before, after in pairwise(names):
        all_cases[f"compare {before}, {after}"] = partial(_compared, before, after)
    all_cases["PCIe"] = _pcie
    return all_cases


def log_cases() -> Cases:
    """Return the cases of published logs; none where their folder is not found."""
    if MEASUREMENTS is None:
        return {}
    paths = sorted((MEASUREMENTS / "logs").iterdir())
    return {f"{path.name} as {kind}": partial(_log, path, kind) for path in paths for kind in KINDS}


def _loaded(path: str | Path) -> dict[str, Any]:
    return profile(box.Profile.load(path))


def _log(path: Path, kind: str) -> Any:
    return attempt(_profiles, path, kind)


def _profiles(path: Path, kind: str) -> list[Any]:
    """Return the profiles of this kind of program. Raises ValueError if there are none."""
    profiles = [read for read in box.read_log(path) if read.provenance["source"]["program"].startswith(kind)]
    if not profiles:
        raise ValueError("no such log")
    return [profile(read) for read in profiles]


def profile(read: box.Profile) -> dict[str, Any]:
    """Return the figures of a profile: of each operation the sizes, medians and numbers of clean times."""
    operations: dict[str, list[Any]] = {}
    for point in read.points:
        options = ", ".join(f"{key}={value}" for key, value in sorted(point.options.items()))
        row = (point.num_bytes, point.median_s, len(point.seconds), sum(point.clean))
        operations.setdefault(f"{point.what} {options}".strip(), []).append(row)
    points = {}
    for name, rows in operations.items():
        sizes, medians_s, counts, clean = zip(*rows, strict=True)
        points[name] = {"num_bytes": list(sizes), "median_s": list(medians_s), "times": [sum(counts), sum(clean)]}
    collectives = sorted(read.native)
    return {
        "machine": {key: plain(read.provenance[key]) for key in _MACHINE if key in read.provenance},
        "points": points,
        "all times": floats([sum(point.seconds) for point in read.points]),
        "predicted": floats([_predicted_s(read, point) for point in read.points]),
        "verdict": [figures(sentence) for sentence in box.verdict(read)],
        "links": {where: attempt(_link, read, where) for where in ("intra", "inter")},
        "expected": {name: attempt(_expected, read, name) for name in collectives},
        "allreduce": attempt(_allreduce, read),
    }


def figures(sentence: str) -> list[Any]:
    """Return the rule that a sentence of a verdict names, and its numbers; words may change."""
    return [_RULE.findall(sentence), [number.rstrip(".,") for number in _NUMBER.findall(sentence)]]


def _predicted_s(read: box.Profile, point: Any) -> float:
    """Return what the links predict for a point; -1 if nothing can be predicted."""
    with suppress(ValueError):
        cluster = read.cluster()
        schedule = build(point.what, str(point.options.get("algorithm")), cluster.num_ranks, **point.builder_options)
        return simulate(schedule, point.num_bytes, cluster, "ranks", executor=True).makespan_s
    return -1.0


def _link(read: box.Profile, where: str) -> list[float]:
    if not read.links:
        raise ValueError("no link")
    link = read.links.get(where, next(iter(read.links.values()))).link
    return [float(link.alpha_s), float(link.bytes_per_s)]


def _expected(read: box.Profile, collective: str) -> list[float]:
    return [float(read.predicted_s(collective, num_bytes)) for num_bytes in _SIZES]


def _allreduce(read: box.Profile) -> list[float]:
    cost = read.cost()
    return [float(cost(num_bytes)) for num_bytes in _SIZES]


def _seconds(facts: Any) -> list[float]:
    """How long copies take at least: in each direction, by each way."""
    ways = ("pageable", "pinned", "pin_on_the_fly")
    return [float(facts.seconds(2**26, to, way)) for to in ("h2d", "d2h") for way in ways]


def _compared(before: str, after: str) -> dict[str, Any]:
    rows = compare(box.Profile.load(f"bank:{before}"), box.Profile.load(f"bank:{after}"))
    return {"ratio": floats([row.ratio for row in rows]), "mixed": sum(row.is_mixed for row in rows)}


def _pcie() -> list[Any]:
    lanes = [(generation, lanes) for generation in range(3, 7) for lanes in (1, 4, 8, 16)]
    rates = [float(box.pcie_bytes_per_s(*lane, way)) for lane in lanes for way in (None, "h2d", "d2h")]
    return [rates, [_seconds(box.stated(*lane)) for lane in lanes]]
