"""`explain_facts`: rules on what logs state, from the strongest evidence down."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence

from ...common.words import listed
from .groups import HangFinding
from .log_calls import calls, mismatches
from .log_evidence import UNKNOWN, Fact, Facts, finding_of, in_job, odd_ones, quiet, speakers, unknown
from .log_kinds import KINDS
from .log_reports import models, ras, stalls, states

_NAMES = {  # of signals that kill, in several programs
    "SIGKILL: out of memory, or over a limit?": "-9 137 SIGKILL Killed",
    "SIGBUS: shared memory (/dev/shm) may be full": "-7 135 SIGBUS Bus",
    "SIGSEGV, a fault in native code": "-11 139 SIGSEGV Segmentation",
    "SIGILL: code for another processor": "-4 132 SIGILL Illegal",
}
_SIGNALS = {name: words for words, names in _NAMES.items() for name in names.split()}
# What a process raises that starts others, tries again, or was ended from outside; it says nothing of its own work.
_LAUNCHERS = re.compile(
    r"\b(?:ChildFailed|CalledProcess|RayTask|RayActor|ActorDied|ActorUnavailable|WorkerCrashed)Error|[Rr]etrying"
    r"|\b(?:Signal|ProcessExited|ProcessRaised)Exception|^KeyboardInterrupt|^SystemExit|signal: (?:Term|Int|Hang)"
)
# What a rank raises when another one ended, came late, or called something else; whole phrases, and names of classes.
_CONSEQUENCE = re.compile(
    r"Connection (?:closed|reset) by (?:remote )?peer|Broken pipe|Timed out waiting \d|Socket Timeout|pair closure"
    r"|[Ww]ait timeout after|Timeout waiting for key|\[Rank \d+\]: |reached monitoredB|NCCL error|nccl\w+Error"
    r"|[Cc]aught collective op|NCCL communicator was aborted|Timed out initializing process group|store->get"
    r"|waiting for clients|gloo/|connectFullMesh|(?:server|client) socket has|connect\(\) timed out|watchdog thread"
    r"|Received data size doesn't match|Detected mismatch between coll|expects same model|appears not to match sizes"
    r"|Stop_waiting|Horovod has been shut|DeadLock detected|remote process exited"
    r"|Expected to have finished reduction|\b(?:DistBackend|DistStore|DistNetwork|Rendezvous\w+)Error|^EOFError$"
    # cut, or damaged
    r"|^RuntimeError(?:: .{0,8})?$|^RuntimeError: (?:\[/|Detected mis)|\[\[?rank\d|\[default\d|\[\d+,\d+\]<"
)
_IN_COLLECTIVE = re.compile(  # or where a rank waits for one that was launched before
    r"torch/distributed/(?!elastic)|\bdist\.(?:all_|reduce|broadcast|barrier|gather|scatter)|\bsynchronize\b"
    r"|\bbackward \(|\bin backward$"
    r"|^\s*(?:all_?reduce|all_?gather|reduce_scatter|all_to_all|broadcast|barrier)\w* \(",
    re.MULTILINE,
)
_COLLECTIVE = re.compile(
    r"\b_?(all_?reduce|all_?gather|reduce_scatter|all_to_all|broadcast|barrier|gather|scatter|reduce|send|recv)\w* ?\("
)


def explain_facts(facts: Facts) -> list[HangFinding]:
    """Return what the first rule says that is certain; if none is, what each rule says, or that calls ended late."""
    findings = []
    for rule in _RULES:
        found = rule(facts) if callable(rule) else _says(rule, facts)
        if certain := [finding for finding in found if finding.is_certain]:
            return certain
        findings += found
    leads = [finding for finding in findings if finding.cause != UNKNOWN]
    return leads or findings or _says("timeout", facts)


def _says(kind: str, facts: Facts) -> list[HangFinding]:
    """What a kind of lines states itself, if their numbers of ranks are those of the job."""
    found = facts[kind]
    if found and KINDS[kind].accused == "ranks":
        is_mixed = kind == "lag" and len({fact.values["ranks"] for fact in found}) > 1
        if is_mixed or not in_job(found + facts["wait"]):
            return [unknown("the lines differ, or state numbers of ranks within a group", found)]
    return _stated(found)


def _stated(found: Sequence[Fact], **more: str) -> list[HangFinding]:
    """What lines of one kind say themselves; `more` are values for the words."""
    if not found:
        return []
    kind = KINDS[found[0].kind]
    ranks = {int(rank) for fact in found for rank in re.findall(r"\d+", fact.values.get(kind.accused, ""))}
    if kind.accused and not ranks:
        ranks = speakers(found)
    named = ranks or speakers(found)
    who = listed("rank", named) if named else "a process whose rank the log does not show"
    values = defaultdict(lambda: "another process", who=who)
    for fact in reversed(found):
        values |= fact.values
    words = kind.words.format_map(values | more)
    call = int(values["call"]) if "call" in found[0].values and ranks else 0
    is_certain = kind.is_certain and kind.cause != UNKNOWN
    if not is_certain:
        words = f"{words}; rankscope cannot tell more"
    return [finding_of(kind.cause, ranks, words, found, is_certain)._replace(call=call)]


# ---- a process was killed, or ended by itself


def _first_failure(facts: Facts) -> list[HangFinding]:
    """torchrun's report of the process that ended first; of those of several nodes, the earliest."""
    reports = facts["failure"]
    first_time = min((fact.values["time"] for fact in reports), default="")
    return _ended([fact for fact in reports if fact.values["time"] == first_time], _waited(facts))


def _exits(facts: Facts) -> list[HangFinding]:
    """What other launchers report, and torchrun before its report."""
    return [] if facts["failure"] else _ended(facts["Open MPI"] + facts["exit"])


def _ended(ends: Iterable[Fact], waited: Collection[int | None] = ()) -> list[HangFinding]:
    """Processes that were killed; without any, the first one that ended, unless that is because it waited in vain."""
    kills = {}
    others = []
    for fact in ends:
        signal = fact.values.get("signal") or fact.values["code"]
        if signal in _SIGNALS:
            (finding,) = _stated([fact], end=f"was killed by {_SIGNALS[signal]}")
            if "who" in fact.values:  # a launcher's number of a process is one within its node
                finding = finding._replace(ranks=())
            kills[finding.words] = finding
        elif signal not in ("-15", "143", "SIGTERM") and fact.number("ranks") not in waited:  # SIGTERM ends the others
            end = f"ended first (exit code or signal {signal}); look at its log, as rankscope cannot tell why"
            (finding,) = _stated([fact], end=end)
            others.append(finding._replace(cause=UNKNOWN, ranks=(), is_certain=False))
    return [*kills.values()] or others[:1]


def _waited(facts: Facts) -> set[int]:
    """Return the ranks that lost others, or waited for them in vain."""
    follow = [fact for fact in facts["error"] + facts["last line"] if _CONSEQUENCE.search(fact.values["what"])]
    return speakers(follow + facts["gloo"] + facts["peer"])


def _quiet(facts: Facts) -> list[HangFinding]:
    """Ranks that have lines and do not wait, unless the watchdog's lines or a launcher say more."""
    waited = _waited(facts)
    if facts["wait"] or facts["queue"] or {fact.number("ranks") for fact in facts["failure"]} - waited:
        return []
    return quiet(facts, waited)


def _own_errors(facts: Facts) -> list[HangFinding]:
    """Errors that a rank raised itself: the last one of each process, unless it also lost the others, or went on."""
    errors = [fact for fact in facts["error"] if "ignored" not in fact.values]
    tagged = [fact for fact in facts["last line"] if "rank" in fact.line.labels]
    is_cut = not errors and not tagged
    errors += facts["last line"] if is_cut else tagged
    follow = [fact for fact in errors if _CONSEQUENCE.search(fact.values["what"])]
    lost = {fact.line.process for fact in follow if fact.line.rank is not None}
    went_on = speakers(facts["wait"])  # after an error that was caught; torch's own tag is only on uncaught ones
    last = {}
    for fact in sorted(errors, key=lambda fact: fact.place):
        is_own = fact not in follow and fact.line.process not in lost and not _LAUNCHERS.search(fact.values["what"])
        is_last = "rank" in fact.line.labels or fact.line.rank not in went_on
        if is_own and is_last and fact.values["then"] != "steps":
            last[fact.line.process] = fact
    first = {fact.number("ranks") for fact in facts["failure"]}  # as torchrun saw it
    is_seen = bool(first & speakers(last.values()))
    same = defaultdict[str, list[Fact]](list)
    for fact in last.values():
        if fact.line.rank in first or not is_seen:
            same[fact.values["what"]].append(fact)
    exits = [] if facts["wait"] else facts["failure"] + facts["exit"]
    has_ended = any(fact.values.get("code") == "1" for fact in exits)
    findings = []
    for found in same.values():
        (finding,) = _stated(found)
        goes_on = [fact for fact in found if fact.values["then"] and fact.line.rank not in first]
        if len(goes_on) > 1:  # several ranks caught the same error
            continue
        is_shown = not goes_on if finding.ranks else has_ended or "who" in found[0].values
        if is_cut or not is_shown:
            words = f"{finding.words} rankscope cannot tell whether it was caught."
            finding = finding._replace(words=words, is_certain=False)
        findings.append(finding)
    return findings


# ---- where ranks are, and whether they came


def _stacks(facts: Facts) -> list[HangFinding]:
    """Stacks of py-spy, faulthandler and Ctrl-C: ranks outside a collective while others are, or may be, in one.

    If all are in one, and in different ones, those in the minority are a lead.
    """
    found = facts["stack"]
    frames = {}
    for fact in found:
        rank = fact.number("local") if fact.line.rank is None else fact.line.rank
        # a traceback ends with the innermost call, where a stack begins
        calls = re.findall(r"[ \t]+File .*\n(?:(?![ \t]+File ).*\n)*", fact.values.get("calls", ""))
        frames[-1 if rank is None else rank] = fact.values.get("frames") or "".join(reversed(calls))
    innermost = re.compile(r"^\s*(File .*|\S+ \(.*:\d+\))$", re.MULTILINE)
    where = {rank: ", called by ".join(innermost.findall(frames[rank])[:4]) for rank in sorted(frames)}
    inside = {rank for rank in frames if _IN_COLLECTIVE.search(frames[rank])}
    outside = {*frames} - inside - speakers(facts["wait"])
    is_whole = len(frames) == len(found) and -1 not in frames
    if is_whole and inside and outside:
        words = f"outside of collectives: {listed('rank', outside)}; in one, or in backward: {listed('rank', inside)}"
        words = "; ".join([words, *(f"rank {rank} is in {where[rank]}" for rank in sorted(outside))])
        return [finding_of("elsewhere", outside, words, found)]
    names = {rank: match[1] for rank in inside if (match := _COLLECTIVE.search(frames[rank]))}
    if is_whole and len(names) == len(frames) and len({*names.values()}) > 1:
        return [odd_ones("collective", names, found, is_certain=False)]
    why = "each rank may wait for another one, or stacks do not show their ranks"
    if where:
        why = f"{why}; the first is in {next(iter(where.values()))}"
    if any("calls" in fact.values for fact in found):
        why = f"someone pressed Ctrl-C, which is no cause; {why}"
    return [unknown(why, found)] if found else []


def _joins(facts: Facts) -> list[HangFinding]:
    """Ranks that did not come when a group was made, if all that came say so."""
    found = facts["joined"]
    came = {fact.number("by") if "by" in fact.values else fact.line.rank for fact in found + facts["address"]}
    counts = {(int(fact.values["there"]), int(fact.values["size"])) for fact in found}
    late = {rank for _, size in counts for rank in range(size)} - came
    if any(there > size for there, size in counts):
        words = "more processes joined than the job has ranks: an earlier job, or another one, uses the same store"
        return [finding_of("store", (), words, found)]
    is_whole_job = all(fact.values.get("key", "1").isdecimal() for fact in found)
    if None not in came and is_whole_job and counts == {(len(came), len(came) + len(late))}:
        return [finding_of("missing", late, f"{listed('rank', late)} did not join the group", found)]
    came.add(0)  # which serves the store, so others wait for its address, too
    return _stated([fact for fact in facts["address"] if fact.number("ranks") not in came]) or _stated(found)


_RULES: tuple[str | Callable[[Facts], list[HangFinding]], ...] = (
    "ready twice",
    models,
    _quiet,
    _first_failure,
    "worker",
    _own_errors,
    "CUDA error",
    "out of memory",
    _exits,
    "same GPU",
    "port",
    "barrier",
    mismatches,
    "lag",
    stalls,
    "culprit",
    states,
    "unfinished",
    "around",
    "truncated",
    "unused",
    "GPU",
    "link",
    "connect",
    "store",
    "NCCL error",
    calls,
    _stacks,
    ras,
    _joins,
    "stuck watchdog",
    "id",
    "actor",
    "peer",
    "gloo",
    "waits for workers",
    "stopped",
)
