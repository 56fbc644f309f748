"""How far NCCL's model is from the bank's measurements: python -m tests.benchmarks.nccl [--fit].

The times are of allreduces, allgathers and reduce-scatters of 1 KiB and more, out of place. With --fit the constants of
`nccl.constants.Terms` are found again from the machines of `FITTED`, up to 512 MiB; also without one collective, whose
error is then that of a prediction.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from rankscope.box import Profile, nccl
from rankscope.box.judging.hardware import gpu_of
from rankscope.box.machines import is_sick, provenances
from rankscope.box.nccl.constants import Terms

Floats = NDArray[np.float64]
FITTED = (
    *("a100_80gb_2", "a100_80gb_4", "a100_80gb_8", "h100_2", "h100_4", "h100_8", "gb200_2", "gb200_4"),
    *("b200_2", "b200_4", "b200_8", "b200_nccl_2_28_2", "b200_nccl_2_28_4", "b200_nccl_2_28_8"),
)
COLLECTIVES = ("allreduce", "allgather", "reduce_scatter")
OF_ALL = Terms.__struct_fields__[4:]  # the first four constants are of a generation
START = Terms(6.0, 1.0, 8.0, 8.0, 1.0, 5.0, 1.5, 0.8, 0.5, 0.25, 8.0)  # what no curve tells stays as it is here


class Measured(NamedTuple):
    """The seconds of a collective on a machine."""

    model: nccl.Model
    collective: str
    num_bytes: int
    seconds: float

    def errors(self, terms: Terms | None = None) -> tuple[float, float]:
        """Return how far the model's time and NCCL's estimate are from the measured time, in percent."""
        choice = replace(self.model, terms=terms).choose(self.collective, self.num_bytes)
        return 100 * (choice.time_s / self.seconds - 1), 100 * (choice.nccl_s / self.seconds - 1)


def model_of(about: dict[str, Any], **options: Any) -> nccl.Model | None:
    """Return the model of a machine of the bank; None if it is faulty or not of a known GPU."""
    gpus = [gpu for gpu in nccl.GPUS if f"{gpu_of(about)} ".startswith(f"{gpu.upper().replace('_', ' ')} ")]
    num_nodes = about.get("num_nodes", 0)
    if not gpus or not num_nodes or about["num_ranks"] < 2 or is_sick(about):
        return None
    return nccl.Model(gpus[0], about["num_ranks"] // num_nodes, num_nodes, **options)


def measured(name: str, model: nccl.Model, most_bytes: int = 1 << 40) -> list[Measured]:
    """Return the measurements of a machine of the bank."""
    found = []
    for collective in COLLECTIVES:
        for point in Profile.load(f"bank:{name}").select(collective, algorithm="native", in_place=False):
            if 1024 <= point.num_bytes <= most_bytes:
                found.append(Measured(model, collective, point.num_bytes, point.median_s))
    return found


def by_kind() -> dict[str, dict[str, Floats]]:
    """Return the errors of our model and of NCCL's estimate, as `rankscope nccl` prints both, in percent.

    By what limits the model (see `LIMITS`; "fitted" for `FITTED`) and by machine; two columns.
    """
    errors: dict[str, dict[str, Floats]] = {}
    for name, about in provenances().items():
        model = model_of(dict(about))
        if model is None or "pairs" in name:
            continue
        if model.network == "InfiniBand" not in about.get("network", ""):
            continue  # other networks are not what the model assumes
        points = measured(name, model)
        if len(points) > 1:
            kind = "fitted" if name in FITTED else model.network
            errors.setdefault(kind, {})[name] = np.abs([point.errors() for point in points])
    return errors


def fitted_points() -> list[Measured]:
    """Return the measurements to which the terms are fitted."""
    points = []
    for name in FITTED:
        about = dict(provenances()[name])
        model = model_of(about, version=about["gpus"][0]["nccl"])
        assert model
        points += measured(name, model, 1 << 29)
    return points


def fit(points: list[Measured]) -> dict[str, Terms]:
    """Return the terms of each generation that fit best: least squares, softened, of the logarithms of times."""
    from scipy.optimize import least_squares

    kinds = ("ampere", "hopper", "blackwell")
    of_one = Terms.__struct_fields__[:4]

    def terms_of(logs: Floats) -> dict[str, Terms]:
        values = np.exp(logs).tolist()
        shared = dict(zip(OF_ALL, values[12:], strict=True))
        own = {kind: values[4 * index : 4 * index + 4] for index, kind in enumerate(kinds)}
        return {kind: Terms(**dict(zip(of_one, own[kind], strict=True)), **shared) for kind in kinds}

    def off(logs: Floats) -> Floats:
        terms = terms_of(logs)
        return np.log([1 + point.errors(terms[point.model.facts.generation])[0] / 100 for point in points])

    start = np.log([getattr(START, name) for name in (*of_one * 3, *OF_ALL)])
    return terms_of(least_squares(off, start, loss="soft_l1", f_scale=0.03, max_nfev=40).x)


def main() -> None:
    if "--fit" in sys.argv:
        points = fitted_points()
        for collective in COLLECTIVES:
            terms = fit([point for point in points if point.collective != collective])
            left_out = [point for point in points if point.collective == collective]
            off = [abs(point.errors(terms[point.model.facts.generation])[0]) for point in left_out]
            print(f"{collective}, fitted to the others: median error {np.median(off):.1f} %")
        print(fit(points))
        return
    print("median error in percent: our model, NCCL's estimate")
    for kind, machines in by_kind().items():
        for name, errors in machines.items():
            print(f"{kind:12}{name:22}{np.median(errors[:, 0]):6.1f}{np.median(errors[:, 1]):6.1f}")
        ours, nccls = np.median(np.concatenate([*machines.values()]), axis=0)
        print(f"{kind:12}{'all sizes':22}{ours:6.1f}{nccls:6.1f}")


if __name__ == "__main__":
    main()
