"""What the lines around a table state about its run: versions, variables, paths and network cards."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from ...provenance import command_words

_VARIABLE = re.compile(r"\b(NCCL_[A-Z0-9_]+)(?: set by environment to |=)([^\s;]+)")
_OWN_NETWORK = re.compile(r"Using network (?=(?:IB|Socket)\b)")  # elsewhere NCCL calls these NET/IB and NET/Socket
_WAY = re.compile(r"Using network (\w[^\n]*)|(GPU Direct RDMA (?:En|Dis)abled)|via (P2P|SHM|NET/\w+)")
_PATH = re.compile(r"via NET/(?!Socket)[\w ]+/([^\n]*)")
_CARDS = re.compile(r"NET/\w+ ?: Using ([^\n]*)")
_CARD = re.compile(r"\[\d+\](\w+):\d+/\w+")
_SPEED = re.compile(r"(?:name=(\w+)|(\w+):uverbs\S+)[^\n]*? speed=(\d+)000\b")
_NVLS = re.compile(r"NVLS multicast support is (not )?available")
_NCCL = re.compile(r"CCL version *:? *(\d+(?:\.\d+)+)(?:\S*?\+cuda([\d.]+))?")
_LIBRARY = re.compile(r"nccl-library=(\d)(\d\d)(\d\d)\b")
_DRIVER = re.compile(r"(?:cudaDriverVersion|Driver Version:) ([\d.]+)")
_TESTS = re.compile(r"nccl-tests version (\S+)")
_ITERATIONS = re.compile(r"warmup iters: (\d+) +iters: (\d+)")
_QUOTES = ",'\""  # around a value or behind it
_WORDS = ("CCL", "nccl", "iters:", "Driver")  # each of the patterns needs one of them, and logs are long


class Facts(msgspec.Struct, frozen=True):
    """Facts in the words of a profile; empty where nothing is stated."""

    program: str = "nccl-tests"
    software: dict[str, str] = {}
    network: str = ""
    environment: str = ""
    repetitions: dict[str, int] = {}


def facts_of(lines: Sequence[str]) -> Facts:
    text = "\n".join(line for line in lines if any(word in line for word in _WORDS))
    (tests_version,) = _found(_TESTS, text)
    nccl, cuda = _found(_NCCL, text)
    library = _found(_LIBRARY, text)
    if not nccl and library[0]:
        nccl = ".".join(str(int(digits)) for digits in library)
    (driver,) = _found(_DRIVER, text)
    versions = {"nccl": nccl, "cuda": cuda, "driver": driver}
    iterations = _ITERATIONS.search(text)
    variables = [f"{name}={value.strip(_QUOTES)}" for name, value in _VARIABLE.findall(text)]
    return Facts(
        program=f"nccl-tests {tests_version}".strip(),
        software={name: version for name, version in versions.items() if version},
        network=", ".join(_network(text)),
        environment=command_words(list(dict.fromkeys(variables))),
        repetitions={"warm_up": int(iterations[1]), "iterations": int(iterations[2])} if iterations else {},
    )


def _found(pattern: re.Pattern[str], text: str) -> tuple[str, ...]:
    """Return the groups of a pattern, all of them empty if the text does not have it."""
    match = pattern.search(text)
    return match.groups("") if match else ("",) * pattern.groups


def _network(text: str) -> Iterator[str]:
    """Yield how ranks communicate, in the order of the log; the cards of the node that names most; paths; NVLS."""
    ways = _WAY.findall(_OWN_NETWORK.sub("via NET/", text))
    yield from dict.fromkeys("".join(way).strip() for way in ways)
    gbits = {virtual or card: gbits for virtual, card, gbits in _SPEED.findall(text)}
    for card in max(map(_CARD.findall, _CARDS.findall(text)), key=len, default=[]):
        yield f"card {card} {gbits[card]} Gbit/s" if card in gbits else f"card {card}"
    paths = Counter("with" if "GDRDMA" in path else "without" for path in _PATH.findall(text))
    yield from (f"{number} paths {kind} GDRDMA" for kind, number in sorted(paths.items()))
    for refusal in _NVLS.findall(text)[:1]:
        yield "no NVLS" if refusal else "NVLS"
