"""Cases run in a few long-lived processes, in little memory each, and a judge says what is wrong with what they did."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from rankscope.common import folders

from ..foreign_folders import ForeignFolders
from ..processes import children

CASE_S = 10.0  # of a processor: the largest file that is read takes 4
KILLED_S = 40.0  # of a processor, after which a case is ended
STILL_S = 20.0  # without any work: a case that waits for what never comes
MOST_BYTES = 1 << 30  # that a case may add: a trace may have 512 MiB once it is unpacked
MOST_CHARACTERS = 8000  # of a sentence: the caller's own word, of up to 6,000 here, is quoted whole
WORDS = ("Traceback", "MemoryError", "RecursionError", "Unable to allocate")  # in no sentence for a user


class Case(NamedTuple):
    """What is tried, by a name for the table, and the errors that it may raise."""

    name: str
    run: Callable[[], object]
    allowed: tuple[type[BaseException], ...] = (ValueError, OSError)
    how: str = ""


class Verdict(NamedTuple):
    number: int
    name: str
    wrong: str  # empty where nothing is
    seconds: float = 0.0
    grown_bytes: int = 0


class Wrong(Exception):
    """What a case itself found wrong."""


def sentence_problem(said: str) -> str:
    """What keeps a text from being one sentence for a user."""
    if not said.strip():
        return "says nothing"
    if len(said.splitlines()) > 1 or not said.isprintable():
        return f"says more than one printable line: {said[:200]!r}"
    if len(said) > MOST_CHARACTERS:
        return f"says {len(said)} characters: {said[:200]!r}"
    return next((f"says {said[:200]!r}" for word in WORDS if word in said), "")


def judged(case: Case) -> tuple[str, float, int]:
    """Run a case; return what was wrong with it, the seconds of processor time that it took, the bytes it added."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak of resident memory begins anew
    before, begin_s = peak_bytes(), time.process_time()
    try:
        case.run()
        wrong = ""
    except Wrong as error:
        wrong = str(error)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "rankscope" in frame.filename]
        where = [f"{Path(frame.filename).parent.name}/{Path(frame.filename).name}:{frame.name}" for frame in frames]
        named = f"{type(error).__name__} from {' > '.join(where[-2:]) or 'elsewhere'}"
        said = str(error) if isinstance(error, OSError) else str(error.args[0] if len(error.args) == 1 else error)
        problem = sentence_problem(said) if isinstance(error, case.allowed) else said[:200].replace("\n", " ")
        strange = isinstance(error, UnicodeError) or not isinstance(error, case.allowed)
        wrong = f"{named}: {problem or said[:200]}" if problem or strange else ""
    seconds, grown = time.process_time() - begin_s, peak_bytes() - before
    if not wrong and seconds > CASE_S:
        wrong = f"took {seconds:.0f} s of a processor, more than {CASE_S:.0f}"
    if not wrong and grown > MOST_BYTES:
        wrong = f"took {grown >> 20} MiB, more than {MOST_BYTES >> 20}"
    return wrong, seconds, grown


def peak_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def run_in_threads(
    case: Callable[[int, int], Verdict],
    seed: int,
    numbers: Iterable[int],
    num_threads: int,
    report: Callable[[Verdict], object],
) -> list[Verdict]:
    """Run ``case(seed, number)`` for each of these numbers, and report each verdict as it comes."""

    def reported(number: int) -> Verdict:
        verdict = case(seed, number)
        report(verdict)
        return verdict

    with ThreadPoolExecutor(num_threads) as threads:
        return list(threads.map(reported, numbers))


def run(
    kind: str, seed: int, numbers: Iterable[int], num_workers: int = 2, report: Callable[[Verdict], object] = id
) -> list[Verdict]:
    """Run the cases with these numbers of a module, whose `prepare` returns what makes a case."""
    left, lock = iter(numbers), threading.Lock()

    def drive(_: int) -> list[Verdict]:
        child, found = _Child(kind, seed), list[Verdict]()
        while True:
            with lock:
                number = next(left, None)
            if number is None:
                child.end()
                return found
            found.append(child.ask(number))
            report(found[-1])
            if not child.process.is_alive():
                child = _Child(kind, seed)

    with ThreadPoolExecutor(num_workers) as threads:
        try:
            return sorted(one for found in threads.map(drive, range(num_workers)) for one in found)
        except KeyboardInterrupt:
            left = iter(())  # no more cases
            raise


class _Child:
    """A process that runs cases one after another, and is killed where one does not end."""

    def __init__(self, kind: str, seed: int) -> None:
        self.folder = tempfile.mkdtemp(prefix="campaign-")
        self._line, theirs = get_context("spawn").Pipe()
        self.process = get_context("spawn").Process(target=_serve, args=(theirs, kind, seed, self.folder), daemon=True)
        self.process.start()
        theirs.close()
        self._line.recv()  # it is prepared

    def ask(self, number: int) -> Verdict:
        self._line.send(number)
        begin_s = last_s = self._processor_s()
        worked_at = time.monotonic()
        while not self._line.poll(1.0):
            now_s = self._processor_s()
            if now_s != last_s:
                last_s, worked_at = now_s, time.monotonic()
            if now_s - begin_s > KILLED_S:
                return self._ended(number, f"does not end within {KILLED_S:.0f} s of a processor")
            if time.monotonic() - worked_at > STILL_S:
                return self._ended(number, f"hangs: no work for {STILL_S:.0f} s")
        try:
            name, *rest = self._line.recv()
            return Verdict(number, name, *rest)
        except EOFError:
            self.process.join()
            return self._ended(number, f"killed its process ({self.process.exitcode})")

    def _processor_s(self) -> float:
        return sum(map(processor_s, family(self.process.pid or 0)))

    def _ended(self, number: int, wrong: str) -> Verdict:
        for pid in family(self.process.pid or 0):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.join()
        note = Path(self.folder, "case")
        name, _, how = note.read_text().partition("\n") if note.exists() else ("?", "", "")
        self.end()
        return Verdict(number, name, f"{how}: {wrong}")

    def end(self) -> None:
        self._line.close()
        self.process.join()
        shutil.rmtree(self.folder, ignore_errors=True)


def _serve(line: Any, kind: str, seed: int, folder: str) -> None:
    work = Path(folder, "work")
    made = Path(folder, "made")
    memory = Path(folder, "memory")  # stands in for /dev/shm
    made.mkdir()
    memory.mkdir()
    os.environ["TMPDIR"] = tempfile.tempdir = str(made)
    os.environ["CAMPAIGN_MEMORY"] = str(memory)
    folders.memory = lambda: memory
    warnings.simplefilter("ignore")
    make = import_module(kind).prepare(made)
    theirs = ForeignFolders(made, memory)
    vm_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    limit = vm_bytes + 4 * MOST_BYTES  # what is mapped, not only what is used
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    line.send("ready")
    while True:
        try:
            number = line.recv()
        except EOFError:
            return
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        os.chdir(work)
        case = make(random.Random(f"{seed} {kind} {number}"), work)
        Path(folder, "case").write_text(f"{case.name}\n{case.how}")
        folders._swept.clear()  # so that each case may sweep
        wrong, seconds, grown = judged(case)
        left = [path.name for place in (work, made, memory) for path in theirs.others(place) if left_behind(path)]
        changed = theirs.changed()
        if changed:  # whatever else is wrong, this is worse
            wrong = f"changed folders of others: {changed[:3]}"
        elif not wrong and left:
            wrong = f"left {left[:3]}"
        line.send((case.name, wrong and f"{case.how}: {wrong}", seconds, grown))


def left_behind(path: Path) -> bool:
    """Whether this is a temporary file or folder of the library's."""
    return path.name.endswith(".tmp") or path.name.startswith("rankscope-")


def family(pid: int) -> list[int]:
    """A process and all that it has started, and they."""
    return [pid, *(one for child in children(pid) for one in family(child))]


def processor_s(pid: int) -> float:
    """The seconds of a processor that a process has had, with those of its children that have ended."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK")
