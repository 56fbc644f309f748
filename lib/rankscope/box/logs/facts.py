"""What the lines around a table state about its run: versions, variables, paths and network cards."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from ...provenance import command_words

_VARIABLE = re.compile(r"\b(NCCL_[A-Z0-9_]+)(?: set (?:by environment )?to |=)['\"]?([^\s;'\"]*[^\s;'\".,])")
_OWN_NETWORK = re.compile(r"Using network (?=(?:IB|Socket)\b)")  # elsewhere NCCL calls these NET/IB and NET/Socket
_WAY = re.compile(r"Using network (\w[^\n]*)|(GPU Direct RDMA (?:En|Dis)abled)|via (P2P|SHM|NET/\w+)")
_PATH = re.compile(r"via NET/(?!Socket)[\w ]+/([^\n]*)")
_CARDS = re.compile(r"NET/\w+ ?: Using ([^\n]*)")
_CARD = re.compile(r"(\w+):\d+/\w+")
_SPEED = re.compile(r"(?:name=(\w+)|(\w+):uverbs\S+)[^\n]*? speed=(\d+)000\b")
_VERSIONS = {
    "nccl": re.compile(r"CCL version *:? *(\d+(?:\.\d+)+)"),
    "driver": re.compile(r"(?:cudaDriverVersion|Driver Version:) ([\d.]+)"),
}
_LIBRARY = re.compile(r"nccl-library=(\d)(\d\d)(\d\d)\b")
_TESTS = re.compile(r"nccl-tests version (\S+)")
_ITERATIONS = re.compile(r"warmup iters: (\d+) +iters: (\d+)")


class Facts(msgspec.Struct, frozen=True):
    """Facts in the words of a profile; empty where nothing is stated."""

    program: str
    software: dict[str, str]
    network: str
    environment: str
    repetitions: dict[str, int]


def facts_of(lines: Sequence[str]) -> Facts:
    text = "\n".join(lines)
    found = {name: pattern.search(text) for name, pattern in _VERSIONS.items()}
    software = {name: version[1] for name, version in found.items() if version}
    library = _LIBRARY.search(text)
    if library:
        software.setdefault("nccl", ".".join(str(int(digits)) for digits in library.groups()))
    repetitions = {}
    iterations = _ITERATIONS.search(text)
    if iterations:
        repetitions = {"warm_up": int(iterations[1]), "iterations": int(iterations[2])}
    variables = dict.fromkeys(f"{name}={value}" for name, value in _VARIABLE.findall(text))
    return Facts(
        program=" ".join(["nccl-tests", *_TESTS.findall(text)[:1]]),
        software=software,
        network=", ".join(_network(text)),
        environment=command_words(list(variables)),
        repetitions=repetitions,
    )


def _network(text: str) -> Iterator[str]:
    """Yield how ranks communicate, in the order of the log; the cards of the node that names most; and paths."""
    ways = _WAY.findall(_OWN_NETWORK.sub("via NET/", text))
    yield from dict.fromkeys("".join(way).strip() for way in ways)
    gbits = {virtual or card: f" {gbits} Gbit/s" for virtual, card, gbits in _SPEED.findall(text)}
    for card in max(map(_CARD.findall, _CARDS.findall(text)), key=len, default=[]):
        yield f"card {card}{gbits.get(card, '')}"
    paths = Counter("GDRDMA" in path for path in _PATH.findall(text))
    for has_gpudirect, word in ((True, "with"), (False, "without")):
        if paths[has_gpudirect]:
            yield f"paths {word} GDRDMA: {paths[has_gpudirect]}"
