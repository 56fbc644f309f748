"""The guide to GPU boxes as a page: its picture, and a row for each machine of the bank."""

from __future__ import annotations

from rankscope.box import Profile, bank
from rankscope.box.figures.boxes import draw_with_peers
from rankscope.box.machines import is_sick, notes_of
from rankscope.common.units import bytes_words, rate_words
from rankscope.figures.svg import to_svg

SHOWN = "runpod_a100_2_no_p2p"  # what stands for your box in the picture
TITLE = "Two A100s whose peer-to-peer access is off, next to two machines like them"
GUIDE = "gpu_box.md"  # in docs/
NAMES = "| Machines | `bank:` names"  # where its short table of the bank begins

_MACHINES = """The bank has {number} machines. [Notebook 05](../notebooks/05_your_box.ipynb) draws many of
them. "Up to" is the bus bandwidth of the fastest collective, or the bandwidth of the fastest copy.

"""


def picture() -> str:
    """Return the picture that `rankscope show` writes, as SVG."""
    return to_svg(draw_with_peers(Profile.load(f"bank:{SHOWN}"), title=TITLE)) + "\n"


def page(guide: str) -> str:
    """Return the guide to GPU boxes with a row for each machine of the bank, instead of its short table of names."""
    before, short_table, _ = guide.partition(NAMES)
    assert short_table, f"{GUIDE} has no table that begins with {NAMES!r}"
    rows = "".join(_row(name, Profile.load(f"bank:{name}")) for name in bank())
    table = (
        "```{list-table}\n:align: left\n:header-rows: 1\n:widths: 20 30 28 22\n\n"
        f"* - Name\n  - Hardware\n  - Measured\n  - Source\n{rows}```\n"
    )
    return before + _MACHINES.format(number=len(bank())) + table


def _row(name: str, profile: Profile) -> str:
    about = profile.provenance
    source = about["source"]
    hardware = about["name"]
    if is_sick(about):
        fault, *_ = notes_of(source).split(";")
        hardware += f". **{fault.capitalize()}**"
    origin = source["repository"]
    if "/" in origin:
        origin = f"[{origin}](https://github.com/{origin})"
    dated = ", ".join(filter(None, [origin, source["licence"], source.get("date")]))
    return f"* - `{name}`\n  - {hardware}\n  - {_measured(profile)}\n  - {dated}\n"


def _measured(profile: Profile) -> str:
    """What was measured, at how many sizes and ranks, and the most that was reached."""
    kinds = ", ".join(dict.fromkeys({"transfer": "copies"}.get(point.what, point.what) for point in profile.points))
    sizes = sorted({point.num_bytes for point in profile.points if point.num_bytes})
    span = bytes_words(sizes[0]) + (f" to {bytes_words(sizes[-1])}" if len(sizes) > 1 else "")
    rates = [point.busbw_bytes_per_s(profile.num_ranks) for point in profile.points if point.num_bytes]
    rates = [rate for rate in rates if rate == rate]  # what has no busbw is not a number
    if not rates:
        rates = [p.algbw_bytes_per_s for p in profile.points if p.num_bytes and p.options.get("direction") != "d2d"]
    return f"{kinds}; {span}; up to {rate_words(max(rates))}"
