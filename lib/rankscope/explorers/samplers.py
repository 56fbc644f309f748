"""The explorer of notebook 01: which rank reads which sample, for any sampler and setting."""

from __future__ import annotations

from functools import lru_cache

from ..figures.assignments import draw_assignment
from ..figures.marks import Drawing
from ..sampling import Assignment, assign, audit
from .panel import Controls, Explorer, Now, Setting, shows

SAMPLERS = (
    ("torch DistributedSampler", "torch"),
    ("libtorch DistributedRandomSampler", "libtorch_random"),
    ("libtorch DistributedSequentialSampler", "libtorch_sequential"),
)
SETTINGS = (
    Setting("sampler", "torch", SAMPLERS, "sampler"),
    Setting("num_ranks", 4, (1, 64), "ranks"),
    Setting("size", 50, (0, 2048), "samples"),
    Setting("batch_size", 4, (1, 64), "batch size"),
    Setting("epoch", 0, (0, 9), "epoch"),
    Setting("seed", 0, (0, 20), "seed"),
    Setting("color_by", "rank", ("rank", "position"), "colour by"),
    Setting("shuffle", True, (False, True), "shuffle"),
    Setting("drop_last", False, (False, True), "drop_last"),
    Setting("forget_set_epoch", False, (False, True), "forget set_epoch"),
)


@lru_cache(maxsize=1)  # the picture and the report ask for the same
def epochs(now: Now) -> list[Assignment]:
    """Return what is read in the epochs up to the one that is set; without set_epoch all of them are epoch 0."""
    own = {"seed": now.seed, "shuffle": now.shuffle} if now.sampler == "torch" else {}  # libtorch's take neither
    numbers = [0 if now.forget_set_epoch else number for number in range(now.epoch + 1)]
    read = [
        assign(now.size, now.num_ranks, sampler=now.sampler, epoch=number, drop_last=now.drop_last, **own)
        for number in numbers
    ]
    return [epoch.with_loader(now.batch_size) for epoch in read]


def picture(now: Now) -> Drawing:
    """The last epoch: which rank reads which sample at which step."""
    return draw_assignment(epochs(now)[-1], now.color_by)


def report(now: Now) -> list[str]:
    """The audit of all epochs so far."""
    return str(audit(epochs(now))).splitlines()


def follow(controls: Controls, now: Now) -> None:
    """Switch off what libtorch's samplers do not have, and call `drop_last` what it is there."""
    is_torch = now.sampler == "torch"
    controls["drop_last"].description = "drop_last" if is_torch else "no allow_duplicates"
    for name in ("seed", "shuffle"):
        controls[name].disabled = not is_torch


@shows(SETTINGS)
def samplers() -> Explorer:
    """Return controls over which rank reads which sample in an epoch, and the audit of all epochs up to it."""
    return Explorer(SETTINGS, {"picture": picture}, report, follow)
