"""Rules on lines of torch about collectives: DETAIL's mismatches, and the watchdog of NCCL."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from ...common.words import listed
from .groups import DEFAULT_GROUP, PARTS, Call, Group, HangFinding, Progress, explain_groups
from .log_evidence import UNKNOWN, Fact, Facts, finding_of, in_job, odd_ones, quiet, speakers, unknown

_EVENT_S = 60  # ranks of one hang print within seconds; after a restart, the whole timeout passes first
_MISREAD = Call("another call")  # torch cannot read one of other dimensions
_NOT_COUNTED = ("SEND", "RECV", "RECVANYSOURCE", "COALESCED")  # only some ranks of a group make them
_NO_GROUP = "No line names the group, so rankscope cannot tell whether they are of one."
_OWN_SIZES = ("ALLTOALL", "ALLTOALL_BASE", "GATHER", "SCATTER")  # which may differ between ranks


def mismatches(facts: Facts) -> list[HangFinding]:
    """DETAIL: each rank reports itself, and the first rank that differs, so that those before it are like itself."""
    found = facts["mismatch"]
    own = defaultdict[int, set[Call]](set)
    called: dict[int, Call] = {}
    for fact in found:
        rank, other = int(fact.values["by"]), fact.number("other")
        mine = _fingerprint(fact, "own")
        own[rank].add(mine)
        if "odd" in fact.values:  # older versions of torch name no other rank
            return [finding_of("collective", (rank,), f"rank {rank} called {mine}, and others something else", found)]
        if other is None:  # the line is cut
            continue
        theirs = _fingerprint(fact, "other")
        if mine.size and not theirs.size and mine.number != theirs.number:
            theirs = _MISREAD
        else:
            own[other].add(theirs)
        called = dict.fromkeys(range(other), mine) | {other: theirs} | called
    called |= {rank: call for rank, said in own.items() for call in said}
    numbers = {int(call.number) for call in called.values() if call.number}
    is_mixed = any(len(said) > 1 for said in own.values())
    is_mixed |= len(numbers) > 1 and len({call.parts[:3] for call in called.values()}) > 1
    if is_mixed or not in_job(found):
        return [unknown("the reports are of two calls, or their numbers of ranks are those of a group", found)]
    by_part = zip(*(call.parts for call in called.values()), strict=True)
    differing = [part for part, said in zip(PARTS, by_part, strict=False) if len({*said}) > 1]
    if not differing:  # nobody differs, as far as whole lines show
        return []
    cause = "call" if _MISREAD in called.values() else differing[0]
    finding = odd_ones(cause, {rank: str(call) for rank, call in called.items()}, found)
    return [finding._replace(call=max(numbers, default=0))]


def _fingerprint(fact: Fact, side: str) -> Call:
    collective, size, dtype, number = [
        fact.values.get(f"{side}_{part}", "") for part in ("collective", "size", "dtype", "call")
    ]
    return Call(collective, size, dtype, number)


def calls(facts: Facts) -> list[HangFinding]:
    """Compare the ranks of each group of NCCL that are in collectives."""
    used = _with_ranks(facts["wait"] + facts["queue"])
    if not used:
        return []
    if why := _contradiction(used):
        return [_waits(why, used)]
    groups = {group.name: group for group in _groups(used) if _is_one(group, used)}
    waiting = speakers(fact for fact in used if fact.kind == "wait" or "failed" in fact.values)
    findings = []
    for finding in explain_groups(groups.values(), waiting):
        judged = _judged(finding, groups[finding.group], used)
        lead = quiet(facts, groups[finding.group].ranks) if judged.cause in ("stuck", "silent") else []
        findings += lead or [judged]
    return findings or [_waits("nothing shows that the lines are of one group", used)]


def _contradiction(used: Sequence[Fact]) -> str:
    """Say why lines of the watchdog must not be compared; empty if they may be."""
    times_s = [fact.line.second_of_year for fact in used if fact.line.second_of_year]
    if times_s and max(times_s) - min(times_s) > _EVENT_S:
        return "the lines are more than a minute apart"
    said = defaultdict[object, set[str]](set)
    for fact in used:
        rank = fact.line.rank
        if rank is None:
            return "the lines show numbers of ranks within a group, and not the ranks of the job"
        for name in {"enqueued", "failed", "call", "size", "collective"} & {*fact.values}:
            said[name, rank, _group_name(fact), fact.values["by"]].add(fact.values[name])
    if any(len(values) > 1 for values in said.values()):
        return "a rank appears in two ways: two jobs, or two attempts"
    return ""


def _with_ranks(used: Sequence[Fact]) -> list[Fact]:
    """Return facts with the rank of the job: the label's, or the number in what is or seems to be the default group."""
    own_groups = {DEFAULT_GROUP}
    if in_job(fact for fact in used if not _group_name(fact)):
        own_groups.add("")
    ranked = []
    for fact in used:
        if fact.line.rank is None and _group_name(fact) in own_groups:
            fact = fact._replace(line=fact.line._replace(rank=fact.number("by")))
        ranked.append(fact)
    return ranked


def _group_name(fact: Fact) -> str:
    """Return the group that a line names, or an empty text."""
    if fact.values.get("group") == "0" or fact.values.get("desc") == DEFAULT_GROUP:
        return DEFAULT_GROUP
    return fact.values.get("group", "")


def _groups(used: Sequence[Fact]) -> list[Group]:
    """Return the groups that lines name, with the progress of each rank; "" is a group that no line names."""
    calls = defaultdict[int, dict[int, Call]](dict)
    group_of: dict[tuple[int, int | None], str] = {}  # by rank and call, as the line after the timeout states it
    names = {_group_name(fact) for fact in used} - {""}
    usual = DEFAULT_GROUP if names == {DEFAULT_GROUP} and in_job(used) else ""  # of calls whose line names none
    for fact in used:
        rank = fact.line.rank or 0
        if "collective" in fact.values:
            size = "" if fact.values["collective"] in _OWN_SIZES else fact.values.get("size", "")
            calls[rank][fact.number("call") or 0] = Call(fact.values["collective"], size)
        elif "failed" in fact.values:
            group_of[rank, fact.number("failed")] = _group_name(fact)
    progress = defaultdict[str, dict[int, Progress]](dict)
    for fact in sorted(used, key=_waits_in):  # a line that states no failed call comes first
        rank, number = fact.line.rank or 0, _waits_in(fact)
        of_ranks = progress[group_of.get((rank, number), _group_name(fact) or usual)]
        enqueued = max(fact.number("enqueued") or number, of_ranks[rank].enqueued if rank in of_ranks else 0)
        of_ranks[rank] = Progress(number or None, enqueued, calls[rank])
    return [Group(name, tuple(of_ranks), of_ranks) for name, of_ranks in progress.items()]


def _waits_in(fact: Fact) -> int:
    """Return the number of the call that a line says failed, or 0."""
    return fact.number("failed") or fact.number("call") or 0


def _is_one(group: Group, used: Iterable[Fact]) -> bool:
    """Return whether these ranks are of one group: its name is a hash, or each rank has its own number in it.

    If they have, the group has all ranks up to the last one, as the ranks of a group are in ascending order.
    """
    if any(call.collective in _NOT_COUNTED for one in group.progress.values() for call in one.calls.values()):
        return False
    is_hash = re.match(r"(?=.*[a-f])(?=.*\d)[0-9a-f]{6,}", group.name) is not None
    return is_hash or in_job(fact for fact in used if _group_name(fact) == group.name)


def _judged(finding: HangFinding, group: Group, used: Sequence[Fact]) -> HangFinding:
    """Return a finding as certain as lines make it: they may leave out ranks, and have groups that look alike."""
    waits_in = {one.waits_in for one in group.progress.values() if one.waits_in is not None}
    silent = {*range(max(group.progress))} - speakers(used)
    is_known = all(one.waits_in in one.calls for one in group.progress.values())
    by_interest = sorted(used, key=lambda fact: fact.line.rank not in finding.ranks)
    finding = finding._replace(lines=finding_of("", (), finding.words, by_interest).lines)
    if finding.cause == "missing":
        # all ranks made the call before, or it would not have ended on those that wait
        if not group.name or finding.call not in waits_in:
            return _waits("a rank is behind, but it waits in another group, or its line is of another time", used)
        if group.name.isdecimal():
            question = f"\n  torch before 2.5 numbers groups on each rank: is {group.name} the same on all?"
            finding = finding._replace(words=finding.words + question)
        return finding
    if len(waits_in) > 1 or finding.cause == "group":
        return _waits("they are out of step, as ranks wait in different calls", used)
    if finding.cause != "stuck":
        if group.name:
            return finding
        return finding._replace(words=f"{finding.words}\n  {_NO_GROUP}", is_certain=False)
    if silent and is_known and 3 * len(silent) <= len(group.progress):
        head = "\n".join(finding.words.splitlines()[:2])
        where = f"Look at {listed('rank', silent)} first"
        words = f"{head}\n  {where}, of which there is no line of a wait; rankscope cannot tell why."
        return finding._replace(cause="silent", ranks=tuple(sorted(silent)), words=words, is_certain=False)
    if silent or not is_known or len(group.progress) == 1:
        return _waits("there are no lines of some ranks, or of their calls", used)
    words = f"{finding.words}\n  rankscope cannot tell whether other ranks have no line."
    return finding._replace(words=words, is_certain=False)


def _waits(why: str, used: Sequence[Fact]) -> HangFinding:
    """Say that the log does not show the rank."""
    whose = f" of {listed('rank', speakers(used))}" if speakers(used) else ""
    words = f"the log shows collectives{whose} that do not end; rankscope cannot tell who holds up the job: {why}"
    return finding_of(UNKNOWN, (), words, used, is_certain=False)
