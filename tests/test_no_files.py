"""What is no file: each command says so in one line, waits for nothing, and leaves it where it is."""

from __future__ import annotations

import os
import resource
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from typer.main import get_command

from rankscope.cli import app, main
from rankscope.ranks import pickling
from rankscope.timeline import Recorder
from rankscope.train.ddp import LocalStep
from tests.box.made import as_predicted, collective, links, profile
from tests.diagnose.made_dumps import sick, write
from tests.diagnose.made_traces import write_traces

from .box.nccl.test_topology import dump

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

# by command and parameter: the words, with IN or OUT in the place of what is tried
INPUTS = {
    ("show", "path"): "show IN",
    ("predict", "path"): "predict IN",
    ("trace", "path"): "trace IN --algorithm ring --num-bytes 1KiB -o out.json",
    ("compare", "before"): "compare IN good.json",
    ("compare", "after"): "compare good.json IN",
    ("import", "files"): "import IN",
    ("nccl", "log"): "nccl h100x8 --log IN",
    ("nccl", "topo"): "nccl h100x8 --topo IN",
    ("nccl", "profile"): "nccl h100x8 --profile IN",
    ("diagnose", "folder"): "diagnose IN",
}
OUTPUTS = {
    ("show", "picture"): "show good.json --picture OUT",
    ("import", "output"): "import log.txt --num-ranks 2 -o OUT",
    ("nccl", "picture"): "nccl h100x4 --topo topo.xml --picture OUT",
    ("nccl", "tuner_csv"): "nccl h100x8 --profile bank:h100_8 --tuner-csv OUT",
    ("trace", "output"): "trace good.json --algorithm ring --num-bytes 1KiB -o OUT",
    ("diagnose", "output"): "diagnose traces -o OUT.html",
    ("diagnose", "perfetto"): "diagnose traces --perfetto OUT.json",
    ("profile", "output"): "profile -o OUT --num-ranks 2 --sizes 1KiB --algorithms native --iterations 1",
}
LOG = """\
# OSU MPI Allreduce Latency Test v7.3
# Size       Avg Latency(us)
1024                    5.10
"""


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the commands run in, with good files."""
    monkeypatch.chdir(tmp_path)
    names = ("ring", "recursive_doubling")
    good = collective(as_predicted(profile(links()), names), {"native": lambda size: 3e-4 + 3e-9 * size})
    good.save("good.json")
    Path("log.txt").write_text(LOG)
    Path("topo.xml").write_text(dump([[]] * 4))
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


def refusal(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that a command says before it ends with code 2."""
    capsys.readouterr()
    with not_still():
        code = main(words.split())
    shown = capsys.readouterr()
    assert (code, shown.err.count("\n")) == (2, 1), shown.err
    assert "Traceback" not in shown.err
    return shown.err.removeprefix("rankscope: ")


def test_every_parameter_that_names_a_file_is_tried() -> None:
    commands: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
    named = {("nccl", "profile")}  # or the name of a machine of the bank
    for command, about in commands.items():
        hints = get_type_hints(about.callback)
        named |= {(command, name) for name, hint in hints.items() if "Path" in repr(hint)}
    assert named == INPUTS.keys() | OUTPUTS.keys()


@pytest.mark.parametrize("what", NO_INPUTS)
@pytest.mark.parametrize("place", INPUTS, ids="-".join)
def test_as_input(place: tuple[str, str], what: str, there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = NO_INPUTS[what](there / "rank0.json")
    said = refusal(INPUTS[place].replace("IN", str(path)), capsys)
    assert said.startswith((f"{path}: ", f"{path} has no trace"))
    assert ("Input/output error" in said) == (what == "cannot be read")


@pytest.mark.parametrize("place", INPUTS, ids="-".join)
def test_a_fifo_that_somebody_writes_to_is_not_read(
    place: tuple[str, str], there: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = fifo(there / "rank0.json")
    writer = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    os.write(writer, b"{}")
    said = refusal(INPUTS[place].replace("IN", str(path)), capsys)
    assert "it is not a file" in said
    assert os.read(writer, 10) == b"{}"
    os.close(writer)


@pytest.mark.parametrize("what", NO_FILES)
@pytest.mark.parametrize("place", OUTPUTS, ids="-".join)
def test_as_output(place: tuple[str, str], what: str, there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = OUTPUTS[place]
    name = next(word for word in words.split() if word.startswith("OUT"))
    path = NO_FILES[what](there / name)
    before = {one: os.lstat(one) for one in there.iterdir()}
    said = refusal(words, capsys)
    assert name in said
    wanted = "Too many levels of symbolic links" if what == "loop" else "not a file|must be a file|directory"
    assert any(word in said for word in wanted.split("|")), said
    after = {one: os.lstat(one) for one in there.iterdir()}
    assert [(one, stat.S_IFMT(about.st_mode), about.st_ino) for one, about in sorted(after.items())] == [
        (one, stat.S_IFMT(about.st_mode), about.st_ino) for one, about in sorted(before.items())
    ]
    assert path in after


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


@pytest.mark.parametrize("place", [one for one in OUTPUTS if one[0] != "profile"], ids="-".join)
def test_a_disk_that_takes_no_more_is_said_with_the_name_of_the_file(
    place: tuple[str, str], there: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = OUTPUTS[place]
    name = next(word for word in words.split() if word.startswith("OUT"))
    with files_of_at_most(10):
        said = refusal(words, capsys)
    assert said == f"{name}: File too large\n"
    assert not list(there.glob(".*.tmp"))


def test_a_recorder_and_what_workers_are_sent_name_their_files(tmp_path: Path) -> None:
    recorder = Recorder(folder=tmp_path)
    with files_of_at_most(100), pytest.raises(OSError, match=r"File too large: '.*\.spans'"):
        recorder.add("loader", "read", 0, 0, 1)
    with files_of_at_most(100), pytest.raises(OSError, match=r"File too large: '.*/task'"):
        pickling.write(tmp_path / "task", "x" * 100_000)
