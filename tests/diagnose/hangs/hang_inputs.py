"""Logs of jobs that hung, and what is true of each: recorded ones of Gloo, and ones made from NCCL's format strings."""

from __future__ import annotations

import gzip
import json
import random
import re
from pathlib import Path
from typing import Any, NamedTuple

_RECORDED = Path(__file__).parent / "stored" / "gloo_hangs.json"
_MADE = Path(__file__).parent / "made_inputs.json.gz"

# What is true of a made log, if its text should show it: the cause and the ranks.
_MADE_TRUTHS = {
    "rank 2 put 807 calls into the queue, torch 2.4": ("missing", 2),
    "rank 2 put 807 calls into the queue, torch 2.6": ("missing", 2),
    "rank 2 put 807 calls into the queue, torch 2.8": ("missing", 2),
    "rank 1 came with another collective, torch 2.4": ("collective", 1),
    "rank 1 came with another collective, torch 2.6": ("collective", 1),
    "rank 1 came with another collective, torch 2.8": ("collective", 1),
    "rank 1 came with another size, torch 2.4": ("size", 1),
    "rank 1 came with another size, torch 2.6": ("size", 1),
    "rank 1 came with another size, torch 2.8": ("size", 1),
    "monitored barrier": ("missing", 11),
    "monitored barrier, two ranks": ("missing", 1, 12),
    "an error on one rank": ("error", 5),
    "DETAIL, three reports": ("collective", 2),
    "DETAIL, rank 0 differs": ("collective", 0),
    "DETAIL, one report": ("collective", 2),
    "DETAIL, a call that torch misreads": ("call", 5),
    "DETAIL, another size": ("size", 3),
    "desync report": ("missing", 1, 3),
    "desync report, a rank that never joined": ("missing", 6),
    "lines between progress bars": ("missing", 2),
    "lines after progress bars": ("missing", 2),
    "two lines run into one": ("missing", 2),
    "doubled and reversed": ("missing", 2),
    "srun's labels": ("missing", 2),
    "labels that count within nodes": ("missing", 2),
}
# What is true of others, although the text does not show it for sure.
_HIDDEN_TRUTHS = {
    "rank 1 came with another collective, torch 2.0": ("collective", 1),
    "a rank that waits in another group": ("missing", 2),
    "an error after a lost connection": ("error", 1),
    "cut at 150 letters": ("missing", 2),
    "cut in the middle": ("missing", 2),
    "old lines of seven ranks of eight": ("missing", 0),
    "a message between ranks waits, too": ("missing", 2),
    "two attempts": ("missing", 2),
    "lines wrapped by a terminal": ("missing", 2),
}


class HangLog(NamedTuple):
    """The texts of a job by the name of the log; `truths` are ranks with causes, and `kind` is for the table."""

    name: str
    kind: str
    logs: dict[str, str]
    truths: frozenset[tuple[int, str]]
    is_clear: bool  # the text shows it

    def mixed(self, draw: random.Random) -> list[str]:
        """Return the lines of all ranks in one log, in a random order that keeps that of each, with srun's labels."""
        parts = []
        for name, text in sorted(self.logs.items()):
            label = re.sub(r"\D", "", name)
            parts.append([f"{label}: {line}" if label else line for line in text.splitlines()])
        return interleaved(draw, parts)


def interleaved(draw: random.Random, parts: list[list[str]]) -> list[str]:
    """Return the lines of all parts in a random order that keeps that of each."""
    lines = []
    while left := [part for part in parts if part]:
        lines.append(draw.choice(left).pop(0))
    return lines


def recorded() -> list[HangLog]:
    """Return what 73 jobs printed that hung on purpose."""
    hangs = []
    for case, logs in json.loads(_RECORDED.read_text())["hangs"]:
        what, num_ranks, rank, causes, is_detail, is_torchrun, after_s = case
        truths = {(rank, cause) for cause in causes}
        if what == "barrier two":
            truths.add((num_ranks - 1, "missing"))
        if what == "part collective" and is_detail:  # neither rank of the part comes to the others' barrier
            truths |= {(1, "missing"), (3, "missing")}
        kind = "Gloo, DETAIL" if is_detail else "Gloo"
        name = f"{what}, rank {rank} of {num_ranks}, torchrun {is_torchrun}, {kind}, after {after_s} s"
        hangs.append(HangLog(name, kind, logs, frozenset(truths), is_clear=False))
    return hangs


def stored() -> dict[str, Any]:
    """Return made inputs: their kind, and the texts of their files."""
    inputs: dict[str, Any] = json.loads(gzip.decompress(_MADE.read_bytes()))
    return inputs


def made() -> list[HangLog]:
    hangs = []
    for name, entry in stored().items():
        name = name.removeprefix("log, NCCL, ")
        if entry["kind"] == "log" and "Gloo" not in name:
            cause, *ranks = _MADE_TRUTHS.get(name) or _HIDDEN_TRUTHS.get(name, ("",))
            truths = frozenset((rank, cause) for rank in ranks)
            hangs.append(HangLog(name, "NCCL, made", entry["files"], truths, name in _MADE_TRUTHS))
    return hangs
