"""What is no file: each command says so in one line, waits for nothing, and leaves it where it is."""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import pytest
from typer.main import get_command

from rankscope.cli import app, main
from rankscope.ranks import pickling
from rankscope.timeline import Recorder
from rankscope.train.ddp import LocalStep
from tests.box.made import as_predicted, collective, links, profile
from tests.diagnose.made_dumps import sick, write
from tests.diagnose.made_traces import write_traces

from .box import logs_made
from .box.nccl.test_topology import dump

pytestmark = pytest.mark.oracle  # every path of every command, with everything that is no file

STILL_S = 60  # in which no command does nothing: it waits for what never comes
STEP = LocalStep.modelled([1 << 18] * 4, backward_s=0.02)


def fifo(path: Path) -> Path:
    os.mkfifo(path)
    return path


def bound_socket(path: Path) -> Path:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))
    return path


def folder(path: Path) -> Path:
    path.mkdir()
    return path


def loop(path: Path) -> Path:
    """A link to a link to the first one."""
    other = path.with_name(f"other-{path.name}")
    other.symlink_to(path)
    path.symlink_to(other)
    return path


def linked_fifo(path: Path) -> Path:
    os.mkfifo(path.with_name(f"other-{path.name}"))
    path.symlink_to(f"other-{path.name}")
    return path


NO_FILES: dict[str, Callable[[Path], Path]] = {
    "fifo": fifo,
    "link to a fifo": linked_fifo,
    "socket": bound_socket,
    "folder": folder,
    "loop": loop,
}
NO_INPUTS: dict[str, Callable[[Path], Path]] = NO_FILES | {
    "zeros": lambda path: Path("/dev/zero"),
    "null": lambda path: Path("/dev/null"),
    "terminal": lambda path: Path("/dev/ptmx"),
    "cannot be read": lambda path: Path("/proc/self/mem"),
}

# ---- which parameters of which commands name files, and what else has to be said


class PathParameter(NamedTuple):
    """A parameter that names a file or a folder, and how it is given: by an option, or in its turn."""

    command: str
    name: str
    is_written: bool

    def __str__(self) -> str:
        return f"{self.command}-{self.name}"


def parameters_of(command: str) -> list[Any]:
    """Return a command's parameters, as the program knows them."""
    commands: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
    return list(commands[command].params)


def help_of(parameter: Any) -> str:
    return parameter.help or ""


def names_path(hints: dict[str, Any], parameter: Any) -> bool:
    """Whether a parameter's type is a path, or its help says that it takes a file."""
    return "Path" in repr(hints.get(parameter.name)) or "a file or " in help_of(parameter)


def path_parameters() -> Iterator[PathParameter]:
    """Yield each by the commands' type hints. One that is written has a help that says so: "Write …", "… to write"."""
    commands: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
    for command, about in commands.items():
        hints = get_type_hints(about.callback)
        for parameter in parameters_of(command):
            if names_path(hints, parameter):
                is_written = re.search(r"\bwrite\b", help_of(parameter), re.IGNORECASE) is not None
                yield PathParameter(command, parameter.name, is_written)


PLACES = list(path_parameters())
INPUTS = [place for place in PLACES if not place.is_written]
OUTPUTS = [place for place in PLACES if place.is_written]

GOOD_INPUTS = ("good.json", "all_reduce.log", "topo.xml", "traces", "bank:h100_8")
SAMPLES = {"algorithm": "ring"}  # of required parameters whose help gives no example
TRIED = "TRIED"  # stands for the path that is tried


def sample_of(command: str, parameter: Any, good_input: str) -> str:
    """Return a value for a parameter that has to be given: a good file, or the example that its help gives."""
    for place in PLACES:
        if (place.command, place.name) == (command, parameter.name):
            return "written.json" if place.is_written else good_input
    example = re.search(r"\bas in (\w+)", help_of(parameter))
    if example:
        return example[1]
    assert parameter.name in SAMPLES, (
        f"No example value is known for {parameter.name}, which must be given. Let its help have one, as in "
        "'Size of the buffer, as in 64KiB.', or add one to SAMPLES in tests/test_no_files.py."
    )
    return SAMPLES[parameter.name]


def given(parameter: Any, value: str) -> list[str]:
    """Return the words that give a parameter this value."""
    if parameter.param_type_name == "argument":
        return [value]
    return [max(parameter.opts, key=len), value]


def ways_to_say(place: PathParameter) -> Iterator[list[str]]:
    """Yield command lines with TRIED as this parameter, and with what must be given; then with one more input."""
    others = [other for other in PLACES if other.command == place.command and other != place and not other.is_written]
    parameters = parameters_of(place.command)
    for extra in (None, *others):
        for good_input in GOOD_INPUTS:
            words = [place.command]
            for parameter in parameters:
                if parameter.name == place.name:
                    words += given(parameter, TRIED)
                elif parameter.required:
                    words += given(parameter, sample_of(place.command, parameter, good_input))
                elif extra is not None and parameter.name == extra.name:
                    words += given(parameter, good_input)
            yield words


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the commands run in, with good files."""
    monkeypatch.chdir(tmp_path)
    names = ("ring", "recursive_doubling")
    good = collective(as_predicted(profile(links()), names), {"native": lambda size: 3e-4 + 3e-9 * size})
    good.save("good.json")
    Path("all_reduce.log").write_text("\n".join(logs_made.table()))
    Path("topo.xml").write_text(dump([[]] * 8))
    (tmp_path / "traces").mkdir()
    write_traces(tmp_path / "traces", STEP, lambda num_bytes: 1e-3)
    return tmp_path


@contextmanager
def not_still() -> Iterator[None]:
    def fail(*_: Any) -> None:
        pytest.fail(f"it waits for {STILL_S} s")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(STILL_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def refusal(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that a command says before it ends with code 2."""
    capsys.readouterr()
    with not_still():
        code = main(words)
    shown = capsys.readouterr()
    assert (code, shown.err.count("\n")) == (2, 1), shown.err
    assert "Traceback" not in shown.err
    return shown.err.removeprefix("rankscope: ")


def refusal_of(place: PathParameter, path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what a command says of a path: the first of its refusals that names it."""
    refusals = []
    for words in ways_to_say(place):
        said = refusal([str(path) if word == TRIED else word for word in words], capsys)
        if path.name in said and "must end in" not in said:
            return said
        refusals.append(f"{' '.join(words)}: {said}")
    raise AssertionError(
        f"No command line was found with which rankscope {place.command} looks at {place.name}:\n{''.join(refusals)}"
        "Let GOOD_INPUTS in tests/test_no_files.py have a file that the command can read."
    )


def test_every_command_with_a_path_is_tried() -> None:
    """Those of today, so that no change of the type hints or of the help loses one."""
    assert {("show", "path"), ("compare", "after"), ("nccl", "profile"), ("diagnose", "paths")} <= {
        (place.command, place.name) for place in INPUTS
    }
    assert {("show", "picture"), ("import", "output"), ("nccl", "tuner_csv"), ("profile", "output")} <= {
        (place.command, place.name) for place in OUTPUTS
    }


@pytest.mark.parametrize("what", NO_INPUTS)
@pytest.mark.parametrize("place", INPUTS, ids=str)
def test_as_input(place: PathParameter, what: str, there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = NO_INPUTS[what](there / "rank0.json")
    said = refusal_of(place, path, capsys)
    assert said.startswith((f"{path}: ", f"{path} has no trace"))
    assert ("Input/output error" in said) == (what == "cannot be read")


@pytest.mark.parametrize("place", INPUTS, ids=str)
def test_a_fifo_that_somebody_writes_to_is_not_read(
    place: PathParameter, there: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = fifo(there / "rank0.json")
    writer = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    os.write(writer, b"{}")
    said = refusal_of(place, path, capsys)
    assert "it is not a file" in said
    assert os.read(writer, 10) == b"{}"
    os.close(writer)


def contents(folder: Path) -> list[tuple[Path, int, int]]:
    """Return what is in a folder: each path, of which kind it is, and its number on the disk."""
    found = []
    for path in sorted(folder.iterdir()):
        status = os.lstat(path)
        found.append((path, stat.S_IFMT(status.st_mode), status.st_ino))
    return found


@pytest.mark.parametrize("what", NO_FILES)
@pytest.mark.parametrize("place", OUTPUTS, ids=str)
def test_as_output(place: PathParameter, what: str, there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = NO_FILES[what](there / f"out{ending_of(place)}")
    before = contents(there)
    said = refusal_of(place, path, capsys)
    wanted = "Too many levels of symbolic links" if what == "loop" else "not a file|must be a file|directory"
    assert any(word in said for word in wanted.split("|")), said
    assert contents(there) == before


def ending_of(place: PathParameter) -> str:
    """Return an ending that the command accepts: that of the format that its help names, otherwise that of JSON."""
    (parameter,) = [known for known in parameters_of(place.command) if known.name == place.name]
    for name in ("HTML", "SVG"):
        if name in help_of(parameter):
            return f".{name.lower()}"
    return ".json"


@pytest.mark.parametrize("what", ["fifo", "socket", "folder", "loop"])
def test_next_to_traces_and_dumps(what: str, there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is no file is no trace, as in a folder in which somebody keeps a FIFO."""
    dumps = write(there / "dumps", sick("size", 2, 1))
    for place in (there / "traces" / "rank7.json", dumps / "trace_9"):
        NO_FILES[what](place)
    with not_still():
        codes = [main(["diagnose", str(place)]) for place in (there / "traces", dumps)]
    assert codes == [0, 0], capsys.readouterr().err


# ---- errors of the disk


@contextmanager
def files_of_at_most(num_bytes: int) -> Iterator[None]:
    """Let writing fail with an error of the system, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("place", [place for place in OUTPUTS if place.command != "profile"], ids=str)
def test_a_disk_that_takes_no_more_is_said_with_the_name_of_the_file(
    place: PathParameter, there: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(f"out{ending_of(place)}")
    with files_of_at_most(10):
        said = refusal_of(place, path, capsys)
    assert said == f"{path}: File too large\n"
    assert not list(there.glob(".*.tmp"))


def test_a_recorder_and_what_workers_are_sent_name_their_files(tmp_path: Path) -> None:
    recorder = Recorder(folder=tmp_path)
    with files_of_at_most(100), pytest.raises(OSError, match=r"File too large: '.*\.spans'"):
        recorder.add("loader", "read", 0, 0, 1)
    with files_of_at_most(100), pytest.raises(OSError, match=r"File too large: '.*/task'"):
        pickling.write(tmp_path / "task", "x" * 100_000)
