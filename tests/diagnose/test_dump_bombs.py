"""Small dumps that ask for much: they take little memory, or they are refused. `test_small_files` measures more."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rankscope.common.storage import StorageError
from rankscope.diagnose import explain_hang, pickles, read_dumps
from rankscope.diagnose.figures.jobs import hang_page
from rankscope.diagnose.pickles import DEEPEST, read_pickle

from .. import bombs
from ..growth import Meter
from .made_dumps import entry

MOST_BYTES_PER_BYTE = 24  # of memory, for a pickle of 8 MiB; a list takes 56 bytes, and its opcode one


@pytest.fixture(scope="module")
def meter() -> Iterator[Meter]:
    with Meter() as meter:
        yield meter


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["marks", "lists", "dictionaries", "memo", "long memo"])
def test_opcodes_take_little_memory(name: str, meter: Meter, tmp_path: Path) -> None:
    path = tmp_path / "trace_0"
    path.write_bytes(bombs.PICKLES[name](1 << 23)[: 1 << 23])
    cost = meter.cost("hang", path)
    assert cost.said.startswith("StorageError"), cost
    assert cost.num_bytes < MOST_BYTES_PER_BYTE * path.stat().st_size, cost


def huge_dump() -> Any:
    return bombs.dump([entry(0)], x=[0] * (1 << 22))


def huge_group() -> Any:
    return bombs.dump([], pg_config={"0": {"ranks": f"[{'0,' * (1 << 20)}0]"}})


def huge_tensor() -> Any:
    return bombs.dump([entry(0) | {"input_sizes": [[2**32, 2**32]]}])


def as_json(dump: Any) -> bytes:
    return json.dumps(dump).encode()


@pytest.mark.parametrize(
    ("make", "message"),  # it is made when the test runs: some are of megabytes
    [
        (
            lambda: bombs.shared_sizes(300),
            "it stands for more than 16777216 values, because it names the same ones many times",
        ),
        (lambda: bombs.PICKLES["marks"](100), f"it is nested more than {DEEPEST} deep"),
        (lambda: bombs.in_itself(3), f"it is nested more than {DEEPEST} deep"),
        (lambda: pickle.dumps(bombs.dump([entry(0)] * 2)), "one of its calls stands there more than once"),
        (lambda: bombs.long_sizes(1), "Expected `array` of length <= 64"),
        (lambda: as_json(huge_tensor()), "a tensor of a call has more than 9223372036854775807 elements"),
        (lambda: as_json(huge_dump()), "it has more than 4194304 values"),
        (lambda: as_json(huge_group()), "a group must have at most 1048576 ranks"),
    ],
)
def test_what_asks_for_too_much_is_refused(make: Callable[[], bytes], message: str, tmp_path: Path) -> None:
    path = tmp_path / "trace_0"
    path.write_bytes(make())
    with pytest.raises(StorageError) as error:
        read_dumps(path)
    assert str(error.value) == f"{path}: not a readable flight-recorder dump: {message}" or message in str(error.value)


@pytest.mark.parametrize(
    ("limit", "name", "message"),
    [
        ("MOST_CONTAINERS", "lists", "it has more than 99 lists and dictionaries"),
        ("MOST_CONTAINERS", "dictionaries", "it has more than 99 lists and dictionaries"),
        ("MOST_CONTAINERS", "pairs", "it has more than 99 lists and dictionaries"),
        ("MOST_MEMO", "memo", "it names more than 99 objects"),
        ("MOST_MEMO", "long memo", "it names more than 99 objects"),
        ("MOST_OPCODES", "nothing", "it has more than 99 opcodes"),
    ],
)
def test_opcodes_are_counted(limit: str, name: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickles, limit, 99)
    with pytest.raises(ValueError, match=message):
        read_pickle(bombs.PICKLES[name](200))


def test_a_rank_is_below_a_million(tmp_path: Path) -> None:
    path = tmp_path / "trace_999999999"
    path.write_bytes(json.dumps(bombs.dump([entry(0)])).encode())
    with pytest.raises(StorageError, match="must be a whole number from 0 to 1048575, got 999999999"):
        read_dumps(path)
    many = tmp_path / "trace_999999"
    many.write_bytes(json.dumps(bombs.dump([entry(0), entry(1, "1"), entry(2, "2")])).encode())
    with pytest.raises(ValueError, match="the groups of these dumps have more than 2097152 ranks together"):
        explain_hang(read_dumps(many))


@pytest.mark.slow
def test_stacks_that_calls_share_are_read(tmp_path: Path) -> None:
    """The recorder names the same frames in every call, as this pickle does: 20,000 calls are some megabytes."""
    frames = [{"name": "f", "filename": "/lib/python3/a.py", "line": line} for line in range(60)]
    frames.append({"name": "step", "filename": "/home/me/train.py", "line": 7})
    calls = [entry(place) | {"frames": frames[:], "input_sizes": [[8, 4]]} for place in range(20_000)]
    path = tmp_path / "trace_0"
    path.write_bytes(pickle.dumps(bombs.dump(calls), 2))
    (dump,) = read_dumps(path)
    assert len(dump.calls) == 20_000
    assert {call.where for call in dump.calls} == {"train.py:7 in step"}
    assert dump.calls[0].inputs.num_elements == (32,)


def test_a_pickle_of_plain_values_is_read_as_it_is() -> None:
    plain = {"a": [1, 2**40, -1, 0.5, None, True, "é"], "b": {"c": [[], {}]}}
    for protocol in (2, 4, 5):
        assert read_pickle(pickle.dumps(plain, protocol)) == plain


def test_a_page_draws_some_findings_and_says_how_many_it_does_not(tmp_path: Path) -> None:
    for file, raw in bombs.pairs_that_differ(30).items():
        (tmp_path / file).write_bytes(raw)
    hang = explain_hang(read_dumps(tmp_path))
    assert len(hang.findings) == 30
    page = hang_page("job", hang)
    assert page.count("<svg") == 20
    assert "10 more are named above and not drawn" in page


def test_groups_that_wait_for_each_other_are_listed_up_to_a_limit(tmp_path: Path) -> None:
    for file, raw in bombs.groups_apart(40).items():
        (tmp_path / file).write_bytes(raw)
    (finding,) = explain_hang(read_dumps(tmp_path)).findings
    assert finding.cause == "group"
    assert "So do 50 more groups." in finding.words
