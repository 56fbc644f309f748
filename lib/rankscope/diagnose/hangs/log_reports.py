"""Rules on the reports of tools: NCCL's RAS, Horovod's stalls, torch's fr_trace, and DDP's check of the models."""

from __future__ import annotations

import re
from collections import defaultdict

from ...common.words import and_joined, listed
from .groups import HangFinding
from .log_evidence import LAST_LINES, Fact, Facts, finding_of, odd_ones, speakers, unknown

_STATES = ("scheduled", "started", "completed")  # of a collective in the flight recorder, in this order
# RAS prints how many ranks launched how many operations, and lists the ranks below if they are few; or one rank
_RAS_LINE = re.compile(
    r"(?:\d+ ranks?|Rank (?P<rank>\d{1,7}))(?: ha\w+ (?:not launched any|launched up to) operations? ?(?P<count>\d*))?"
    r"(?: -- (?P<where>.*))?"
)
_RAS_JSON = re.compile(
    r'"rank"\s*:\s*(?P<rank>\d{1,7}),?\s*"host"\s*:\s*"(?P<host>[^"]*)",?\s*"pid"\s*:\s*(?P<pid>\d+)[^{}]*'
    r'"status"\s*:\s*\{[^{}]*?(?P<silent>"unresponsive"\s*:\s*true)?[^{}]*\}'
    r'(?:[^{}]*"collective_counts"\s*:\s*\{(?P<counts>[^{}]*)\})?'
)
_MOST_LISTED = 8  # ranks with their processes
_Launched = dict[int, dict[int, str]]  # ranks and where they are, by the number of operations that they launched


def models(facts: Facts) -> list[HangFinding]:
    """DDP's check of the models: each rank states its own, and in one form rank 0 is the one to compare with."""
    has: dict[int, str] = {}
    for fact in facts["model"]:
        if "other" in fact.values:
            has[int(fact.values["other"])] = fact.values["theirs"]
        else:
            has = dict.fromkeys(speakers(facts[LAST_LINES]) | {0}, "as rank 0") | has
        has[int(fact.values["by"])] = fact.values["own"]
    return [odd_ones("model", has, facts["model"])] if has else []


def states(facts: Facts) -> list[HangFinding]:
    """fr_trace compares the states of a call with that of one rank, and calls those that differ culprits."""
    if not facts["state"]:
        return []
    first = min(facts["state"], key=lambda fact: int(fact.values["call"]))
    culprits = {*map(int, re.findall(r"Culprit rank (\d+)", first.values["errors"]))}
    others = {*map(int, re.findall(r"\d+", first.values["ranks"]))} - culprits
    came = {first.values["first"]: others, first.values["other"]: culprits}
    behind = came[min(came, key=_STATES.index)]
    each = ", ".join(f"{listed('rank', ranks)} came to “{state}”" for state, ranks in came.items())
    words = f"in collective {first.values['call']}, {each}: look at the GPU and the streams of {listed('rank', behind)}"
    return [finding_of("behind", behind, words, [first], is_certain=False)]


def stalls(facts: Facts) -> list[HangFinding]:
    """Horovod's reports: today's has the tensors that each rank did not submit, older ones have the ranks that did."""
    lacks = defaultdict[str, set[int]](set)  # ranks by tensor
    for fact in facts["Horovod"]:
        ready = {*map(int, re.findall(r"\d+", fact.values.get("ready", "")))}
        for tensor in re.findall(r"[^\s,]+", fact.values.get("tensors", "")):
            lacks[tensor].add(int(fact.values["missing"]))
        if ready:
            lacks[fact.values["ready"]] = {*range(max(ready))} - ready
    missing = set[int]().union(*lacks.values())
    if not missing:
        return []
    if missing not in lacks.values():
        return [unknown("the ranks that are missing differ from tensor to tensor", facts["Horovod"])]
    words = f"{listed('rank', missing)} did not submit tensors for which the others wait: look there"
    return [finding_of("missing", missing, words, facts["Horovod"])]


def ras(facts: Facts) -> list[HangFinding]:
    """NCCL's RAS, as text and as JSON: processes that do not answer, and ranks that launched fewer operations.

    Its numbers of ranks are those in a communicator.
    """
    silent: dict[str, str] = {}  # where a process is, by its rank, or by its name
    leads = []
    for fact in facts["RAS"]:
        launched = defaultdict[str, _Launched](lambda: defaultdict(dict))  # by collective
        count = 0
        for match in _RAS_LINE.finditer(fact.values.get("counts", "")):
            if match["count"] is not None:
                count = int(match["count"] or 0)
            at_count = launched[fact.values["collective"]][count]
            if match["rank"]:
                at_count[int(match["rank"])] = match["where"]
        for match in _RAS_JSON.finditer(fact.values.get("json", "")):
            where = f"process {match['pid']} on node {match['host']}"
            if match["silent"]:
                silent[f"rank {match['rank']}"] = where
            for collective, number in re.findall(r'"(\w+)"\s*:\s*(\d+)', match["counts"] or ""):
                launched[collective][int(number)][int(match["rank"])] = where
        for rank, where in re.findall(r"ank:? (\d{1,7})(?: -- (.*))?", fact.values.get("silent", "")):
            silent[f"rank {rank}"] = where
        if "process" in fact.values:
            silent[fact.values["process"]] = ""
        leads += [_fell_behind(name, counts, fact) for name, counts in launched.items() if len(counts) > 1]
    if not silent:
        return leads
    ranks = {int(name.removeprefix("rank ")) for name in silent if name.startswith("rank")}
    who = and_joined([f"{name} {where}".strip() for name, where in silent.items()])
    return [finding_of("no answer", ranks, f"{who} did not answer NCCL's RAS: look there", facts["RAS"])]


def _fell_behind(collective: str, launched: _Launched, fact: Fact) -> HangFinding:
    """Name the ranks that launched the fewest operations of a collective, if they are listed."""
    fewest, most = min(launched), max(launched)
    behind = launched[fewest]
    ahead = [rank for count in launched if count > fewest for rank in launched[count]]
    each = "; ".join(f"rank {rank}: {where}" for rank, where in [*behind.items()][:_MOST_LISTED])
    if ahead and not behind:
        each = f"listed are only {listed('rank', ahead)}, which are ahead, so all others are behind"
    advice = "look there first"
    if most - fewest == 1:
        advice = "a gap of one in a single report is normal while a job runs: ask again, and look there if it stays"
    counts = f"some ranks launched {fewest} {collective} operations, and others up to {most}"
    words = "; ".join(filter(None, [counts, each, advice]))
    return finding_of("behind", behind, words, [fact], is_certain=False)
