"""How far models of NCCL are from public curves: python -m tests.benchmarks.nccl.

The curves are the bank's of one NVLink node, half precision, 1 KiB to 512 MiB. Against them stand `rankscope.box.nccl`
with its named terms, NCCL's bare model, and torch's port of it (torch._inductor.comm_analysis). With --fit the
constants of `nccl.constants.TERMS` are found again from all curves; the splits fit them without what they are then
held against.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from msgspec.structs import asdict, replace
from numpy.typing import NDArray

from rankscope.box import Profile, nccl
from rankscope.box.expected import gpu_of
from rankscope.box.machines import is_sick, provenances
from rankscope.box.nccl import constants as nccl_constants
from rankscope.box.nccl.constants import TERMS
from rankscope.box.nccl.public import kind_of

Floats = NDArray[np.float64]
MACHINES = {
    "a100": ["a100_80gb_2", "a100_80gb_4", "a100_80gb_8"],
    "h100": ["h100_2", "h100_4", "h100_8"],
    "b200": ["b200_2", "b200_4", "b200_8", "b200_nccl_2_28_2", "b200_nccl_2_28_4", "b200_nccl_2_28_8"],
    "gb200": ["gb200_2", "gb200_4"],
}
# Logs of others: GPU, NCCL's version, network cards of a node and bytes/s of each. Where a log does not state the
# version, it is 2.19 for Ampere and Volta and 2.27 for Hopper: a guess.
OTHERS: dict[str, tuple[str, str, tuple[int, float] | None]] = {
    "dgx_h100_8": ("h100", "2.27", None),
    "aws_p5_8": ("h100", "2.27", None),
    "h100_fleet_8": ("h100", "2.29.2", None),
    "h100_fleet_4": ("h100", "2.29.2", None),
    "snellius_h100_4": ("h100", "2.22.3", None),
    "a100_40gb_8": ("a100", "2.19", None),
    "abci_a100_1x8": ("a100", "2.19", None),
    "abci_a100_4": ("a100", "2.19", None),
    "runpod_a100_2": ("a100", "2.25.1", None),
    "abci_v100_1x4": ("v100", "2.19", None),
    "h100_fleet_10x1": ("h100", "2.29.2", (1, 50e9)),
    "h100_fleet_10x2": ("h100", "2.29.2", (2, 50e9)),
    "abci_a100_2x8": ("a100", "2.19", (4, 25e9)),
    "abci_a100_4x8": ("a100", "2.19", (4, 25e9)),
    "abci_a100_16x8": ("a100", "2.19", (4, 25e9)),
    "abci_v100_2x4": ("v100", "2.19", (2, 12.5e9)),
    "abci_v100_16x4": ("v100", "2.19", (2, 12.5e9)),
}
COLLECTIVES = ("allreduce", "allgather", "reduce_scatter")
MIB = 1 << 20
RANGES = {"below 1 MiB": (0, MIB), "1 to 64 MiB": (MIB, 64 * MIB), "from 64 MiB": (64 * MIB, 1 << 62)}
OF_ALL = nccl_constants.GenerationTerms.__struct_fields__[4:]
OF_ONE = nccl_constants.GenerationTerms.__struct_fields__[:4]
Terms = dict[str, nccl_constants.GenerationTerms]
# Where every fit starts, so that nothing is known beforehand; what no curve tells stays as it is here.
NEUTRAL = dict.fromkeys(TERMS, nccl_constants.GenerationTerms(6.0, 1.0, 8.0, 8.0, 1.0, 5.0, 1.5, 0.8, 0.5, 0.25, 8.0))


class Curve(NamedTuple):
    """What a collective took on a machine: sizes, seconds, and for each size what NCCL's model chooses."""

    machine: str
    model: nccl.Model
    collective: str
    sizes: Floats
    seconds: Floats
    chosen: list[tuple[str, str]]

    @property
    def generation(self) -> str:
        return nccl.GPUS[self.model.gpu].generation

    def times(self, terms: Terms) -> Floats:
        """The seconds by the model with these terms."""
        model, seconds = replace(self.model, terms=terms[self.generation]), np.zeros(self.sizes.shape)
        for pair in set(self.chosen):
            here = np.array([chosen_pair == pair for chosen_pair in self.chosen])
            seconds[here] = model.times_s(self.collective, *pair, self.sizes[here])
        return seconds

    def bare(self) -> Floats:
        return np.array([self.model.choose(self.collective, int(size)).nccl_s for size in self.sizes])

    def only(self, low: float, high: float) -> Curve:
        keep = (self.sizes >= low) & (self.sizes < high)
        chosen = [pair for pair, is_kept in zip(self.chosen, keep, strict=True) if is_kept]
        return self._replace(sizes=self.sizes[keep], seconds=self.seconds[keep], chosen=chosen)


def curves_of(name: str, model: nccl.Model, least: int = 1024, most: int = 1 << 29) -> list[Curve]:
    """The curves of a profile of the bank, out of place."""
    curves, profile = [], Profile.load(f"bank:{name}")
    for collective in COLLECTIVES:
        points = profile.select(collective, algorithm="native", in_place=False)
        points = tuple(point for point in points if least <= point.num_bytes <= most)
        if points:
            sizes = np.array([float(point.num_bytes) for point in points])
            chosen = [model.choose(collective, int(size)) for size in sizes]
            pairs = [(choice.algorithm, choice.protocol) for choice in chosen]
            seconds = np.array([point.median_s for point in points])
            curves.append(Curve(name, model, collective, sizes, seconds, pairs))
    return curves


def bank_curves() -> list[Curve]:
    """All curves that the terms are fitted to."""
    curves = []
    for gpu, names in MACHINES.items():
        for name in names:
            about = Profile.load(f"bank:{name}").provenance
            version = about["gpus"][0]["nccl"]
            curves += curves_of(name, nccl.Model(gpu=gpu, gpus_per_node=len(about["gpus"]), version=version))
    return curves


# ---- fitting


def fit(curves: list[Curve], start: Terms = NEUTRAL) -> Terms:
    """Return the terms that fit curves best: least squares, softened, of the logarithms of times."""
    kinds = sorted({curve.generation for curve in curves})
    places = [(kind, name) for kind in kinds for name in OF_ONE] + [("", name) for name in OF_ALL]

    def terms_of(logs: Floats) -> Terms:
        values = dict(zip(places, np.exp(logs).tolist(), strict=True))
        shared = {name: value for (kind, name), value in values.items() if not kind}
        return {
            kind: replace(terms, **shared, **{name: value for (k, name), value in values.items() if k == kind})
            for kind, terms in start.items()
        }

    from scipy.optimize import least_squares  # takes half a second, and some import this module for other things

    def off(logs: Floats) -> Floats:
        terms = terms_of(logs)
        return np.concatenate([np.log(curve.times(terms) / curve.seconds) for curve in curves])

    first = [getattr(start[kind or "hopper"], name) for kind, name in places]
    solution = least_squares(off, np.log(np.maximum(first, 1e-3)), loss="soft_l1", f_scale=0.03, max_nfev=40)
    return terms_of(solution.x)


def mean(several: list[nccl_constants.GenerationTerms]) -> nccl_constants.GenerationTerms:
    """The geometric mean of the terms of several generations: what is expected of one that was not measured."""
    names = nccl_constants.GenerationTerms.__struct_fields__
    return nccl_constants.GenerationTerms(
        *(float(np.exp(np.mean([np.log(getattr(terms, name)) for terms in several]))) for name in names)
    )


# ---- peers


def torch_times(curve: Curve) -> Floats:
    """The seconds by torch's model, where its questions to a GPU are answered."""
    from torch._inductor import comm_analysis

    kinds = {
        "ampere": comm_analysis.NVIDIA_GPU_TYPE.AMPERE,
        "hopper": comm_analysis.NVIDIA_GPU_TYPE.HOPPER,
        "blackwell": comm_analysis.NVIDIA_GPU_TYPE.BLACKWELL,
        "volta": comm_analysis.NVIDIA_GPU_TYPE.VOLTA,
    }
    whats = dict(zip(COLLECTIVES, ("ALL_REDUCE", "ALL_GATHER", "REDUCE_SCATTER"), strict=True))
    what, ranks = comm_analysis.NCCL_COLL[whats[curve.collective]], curve.model.num_ranks
    with (
        mock.patch.object(comm_analysis, "get_gpu_type", return_value=kinds[curve.generation]),
        mock.patch.object(comm_analysis, "_has_nvlink", return_value=True),
        mock.patch.object(comm_analysis.torch.cuda, "is_available", return_value=True),
        mock.patch.object(comm_analysis.torch.cuda, "device_count", return_value=curve.model.gpus_per_node),
    ):
        estimate = comm_analysis.estimate_nccl_collective_runtime_impl
        return np.array([estimate(int(size), ranks, what) * 1e-3 for size in curve.sizes])


# ---- tables


def errors(curves: list[Curve], times: Callable[[Curve], Floats]) -> Floats:
    return np.concatenate([100 * np.abs(times(curve) / curve.seconds - 1) for curve in curves] or [np.zeros(0)])


def cell(off: Floats) -> str:
    return f"{np.median(off):7.1f} ({np.percentile(off, 90):4.0f})" if off.size else " " * 14


def row(name: str, curves: list[Curve], models: Iterable[Callable[[Curve], Floats]]) -> None:
    cells = [cell(errors(curves, times)) for times in models]
    print(f"{name:34}{len(curves):4}{sum(curve.sizes.size for curve in curves):6} {'  '.join(cells)}")


def ours(terms: Terms) -> Callable[[Curve], Floats]:
    return lambda curve: curve.times(terms)


def main_table(curves: list[Curve]) -> None:
    models = (ours(TERMS), Curve.bare, torch_times)
    print(f"{'median |error| in %, (p90)':34}{'':4}{'sizes':>6} {'rankscope':>14}  {'bare NCCL':>14}  {'torch':>14}")
    row("all curves", curves, models)
    for name in dict.fromkeys(curve.machine for curve in curves):
        row(name, [curve for curve in curves if curve.machine == name], models)
    for what in COLLECTIVES:
        row(what, [curve for curve in curves if curve.collective == what], models)
    for name, (low, high) in RANGES.items():
        row(name, [curve.only(low, high) for curve in curves], models)


def judged(name: str, off: Floats, bar: float, p90: float = float("inf")) -> None:
    median, high = float(np.median(off)), float(np.percentile(off, 90))
    bars = f"median ≤ {bar:g} %" + (f", p90 ≤ {p90:g} %" if p90 < 1e9 else "")
    print(f"{'met   ' if median <= bar and high <= p90 else 'MISSED'}  {name:46}{cell(off)}  bar: {bars}")


def splits(curves: list[Curve]) -> None:
    """Fit without some curves, and hold the rest against it."""
    print("\nleft out: median |error| in % (p90)")
    judged("fitted, all curves", errors(curves, ours(TERMS)), 5, 12)

    def left(name: str, inside: Callable[[Curve], bool], outside: Callable[[Curve], bool], bar: float) -> None:
        terms = fit([curve for curve in curves if inside(curve)])
        judged(name, errors([curve for curve in curves if outside(curve)], ours(terms)), bar)

    left("fitted on 2 GPUs, held against 8", lambda c: c.model.num_ranks == 2, lambda c: c.model.num_ranks == 8, 8)
    for what in COLLECTIVES:
        left(f"without {what}", lambda c, w=what: c.collective != w, lambda c, w=what: c.collective == w, 6)  # type: ignore[misc]
    terms = fit([curve.only(0, 16 * MIB + 1) for curve in curves])
    judged(
        "fitted up to 16 MiB, held against above",
        errors([c.only(16 * MIB + 1, 1 << 62) for c in curves], ours(terms)),
        7,
    )
    is_old: Callable[[Curve], bool] = lambda c: c.machine.startswith("b200_nccl_2_28")  # noqa: E731
    is_b200: Callable[[Curve], bool] = lambda c: c.model.gpu == "b200"  # noqa: E731
    left("without B200's 2.28.9", lambda c: not is_old(c), is_old, 5)
    left(
        "without Blackwell's 2.29.2",
        lambda c: c.generation != "blackwell" or is_old(c),
        lambda c: is_b200(c) and not is_old(c),
        5,
    )
    for kind in ("ampere", "hopper", "blackwell"):
        others = fit([curve for curve in curves if curve.generation != kind])
        near = mean([others[other] for other in ("ampere", "hopper", "blackwell") if other != kind])
        offs = []
        for name in dict.fromkeys(curve.model.gpu for curve in curves if curve.generation == kind):
            names = [machine for machine in MACHINES[name] if "2_28" not in machine]
            many, few = Profile.load(f"bank:{names[-1]}"), Profile.load(f"bank:{names[0]}")
            own = [curve for curve in curves if curve.model.gpu == name]
            base = replace(next(c.model for c in own if c.machine == names[-1]), terms=near)
            read = base.with_readings(many, few).terms
            assert read is not None
            offs.append(errors(own, ours({kind: read})))
        judged(f"without {kind}, with two readings", np.concatenate(offs), 8)


def siblings(curves: list[Curve]) -> None:
    """What copying another machine's curve gives: B200's for GB200."""
    by = {(curve.machine, curve.collective): curve for curve in curves}
    off = [
        100 * np.abs(by[f"b200_{n}", what].seconds / by[f"gb200_{n}", what].seconds - 1)
        for n in (2, 4)
        for what in COLLECTIVES
    ]
    print(f"        {'(copying B200 for GB200':46}{cell(np.concatenate(off))})")


def others() -> None:
    """Logs of other people, by range; with one reading of the floor."""
    print("\nothers' logs: median |error| in %, below 1 MiB, with one reading; 1 to 64 MiB; from 64; there bare, torch")
    by_kind: dict[tuple[str, str], list[Floats]] = {}
    for name, (gpu, version, nics) in OTHERS.items():
        profile = Profile.load(f"bank:{name}")
        nodes = profile.num_nodes or 1
        cards: dict[str, Any] = {} if nics is None else {"nics": nics[0], "nic_bytes_per_s": nics[1]}
        model = nccl.Model(gpu=gpu, gpus_per_node=profile.num_ranks // nodes, num_nodes=nodes, version=version, **cards)
        curves = curves_of(name, model, most=1 << 40)
        read = curves_of(name, model.with_readings(profile), most=1 << 40)
        cells = []
        for place, (low, high) in enumerate(RANGES.values()):
            some = [(plain.only(low, high), known.only(low, high)) for plain, known in zip(curves, read, strict=True)]
            plain_off = errors([curve for curve, _ in some], model_times)
            known_off = errors([curve for _, curve in some], model_times)
            cells.append(cell(plain_off))
            cells += [cell(known_off)] if place == 0 else []
            kind = ("hopper" if gpu == "h100" else "ampere") if nodes == 1 else "nodes"
            if gpu != "v100" or nodes > 1:
                by_kind.setdefault((kind, list(RANGES)[place]), []).append(known_off if place == 0 else plain_off)
        large = [curve.only(64 * MIB, 1 << 62) for curve in curves]
        cells += [cell(errors(large, Curve.bare)), cell(errors(large, torch_times))]
        print(f"{name:18}{'  '.join(cells)}")
    for (kind, words), bar in {
        ("hopper", "below 1 MiB"): 12.0,
        ("ampere", "below 1 MiB"): 12.0,
        ("hopper", "1 to 64 MiB"): 10.0,
        ("hopper", "from 64 MiB"): 6.0,
        ("ampere", "from 64 MiB"): 6.0,
        ("nodes", "from 64 MiB"): 5.0,
    }.items():
        judged(f"others' logs, {kind}, {words}", np.concatenate(by_kind[kind, words]), bar)


def by_command() -> dict[str, dict[str, tuple[Floats, Floats]]]:
    """Return the errors of the model that `rankscope nccl` uses if only GPU and nodes are given, and NCCL's own.

    In percent, by kind (see `PUBLIC_ERRORS`; "fitted" for the machines that the constants were fitted to) and machine.
    """
    errors_of_kinds: dict[str, dict[str, tuple[Floats, Floats]]] = {}
    fitted = {name for names in MACHINES.values() for name in names}
    for name, about in provenances().items():
        gpu = next(
            (
                known_gpu
                for known_gpu in nccl.GPUS
                if f"{gpu_of(about)} ".startswith(f"{known_gpu.upper().replace('_', ' ')} ")
            ),
            "",
        )
        nodes = int(about.get("num_nodes", 0))
        if not (gpu and nodes) or about["num_ranks"] < 2 or is_sick(about) or "pairs" in name:
            continue
        model = nccl.Model(gpu=gpu, gpus_per_node=about["num_ranks"] // nodes, num_nodes=nodes)
        kind = "fitted" if name in fitted else kind_of(model)
        if kind == "InfiniBand" and kind not in about.get("network", ""):
            continue  # the command says that it means InfiniBand
        curves = curves_of(name, model, most=1 << 40)
        if sum(curve.sizes.size for curve in curves) > 1:
            errors_of_kinds.setdefault(kind, {})[name] = errors(curves, model_times), errors(curves, Curve.bare)
    return errors_of_kinds


def command_table() -> None:
    print("\nas `rankscope nccl` prints them: median |error| in % (p90), and bare NCCL")
    for kind, machines in by_command().items():
        for name, (ours_off, bare_off) in machines.items():
            print(f"{kind:12}{name:22}{cell(ours_off)}  {cell(bare_off)}")


def model_times(curve: Curve) -> Floats:
    """The seconds by the curve's own model, floor and all."""
    return np.array([curve.model.choose(curve.collective, int(size)).time_s for size in curve.sizes])


def switches(curves: list[Curve]) -> None:
    """Whether moving the first predicted switch by an octave or two would fit a curve better."""
    right = dict.fromkeys((-2, -1, 0, 1, 2), 0)
    for curve in curves:
        first = curve.chosen[0]
        place = next((k for k, pair in enumerate(curve.chosen) if pair != first), None)
        if place is None:
            continue
        second, scores = curve.chosen[place], {}
        around = slice(max(place - 3, 0), place + 3)
        for shift in right:
            moved = [first if k < place + shift else second for k in range(len(curve.chosen))]
            off = curve._replace(chosen=moved).times(TERMS) / curve.seconds
            scores[shift] = float(np.abs(np.log(off[around])).sum())
        right[min(scores, key=lambda shift: scores[shift])] += 1
    total = sum(right.values())
    share = right[0] / total
    print(
        f"\n{'met   ' if share >= 0.85 else 'MISSED'}  the first predicted switch is the best-fitting one in "
        f"{right[0]} of {total} curves ({share:.0%}); bar: 85 %; by octaves off: {right}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fit", action="store_true", help="find the constants of TERMS again")
    every = bank_curves()
    if parser.parse_args().fit:
        for kind, terms in fit(every).items():
            print(kind, {name: float(f"{value:.3g}") for name, value in asdict(terms).items()})
            print(
                f"fitted: {cell(errors([c for c in every if c.generation == kind], ours({kind: terms})))}"
                if kind != "volta"
                else ""
            )
    else:
        main_table(every)
        splits(every)
        siblings(every)
        others()
        command_table()
        switches(every)
