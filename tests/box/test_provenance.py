"""Where something was measured: enough to tell machines apart, and nothing that names a host, a user or a folder."""

from __future__ import annotations

import json
import os
import re
import socket
from pathlib import Path

import pytest

from rankscope.box import Profile
from rankscope.provenance import command_words, of_machine, of_run

RANKS = {"num_ranks": 3, "num_nodes": 2, "ranks_per_node": [2, 1], "backend": "gloo", "device": "cuda"}


def here() -> dict[str, object]:
    return {**of_run("mine", "rankscope profile", "loopback"), **of_machine(), **RANKS}


def test_a_profile_takes_it_all_and_stores_it(tmp_path: Path) -> None:
    profile = Profile(here(), {})
    profile.save(tmp_path / "machine.json")
    assert Profile.load(tmp_path / "machine.json") == profile
    assert set(profile.provenance) == set(here())
    assert profile.provenance["date"].endswith("+00:00")
    assert profile.provenance["num_cores"] <= os.cpu_count()
    assert profile.provenance["memory_bytes"] > 2**28
    assert profile.provenance["cpu"]


def test_it_names_no_host_no_user_and_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann-somebody")
    monkeypatch.setenv("LOGNAME", "ann-somebody")  # what `getpass.getuser` asks first
    words = json.dumps({name: value for name, value in here().items() if name != "cpu"})
    assert not re.search(rf"\b{re.escape(socket.gethostname())}\b", words)
    for private in (os.getcwd(), str(Path(__file__).parent), "ann-somebody"):
        assert private not in words


@pytest.mark.parametrize(
    ("words", "right"),
    [
        (["/opt/bin/rankscope", "profile"], "rankscope profile"),
        (["rankscope", "-o", "{folder}/a.json"], "rankscope -o a.json"),
        (["rankscope", "--output={folder}/a.json"], "rankscope --output=a.json"),
        (["rankscope", "-o", "~/a.json"], "rankscope -o a.json"),
        (["rankscope", "--sizes", "1KiB,4KiB"], "rankscope --sizes 1KiB,4KiB"),
    ],
)
def test_a_command_is_told_without_folders(words: list[str], right: str, tmp_path: Path) -> None:
    assert command_words([word.format(folder=tmp_path) for word in words]) == right
