"""Where and how something was measured, without names of hosts, users or folders."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .. import __version__
from ..workers.host import num_cores

# what two runs must have in common for their points to stand side by side
_SETTING = ("rankscope", "torch", "backend", "device", "num_ranks", "num_nodes", "ranks_per_node", "network")
SAME = (*_SETTING, "system", "cpu", "num_cores", "gpus", "topology")
_PATIENCE_S = 20.0


def of_machine() -> dict[str, Any]:
    """Return what this machine is, and what runs on it; called where torch is wanted anyway.

    >>> sorted(of_machine())
    ['cpu', 'gpus', 'memory_bytes', 'num_cores', 'python', 'rankscope', 'system', 'topology', 'torch']
    """
    import torch

    return {
        "rankscope": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "system": system(),
        "cpu": cpu(),
        "num_cores": num_cores(),
        "memory_bytes": _meminfo("MemTotal"),
        "gpus": gpus(),
        "topology": gpu_links() if torch.cuda.is_available() else "",
    }


def of_run(name: str, command: str, network: str) -> dict[str, Any]:
    """Return what belongs to one run: the date is that of now.

    >>> of_run("mine", "rankscope profile", "loopback")["network"]
    'loopback'
    """
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return {"name": name, "date": date, "command": command, "network": network}


def difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Say in which of what must be the same two provenances differ; an empty text where in nothing.

    >>> difference({"torch": "2.6.0", "num_ranks": 4}, {"torch": "2.13.0", "num_ranks": 4})
    "torch is '2.6.0' there and '2.13.0' here"
    """
    found = [
        f"{key} is {one.get(key)!r} there and {other.get(key)!r} here" for key in SAME if one.get(key) != other.get(key)
    ]
    return "; ".join(found)


def command_words(words: Sequence[str]) -> str:
    """Return a command in a line, its paths without their folders.

    >>> command_words(["/usr/bin/rankscope", "profile", "-o", "/tmp/machine.json", "--emulate", "100Mbit/s,5ms"])
    'rankscope profile -o machine.json --emulate 100Mbit/s,5ms'
    """
    return " ".join(_without_folder(word) for word in words)


def _without_folder(word: str) -> str:
    option, equals, value = word.rpartition("=")
    path = Path(value).expanduser()
    is_path = os.sep in value and (path.is_absolute() or path.parent.is_dir() or value.startswith("."))
    return f"{option}{equals}{path.name if is_path else value}"


def system() -> str:
    """Return the operating system, its version in two numbers, and the kind of processor."""
    version = re.match(r"\d+(\.\d+)?", platform.release())
    return f"{platform.system()} {version[0] if version else ''} {platform.machine()}".replace("  ", " ")


def cpu() -> str:
    """Return the processor's name."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    found = re.search(r"^(?:model name|Model|cpu model)\s*:\s*(.+)$", text, re.MULTILINE)
    if found is None and sys.platform == "darwin":
        return _told(["sysctl", "-n", "machdep.cpu.brand_string"]).strip()
    return found[1].strip() if found else platform.processor() or platform.machine()


def free_bytes() -> int:
    """Return how much memory may still be taken; a container's limit is not known here."""
    return _meminfo("MemAvailable")


def topology(told: str) -> str:
    """Return the table that ``nvidia-smi topo -m`` prints, without its legend and without what underlines.

    >>> topology("\\x1b[4mGPU0\\tGPU1\\x1b[0m\\nX\\tNV18\\n\\nLegend:\\n\\n  X = Self")
    'GPU0\\tGPU1\\nX\\tNV18'
    """
    return re.sub(r"\x1b\[[0-9;]*m", "", told).partition("\nLegend:")[0].strip()


def gpu_links() -> str:
    """Return how GPUs are joined to each other and to the host, as far as the system tells."""
    names = ("index", "pcie.link.gen.max", "pcie.link.width.max", "pci.bus_id")
    rows = _told(["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader"])
    return f"{topology(_told(['nvidia-smi', 'topo', '-m']))}\n\n{pcie(rows)}".strip()


def pcie(rows: str, devices: Path = Path("/sys/bus/pci/devices")) -> str:
    """Return a line a GPU, from rows of its number, PCIe generation, lanes and bus id: the greatest that it has.

    >>> pcie("0, 5, 16, 00000000:FF:1F.7")
    'GPU0: PCIe 5 x16'
    """
    lines = []
    for row in rows.splitlines():
        index, generation, lanes, bus = (word.strip() for word in (row.split(",") + [""] * 4)[:4])
        try:  # the kernel has four digits of the domain, and small letters
            node = (devices / bus[-12:].lower() / "numa_node").read_text().strip()
        except (OSError, ValueError):
            node = ""
        numa = f", NUMA node {node}" if node.isdigit() else ""
        if generation.isdigit() and lanes.isdigit():
            lines.append(f"GPU{index}: PCIe {generation} x{lanes}{numa}")
    return "\n".join(lines)


def gpus() -> list[dict[str, Any]]:
    """Return the GPUs that torch sees."""
    import torch

    if not torch.cuda.is_available():
        return []
    drivers = _told(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]).split()
    version: Any = torch.cuda.nccl.version
    nccl = ".".join(map(str, version())) if torch.distributed.is_nccl_available() else ""
    versions = {"driver": drivers[0] if drivers else "", "cuda": str(torch.version.cuda or ""), "nccl": nccl}
    found = []
    for number in range(torch.cuda.device_count()):
        one = torch.cuda.get_device_properties(number)
        found.append({"name": one.name, "memory_bytes": int(one.total_memory), **versions})
    return found


def _meminfo(name: str) -> int:
    try:
        found = re.search(rf"^{name}:\s*(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    if found:
        return int(found[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _told(command: list[str]) -> str:
    """What a program prints, or nothing where there is none such or it fails."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout
