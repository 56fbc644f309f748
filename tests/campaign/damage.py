"""Ways to spoil a file: bytes, JSON, texts of numbers, archives, and things that are no files."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import socket
import zipfile
import zlib
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

BOMB_MB = 1500  # unpacked; more than twice what a case may take
DEEP, HUGE = "@deep@", "@huge@"  # for what Python's own writer of JSON cannot write
ODD = (None, True, -1, 0, 3, 0.5, 4096, 2**20, 2**31, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30, 1e308, -1e308, 5e-324)
ODD += (float("nan"), float("inf"), "", "x" * 50_000, "1e5", r"$\frac$", "\ud800", "\x1b[31m\0", DEEP, HUGE)
NUMBERS = ("0", "-1", "1e9", "4096", "1000000", "999999999", "1" * 25, "9" * 5000, "٣", "NaN", "0x1", "")


def odd(chance: Random) -> Any:
    return chance.choice([*ODD, [], {}, [[]], {"a": {}}, [None] * 1000, list(range(5000)), ["x"], [0.0, "x"]])


def changed(tree: Any, chance: Random) -> Any:
    """Return a JSON value with one thing in it changed."""
    if isinstance(tree, dict | list) and tree and chance.random() < 0.85:
        key: Any = chance.choice(list(tree) if isinstance(tree, dict) else range(len(tree)))
        way = chance.random()
        if way < 0.08:
            del tree[key]
        elif way < 0.14 and isinstance(tree, list):
            tree[key:key] = [tree[key]] * chance.choice([1, 10, 5000])
        elif way < 0.2 and isinstance(tree, dict):
            tree[chance.choice(["", "x", "__class__", "\ud800", key + "_"])] = tree[key]
        else:
            tree[key] = changed(tree[key], chance)
        return tree
    if isinstance(tree, int | float) and chance.random() < 0.4:
        return tree * chance.choice([-1, 2, 0.5, 1000, 10**6, 10**15, 1e250])
    return odd(chance)


def written(tree: Any) -> str:
    text = json.dumps(tree)
    return text.replace(f'"{DEEP}"', "[" * 60_000 + "]" * 60_000).replace(f'"{HUGE}"', "9" * 5000)


def json_file(raw: bytes, chance: Random, signed: bool) -> bytes:
    """Change something in a JSON file, and sign it again where it has a checksum."""
    tree = json.loads(raw)
    if not signed or chance.random() < 0.1:
        return written(changed(tree, chance)).encode()
    head = {name: tree.pop(name) for name in ("format", "version", "crc32")}
    for _ in range(chance.choice([1, 1, 1, 2, 5])):
        tree = changed(tree, chance)
    body = written(tree)[1:-1].encode()
    return written(head | {"crc32": f"{zlib.crc32(body):08x}"})[:-1].encode() + b",\n" + body + b"}\n"


def text_file(raw: bytes, chance: Random) -> bytes:
    """Change a number, a word or a line of a text."""
    text = raw.decode()
    way = chance.random()
    if way < 0.6:
        found = chance.choice(list(re.finditer(r"\d+", text)))
        return (text[: found.start()] + chance.choice(NUMBERS) + text[found.end() :]).encode()
    lines = text.splitlines()
    place = chance.randrange(len(lines))
    if way < 0.8:
        words = lines[place].split(" ")
        words[chance.randrange(len(words))] = chance.choice(
            ["", "x", "$", "\x1b[2J", "0>0:0+", "weights=1,0,2", "lag=9"]
        )
        lines[place] = " ".join(words)
    else:
        lines[place : place + 1] = [lines[place]] * chance.choice([0, 2, 3000])
    return "\n".join(lines).encode()


def bytes_of(raw: bytes, chance: Random) -> bytes:
    """Cut, flip, repeat or replace bytes."""
    spoilt, place = bytearray(raw), chance.randrange(len(raw))
    end = place + chance.randrange(1, 40)
    way = chance.randrange(7)
    if way == 0:
        return raw[:place]
    if way == 1:
        for _ in range(chance.choice([1, 3, 50])):
            spoilt[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
    elif way == 2:
        spoilt[place:place] = spoilt[place:end] * chance.choice([1, 2, 10_000])
    elif way == 3:
        spoilt[place:end] = bytes(len(spoilt[place:end]))
    elif way == 4:
        spoilt[place:place] = chance.randbytes(chance.choice([1, 9, 100_000]))
    elif way == 5:
        return bytes(spoilt).replace(
            *chance.choice([(b"0", b"9"), (b'"', b"'"), (b",", b",,"), (b"\n", b""), (b"1", b"-")])
        )
    else:
        return chance.choice([b"", b"\n", b"null", b"[]", b"{}", b"[" * 100_000, b"PK\3\4", b"\x1f\x8b", b"\xff\xfe\0"])
    return bytes(spoilt)


def gzip_file(raw: bytes, chance: Random) -> bytes:
    """A gzipped file, spoilt before or after it is packed, or one that unpacks to more than a machine should read."""
    way = chance.randrange(6)
    if way == 0:
        return gzip.compress(b"[" + b" " * (1 << 22)) + gzip.compress(b" " * (1 << 24)) * (BOMB_MB >> 4)
    if way == 1:
        return bytes_of(gzip.compress(raw), chance)
    if way == 2:
        return gzip.compress(raw) + chance.choice([b"\0", b"x", b"\x1f\x8b", gzip.compress(raw)])
    if way == 3:
        return gzip.compress(gzip.compress(raw))
    return gzip.compress(json_file(raw, chance, False) if way == 4 else bytes_of(raw, chance))


# ---- archives of arrays

_SHAPES = f"() (0,) (-1,) ({2**62},4) ({10**12},) (1,1,8) ('a',) (8.0,) {'(' * 5000} ({2**70},)".split()
_TYPES = ["<i8", "|O", "<f8", "<c16", "<U9", "|V8", ">i8", "|b1", "<U1000000000", "<M8[s]", "x", "<u8", "|S0"]


def npz_file(raw: bytes, chance: Random) -> bytes:
    """An .npz with one member changed: its header, its shape, its values, or to zeros without end."""
    way = chance.randrange(9)
    if way == 0:
        return bytes_of(raw, chance)
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = chance.choice(list(members))
    if way == 1 and chance.random() < 0.3:
        return _bomb(tuple(one for one in members.items() if one[0] != name), name)
    if way == 1:
        members[name] = bytes_of(members[name], chance)
    elif way == 2:
        del members[name]
    elif way == 3:
        members[chance.choice(["x.npy", "../up.npy", "header", "x/"])] = members[name]
    elif way == 4:
        members[name] = members[chance.choice(list(members))]
    elif way == 5:
        members[name] = _npy(f"({chance.randrange(9)},)", "<i8", b"".join(_int(chance) for _ in range(8)))
    elif way == 6 and "header.npy" in members:
        text = members["header.npy"].partition(b"\n")[2].decode("utf-32-le")
        found = written(changed(json.loads(text), chance))
        members["header.npy"] = _npy("()", f"<U{len(found)}", found.encode("utf-32-le", "surrogatepass"))
    else:
        members[name] = _npy(chance.choice(_SHAPES), chance.choice(_TYPES), members[name][128:])
    return _zipped(members)


def _int(chance: Random) -> bytes:
    return chance.choice([0, 1, 2, -1, 2**62, 2**63 - 1, -(2**63), 10**6]).to_bytes(8, "little", signed=True)


def _npy(shape: str, kind: str, body: bytes) -> bytes:
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\0" + len(header).to_bytes(2, "little") + header + body


def _zipped(members: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return packed.getvalue()


@cache
def _bomb(others: tuple[tuple[str, bytes], ...], name: str) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for other, content in others:
            archive.writestr(other, content)
        with archive.open(name, "w") as member:
            member.write(_npy(f"({BOMB_MB << 17},)", "<i8", b""))
            for _ in range(BOMB_MB):
                member.write(bytes(1 << 20))
    return packed.getvalue()


# ---- what is no file

NO_FILES = ("fifo", "folder", "loop", "dangling", "zeros", "null", "socket", "nothing", "empty", "long name", "NUL")


def no_file(path: Path, what: str) -> Path:
    """Put something that is no file at a path; return the path that names it."""
    if what in ("zeros", "null"):
        return Path("/dev/zero" if what == "zeros" else "/dev/null")
    if what in ("long name", "NUL"):
        return path.with_name("x" * 300 if what == "long name" else f"a\0{path.name}")
    if what == "fifo":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    elif what in ("loop", "dangling"):
        path.symlink_to(path if what == "loop" else path.with_name("gone"))
    elif what == "socket":
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(path))
    elif what == "empty":
        path.write_bytes(b"")
    return path
