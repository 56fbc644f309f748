"""Rules on the reports of tools: NCCL's RAS, Horovod's stalls, torch's fr_trace, and DDP's check of the models."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping

from ...common.words import and_joined, listed
from .groups import HangFinding
from .log_evidence import LAST_LINES, Fact, Facts, finding_of, in_job, odd_ones, speakers, unknown

_STATES = ("scheduled", "started", "completed")  # of a collective in the flight recorder, in this order
# RAS prints each count with the number of ranks that have it, and below it those ranks if they are few; or one rank
_RAS_COUNT = re.compile(
    r"\s*(?:(?P<many>\d+) ranks?|Rank (?P<rank>\d{1,7}))(?: ha\w+ (?P<count>.*?))?(?: -- (?P<where>.*))?$"
)
_RAS_SILENT = re.compile(r"Rank (?P<rank>\d{1,7}) -- (?P<where>.*)|missing ranks?: (?P<rank2>\d+)")
_JSON_RANK = re.compile(
    r'"rank"\s*:\s*(?P<rank>\d{1,7}),?\s*"host"\s*:\s*"(?P<host>[^"]*)",?\s*"pid"\s*:\s*(?P<pid>\d+)'
    r'[^{}]*"status"\s*:\s*\{(?P<status>[^{}]*)\}(?:[^{}]*"collective_counts"\s*:\s*\{(?P<counts>[^{}]*)\})?'
)
_JSON_VALUE = re.compile(r'"(\w+)"\s*:\s*(\w+)')
_MOST_LISTED = 8  # ranks with their processes
_ONE_BEHIND = "a gap of one in a single report is normal while a job runs: ask again, and look there if it stays"


def models(facts: Facts) -> list[HangFinding]:
    """DDP's check of the models: each rank states its own, and in one form rank 0's is the one to compare with."""
    found = facts["model"]
    if not found or not in_job(found):
        return []
    has: dict[int, str] = {}
    for fact in found:
        has[int(fact.values["by"])] = fact.values["own"]
        if "other" in fact.values:
            has[int(fact.values["other"])] = fact.values["theirs"]
    if all("other" not in fact.values for fact in found):
        has = dict.fromkeys(speakers(facts[LAST_LINES]) | {0}, "the sizes of rank 0") | has
    return [odd_ones("model", has, found)]


def states(facts: Facts) -> list[HangFinding]:
    """fr_trace compares the states of a call with that of one rank, and calls those that differ culprits."""
    if not facts["state"]:
        return []
    first = min(facts["state"], key=lambda fact: int(fact.values["call"]))
    culprits = {*map(int, re.findall(r"Culprit rank (\d+)", first.values["errors"]))}
    others = {*map(int, re.findall(r"\d+", first.values["ranks"]))} - culprits
    is_behind = _STATES.index(first.values["other"]) < _STATES.index(first.values["first"])
    behind = culprits if is_behind else others
    words = (
        f"in collective {first.values['call']}, {listed('rank', others)} came to “{first.values['first']}” and "
        f"{listed('rank', culprits)} to “{first.values['other']}”: {listed('rank', behind)} fell behind, so look at the "
        "GPU and its streams there, as no size differs"
    )
    return [finding_of("behind", behind, words, [first], is_certain=False)]


def stalls(facts: Facts) -> list[HangFinding]:
    """Horovod's reports: today's has the tensors that each rank did not submit, older ones have the ranks that did."""
    found = facts["Horovod"]
    if not found:
        return []
    lacks = defaultdict[str, set[int]](set)  # ranks by tensor
    ready = [{*map(int, re.findall(r"\d+", fact.values["ready"]))} for fact in found if "ready" in fact.values]
    size = max((max(ranks) + 1 for ranks in ready), default=0)
    for fact in found:
        for tensor in re.findall(r"[^\s,]+", fact.values.get("tensors", "")):
            lacks[tensor].add(int(fact.values["missing"]))
    several = [*lacks.values(), *({*range(size)} - ranks for ranks in ready)]
    missing = set.union(*several)
    if missing != max(several, key=len):
        return [unknown("the ranks that are missing differ from tensor to tensor", found)]
    if not missing:
        return [unknown("the report names only the ranks that are ready: look at all others", found)]
    words = f"{listed('rank', missing)} did not submit tensors for which the others wait: look there"
    return [finding_of("missing", missing, words, found)]


def ras(facts: Facts) -> list[HangFinding]:
    """NCCL's RAS, as text and as JSON: processes that do not answer, and ranks that launched fewer operations.

    Its numbers of ranks are those in a communicator.
    """
    silent: dict[str, str] = {}  # where a process is, by the rank, or by the process itself
    leads = []
    for fact in facts["RAS"]:
        if "process" in fact.values:
            silent[fact.values["process"]] = ""
        for match in _RAS_SILENT.finditer(fact.values.get("silent", "")):
            silent[match["rank"] or match["rank2"]] = match["where"] or ""
        for collective, members in _launched(fact, silent).items():
            leads += _fell_behind(collective, members, fact)
    if not silent:
        return leads
    ranks = [int(rank) for rank in silent if rank.isdecimal()]
    each = [f"rank {rank} {where}" if rank.isdecimal() else rank for rank, where in silent.items()]
    words = f"{and_joined(each)} did not answer NCCL's RAS: look there"
    return [finding_of("no answer", ranks, words, facts["RAS"])]


_Members = dict[
    int, dict[int, str]
]  # the ranks that launched so many operations, and where they are; -1 for the others


def _launched(fact: Fact, silent: dict[str, str]) -> Mapping[str, _Members]:
    """Return who launched how many operations, by collective; add ranks that JSON calls unresponsive to `silent`."""
    launched = defaultdict[str, _Members](lambda: defaultdict(dict))
    count = 0
    for line in fact.values.get("counts", "").splitlines():
        match = _RAS_COUNT.match(line)
        if match and match["count"]:
            count = int("0" + re.sub(r"\D", "", match["count"]))  # or none was launched
        if match:
            rank = -1 if match["rank"] is None else int(match["rank"])
            launched[fact.values["collective"]][count][rank] = match["where"] or match["many"]
    for match in _JSON_RANK.finditer(fact.values.get("json", "")):
        where = f"-- process {match['pid']} on node {match['host']}"
        if "true" in dict(_JSON_VALUE.findall(match["status"])).get("unresponsive", ""):
            silent[match["rank"]] = where
        for collective, number in _JSON_VALUE.findall(match["counts"] or ""):
            launched[collective][int(number)][int(match["rank"])] = where
    return launched


def _fell_behind(collective: str, members: _Members, fact: Fact) -> list[HangFinding]:
    """Name the ranks that launched the fewest operations of a collective, if RAS lists them."""
    if len(members) < 2:
        return []
    fewest, most = min(members), max(members)
    listed_ranks = {rank: where for rank, where in members[fewest].items() if rank >= 0}
    if listed_ranks:
        where = "; ".join(f"rank {rank}: {where}" for rank, where in [*listed_ranks.items()][:_MOST_LISTED])
        words = f"{listed('rank', listed_ranks)} launched {fewest} {collective} operations, and others up to {most}; {where}"
    else:
        ahead = {rank for count in members if count > fewest for rank in members[count] if rank >= 0}
        words = (
            f"{members[fewest][-1]} ranks launched {fewest} {collective} operations, and others up to {most}: RAS lists "
            f"only those that are ahead ({listed('rank', ahead) if ahead else 'none'}), so all others are behind"
        )
    words += f"; {_ONE_BEHIND}" if most - fewest == 1 else "; look there first"
    return [finding_of("behind", listed_ranks, f"{words}; rankscope cannot tell more", [fact], is_certain=False)]
