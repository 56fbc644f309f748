"""The explorer of notebook 01: which rank reads which sample, for any sampler and setting."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from msgspec.structs import replace

from ..common.words import count_of
from ..drawing.drawing import Drawing
from ..panel.explorer import Explorer, Now, Setting, Steps, always
from .assignment import Assignment
from .audits.audit import audit
from .audits.own_sampler import OwnSampler
from .kinds import SAMPLERS, assign
from .picture import draw_assignment
from .work.lengths import lognormal

_MOST_SAMPLES = 10_000_000  # that are dealt in about a second
_MOST_RANKS = 4096
_SIZES = Steps((*range(65), 100, 128, 200, 256, 500, 512, 1000, 1024, 1797, 2000, 2048))
PRESETS: dict[str, dict[str, Any]] = {
    "10 samples, 4 ranks": {"size": 10},
    "the same with drop_last": {"size": 10, "drop_last": True},
    "3 samples, 8 ranks": {"size": 3, "num_ranks": 8, "batch_size": 1},
    "a million samples, 24 ranks": {"size": 10**6, "num_ranks": 24, "batch_size": 16},
    "in order": {"shuffle": False},
    "epoch 3 without set_epoch": {"epoch": 3, "forget_set_epoch": True},
    "libtorch: the lost tail": {"sampler": "libtorch_random", "size": 22, "drop_last": True, "epoch": 5},
    "libtorch: 3 samples, 8 ranks": {"sampler": "libtorch_random", "size": 3, "num_ranks": 8, "batch_size": 1},
    "libtorch: slices": {"sampler": "libtorch_sequential"},
}


def _has(now: Now, name: str) -> bool:
    """Return whether the sampler has the setting `shuffle`, `seed`, `epoch` or `drop_last`."""
    return name not in SAMPLERS[now.sampler].without_effect


@lru_cache(maxsize=8)  # draw and report ask for the same
def epochs(now: Now) -> list[Assignment]:
    """Return what is read in the epoch before the one that is set, if there is one, and in that one.

    Without set_epoch, and for a sampler on which it has no effect, both are epoch 0.
    """
    sampler = SAMPLERS[now.sampler]
    options: dict[str, Any] = {name: getattr(now, name) for name in ("seed", "shuffle", "drop_last") if _has(now, name)}
    if sampler.values is not None:  # "lengths" or "weights": as weights, longer samples are drawn more often
        options[sampler.values] = lognormal(now.size)
    if "batch_size" in sampler.settings:
        options["batch_size"] = now.batch_size
    is_always_epoch_0 = now.forget_set_epoch or not _has(now, "epoch")
    assignments = []
    for number in range(max(now.epoch - 1, 0), now.epoch + 1):
        epoch = 0 if is_always_epoch_0 else number
        assignment = assign(now.size, now.num_ranks, sampler=now.sampler, epoch=epoch, **options)
        if assignment.batch_stops is None:  # the sampler makes no batches itself
            assignment = assignment.with_loader(now.batch_size)
        assignments.append(assignment)
    return assignments


def samplers(own: Any = None) -> Explorer:
    """Return controls over which rank reads which sample in an epoch, and the audit of it.

    `own` is a sampler of your own, or a list of them, which are shown above each other. Each is a class or a function
    with torch's argument names: `dataset` or its `size`, `num_replicas`, `rank`, and any of `batch_size`, `shuffle`,
    `drop_last`, `seed` and `epoch`. A `functools.partial` sets others.
    """
    settings = [
        Setting("sampler", "torch", [(sampler.title, name) for name, sampler in SAMPLERS.items()], "sampler"),
        Setting("num_ranks", 4, range(1, 17), "ranks", most=_MOST_RANKS),
        Setting("size", 50, _SIZES, "samples", most=_MOST_SAMPLES),
        Setting("batch_size", 4, range(1, 65), "batch size per rank"),
        Setting("epoch", 0, range(10), "epoch"),
        Setting("shuffle", True, (), "shuffle", lambda now: _has(now, "shuffle")),
        Setting("drop_last", False, (), "drop_last", lambda now: _has(now, "drop_last")),
        Setting(
            "seed", 0, range(21), "seed", lambda now: _has(now, "seed") and (now.shuffle or not _has(now, "shuffle"))
        ),
        Setting("forget_set_epoch", False, (), "forget set_epoch", lambda now: now.epoch > 0),
    ]
    own_samplers = []
    if own is not None:
        own_samplers = [OwnSampler(make) for make in (own if isinstance(own, list) and own else [own])]
        known = {"num_ranks", "size", "batch_size", "epoch"}.union(*[sampler.arguments for sampler in own_samplers])
        settings = [setting._replace(when=always) for setting in settings if setting.name in known]

    @lru_cache(maxsize=8)  # draw and report ask for the same
    def shown(now: Now) -> list[tuple[str, list[Assignment]]]:
        """Return the name of each sampler, which is empty for those of the list, and what is read."""
        if own is None:
            return [("", epochs(now))]
        return [sampler.epochs(**now._asdict()) for sampler in own_samplers]

    def draw(now: Now) -> list[Drawing]:
        """The epoch: which rank reads which sample at which step; if it repeats the one before, that one below it."""
        drawings = []
        for name, assignments in shown(now):
            titles: list[str | None] = [None]
            if audit(assignments).repeated_orders:
                titles = [f"Epoch {now.epoch} *repeats the order* of epoch {now.epoch - 1}", f"Epoch {now.epoch - 1}"]
            for title, assignment in zip(titles, reversed(assignments), strict=False):
                drawing = draw_assignment(assignment, title=title)
                drawings.append(replace(drawing, deck=f"{name}{drawing.deck}"))
        return drawings

    def report(now: Now) -> list[str]:
        """How much rank 0 reads, and in how many steps; and the audit."""
        lines = []
        for name, assignments in shown(now):
            last = assignments[-1]
            reads = count_of(last.ranks[0].size, "sample")
            lines.append(f"{name}rank 0 reads {reads} in {count_of(last.stops(0).size, 'step')}")
            lines += str(audit(assignments)).splitlines()
        return lines

    return Explorer(settings, draw, report, PRESETS if own is None else {})
