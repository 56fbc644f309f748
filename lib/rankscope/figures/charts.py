"""Charts with numeric axes, on matplotlib: one `chart`, curves over any quantity, and costs over sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from textwrap import wrap
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import ArrayLike, NDArray

from ..common.checks import number, one_of, optional
from ..common.units import bytes_words
from .marks import plain
from .palette import INK, LINES, PAPER, TONES, Look, looks
from .plots import spread_out

Floats = NDArray[np.float64]
LABEL_PT, TITLE_PT = 9.0, 13.0  # as the sizes of drawings, at 96 px an inch
WIDE_INCHES = 8.0
_SAME = 1e-9  # logarithms that differ by less are those of one number
_MARKERS = ("o", "s", "^", "D")
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))  # the seconds of each unit


def chart(
    ax: Axes | None,
    title: str,
    x_label: str,
    y_label: str,
    *,
    deck: str = "",
    inches: float = 3.6,
    x: Sequence[float] | Floats | None = None,
    x_margin: float = 1.0,
    x_words: Callable[[float], str] = bytes_words,
    most_ticks: int = 8,
    y_limits: tuple[float, float] | None = None,
    log_y: bool = False,
) -> Axes:
    """Return `ax`, or the Axes of a new figure so high, with title, deck, labels, scales, ticks and grid.

    With `x`, values that rise, their axis is logarithmic, reaches past them by a factor of `x_margin`, and has at most
    `most_ticks` ticks at powers of two, named by `x_words`.
    """
    if ax is None:
        _, ax = plt.subplots(figsize=(WIDE_INCHES, inches), layout="constrained")
    pad = 24.0 if deck else 8.0
    wrapped = "\n".join(wrap(title.replace("*", ""), 66))
    ax.set_title(wrapped, loc="left", fontsize=TITLE_PT, fontweight="bold", color=INK, pad=pad)
    ax.title.set_parse_math(False)
    if deck:
        above = {"xycoords": "axes fraction", "textcoords": "offset points", "fontsize": 10, "color": TONES["mute"]}
        ax.annotate(plain(deck), (0, 1), xytext=(0, 9), **above)  # type: ignore[arg-type]
    ax.set_xlabel(x_label, color=TONES["mute"], parse_math=False)
    ax.set_ylabel(y_label, color=TONES["mute"], parse_math=False)
    if x is not None:
        ax.set(xscale="log", xlim=(x[0] / x_margin, x[-1] * x_margin))
        _power_ticks(ax, x, x_words, most_ticks)
    if log_y:
        ax.set_yscale("log")
        plain_ticks(ax.yaxis, y_limits)
    if y_limits is not None:
        ax.set_ylim(y_limits)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.spines["bottom"].set_color(TONES["rule"])
    ax.tick_params(which="both", length=0, labelcolor=TONES["mute"], labelsize=LABEL_PT)
    ax.tick_params(axis="x", pad=7)
    ax.grid(visible=False, which="both")  # the user's style of matplotlib may have one
    ax.grid(axis="y", color=TONES["rule"], linewidth=0.6)
    ax.set_axisbelow(True)
    return ax


def plain_ticks(axis: Axis, limits: tuple[float, float] | None) -> None:
    """Label a logarithmic axis with numbers: powers of ten, and 2 and 5 times these if it spans less than 100."""
    is_short = limits is not None and limits[1] < 100 * limits[0]
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if is_short else (1.0,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: _plain_number(value)))
    axis.set_minor_formatter(NullFormatter())


def _plain_number(value: float) -> str:
    """A number with six digits and no exponent.

    >>> _plain_number(1e-05), _plain_number(1e6), _plain_number(0.25)
    ('0.00001', '1,000,000', '0.25')
    """
    if 0 < value < 1:
        return np.format_float_positional(value, precision=6, fractional=False, trim="-")
    return f"{value:,.6g}" if value < 1e6 else f"{value:,.0f}"


def _power_ticks(ax: Axes, x: Sequence[float] | Floats, words: Callable[[float], str], most: int) -> None:
    """Put ticks at powers of two between the first and the last x: at each, at each second one, and so on."""
    powers = np.arange(np.ceil(np.log2(x[0]) - _SAME), np.floor(np.log2(x[-1]) + _SAME) + 1)
    every = next(step for step in (1, 2, 5, 10, 20, 50) if powers.size <= most * step)
    shown = 2.0 ** powers[powers % every == 0]
    ax.set_xticks(shown, [words(size) for size in shown.tolist()])
    ax.set_xticks([], minor=True)


def dash(look: Look) -> Any:
    """Return the linestyle of a look, for matplotlib."""
    return (0, (4, 2.5)) if look.dashed else "-"


def markers(ax: Axes, name: str, look: Look, x: Any, low: Floats, middle: Floats, high: Floats) -> Any:
    """Draw a marker for each measurement, with a bar from low to high, and return them."""
    reach = np.stack([middle - low, high - middle])
    style: dict[str, Any] = {"color": look.color, "marker": look.marker, "markersize": 6, "elinewidth": 1}
    style |= {"linestyle": "none", "zorder": 3, "clip_on": False}  # a marker at the edge is drawn whole
    return ax.errorbar(x, middle, reach, label=f"{name}, measured", **style)


def explain(ax: Axes, kinds: Mapping[str, Mapping[str, Any]]) -> None:
    """Explain below the figure, at the right, what lines and markers are, by a dark sample of each."""
    samples = [Line2D([], [], label=label, **{"color": INK, **style}) for label, style in kinds.items()]
    place: dict[str, Any] = {"loc": "outside lower right", "ncols": len(samples), "frameon": False}
    if not ax.figure.legends:
        ax.figure.legend(handles=samples, fontsize=LABEL_PT, **place)


def note(ax: Axes, text: str, at: tuple[float, float], offset: tuple[float, float], **style: Any) -> None:
    """Write a text at a point of the data, moved by an offset in points, on a ground that covers lines."""
    ground = {"boxstyle": "square,pad=0.12", "facecolor": PAPER, "edgecolor": "none"}
    options: dict[str, Any] = {"textcoords": "offset points", "fontsize": LABEL_PT, "bbox": ground}
    ax.annotate(plain(text), at, xytext=offset, parse_math=False, **options, **style)


def name_ends(ax: Axes, ends: Mapping[str, tuple[float, Look]]) -> None:
    """Write the name of each line at its end, in its hue, with a hair to it; no name covers another.

    `ends` has the last y of each line, and its look. Names keep to their lines when the limits change later.
    """
    style: dict[str, Any] = {"transform": ax.transAxes, "clip_on": False}
    hairs = {name: ax.plot([], [], color=look.color, linewidth=0.7, **style)[0] for name, (_, look) in ends.items()}
    words = {}
    for name, (_, look) in ends.items():
        words[name] = ax.text(1.03, 0, plain(name), color=look.color, va="center", fontsize=LABEL_PT, **style)
        words[name].set_parse_math(False)

    def place(_: object = None) -> None:
        to_axes = ax.transData + ax.transAxes.inverted()  # from data to shares of the axes' height
        right = ax.get_xlim()[1]
        end_of = {name: float(to_axes.transform((right, y))[1]) for name, (y, _) in ends.items()}
        upwards = sorted(end_of, key=lambda name: end_of[name])
        height_pt = ax.bbox.height / ax.figure.dpi * 72
        places = spread_out([end_of[name] for name in upwards], 1.3 * LABEL_PT / height_pt)
        for name, y in zip(upwards, places, strict=True):
            hairs[name].set_data((1, 1.025), (end_of[name], y))
            words[name].set_y(y)

    place()
    for change in ("xlim_changed", "ylim_changed"):
        ax.callbacks.connect(change, place)


# ---- over any quantity


def curves(
    x: ArrayLike,
    curves: Mapping[str, tuple[ArrayLike | None, ArrayLike | None]],
    title: str,
    x_label: str,
    y_label: str,
    *,
    ax: Axes | None = None,
    discrete: bool = False,
    log: str = "",
    deck: str = "",
) -> Axes:
    """Draw ``curves[name] = (predicted, executed)`` over `x`; either of them may be None.

    Predictions are lines, executions markers of the same hue. Several curves have their names at the right end. If
    `discrete` is true, a prediction is a short dash at each x. The axes in `log` ("x", "y" or "xy") are logarithmic.
    Raises ValueError if there are more curves than hues, if a curve has neither, if a length differs from that of `x`,
    or if `log` names other axes.
    """
    one_of("log", log, ("", "x", "y", "xy"))
    x_values = np.asarray(x)
    _check_curves(curves, x_values)
    ax = chart(ax, title, x_label, y_label, deck=deck)
    ends: dict[str, tuple[float, Look]] = {}
    for index, (name, (predicted, executed)) in enumerate(curves.items()):
        look = Look(LINES[index], index % 2 == 1, _MARKERS[index % len(_MARKERS)])  # neighbours differ in grey, too
        if predicted is not None:
            style: dict[str, Any] = {"linestyle": dash(look), "linewidth": 2}
            if discrete:
                style = {"linestyle": "none", "marker": "_", "markersize": 18, "markeredgewidth": 2}
            ax.plot(x_values, predicted, color=look.color, label=f"{name}, predicted", **style)
        if executed is not None:
            style = {"linestyle": "none", "marker": look.marker, "markersize": 5, "zorder": 3}
            ax.plot(x_values, executed, color=look.color, label=f"{name}, executed", **style)
        values = np.asarray(executed if predicted is None else predicted, dtype=float)
        finite = values[np.isfinite(values)]
        ends[name] = float(finite[-1]) if finite.size else 0.0, look
    if "x" in log:
        ax.set_xscale("log")
        plain_ticks(ax.xaxis, ax.get_xlim())
        ax.set_xticks([], minor=True)
    if "y" in log:
        ax.set_yscale("log")
        plain_ticks(ax.yaxis, ax.get_ylim())
    kinds = list(zip(*curves.values(), strict=True))
    if any(one is not None for one in kinds[0]) and any(one is not None for one in kinds[1]):
        explain(ax, {"predicted": {"linewidth": 2}, "executed": {"marker": "o", "markersize": 5, "linestyle": "none"}})
    if len(curves) > 1:
        name_ends(ax, ends)
    return ax


def _check_curves(curves: Mapping[str, tuple[ArrayLike | None, ArrayLike | None]], x: Floats) -> None:
    """Raise ValueError unless each curve has a prediction or an execution, and each of these a value for each x."""
    if not isinstance(curves, Mapping) or not 0 < len(curves) <= len(LINES):
        got = len(curves) if isinstance(curves, Mapping) else repr(curves)
        raise ValueError(f"curves must number from 1 to {len(LINES)}, by name, got {got}")
    for name, pair in curves.items():
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise ValueError(f"curves[{name!r}] must be a pair of columns, got {pair!r}")
        if pair[0] is None and pair[1] is None:
            raise ValueError(f"curves must have a prediction or an execution each, got neither for {name!r}")
        for kind, values in zip(("predicted", "executed"), pair, strict=True):
            if values is not None and np.shape(values) != x.shape:
                raise ValueError(f"{name}, {kind}: {np.shape(values)} values over x of shape {x.shape}")


# ---- over sizes


def costs(
    num_bytes: ArrayLike,
    seconds: Mapping[str, ArrayLike],
    *,
    ax: Axes | None = None,
    measured: Mapping[str, tuple[ArrayLike, ArrayLike]] | None = None,
    half_bytes: float | None = None,
    title: str | None = None,
    deck: str = "",
) -> Axes:
    """Draw ``seconds[algorithm]`` over `num_bytes` on logarithmic axes, with names at the right end of the lines.

    A dot with its size marks each point at which another algorithm becomes the fastest. `measured` maps algorithms to
    ``(num_bytes, seconds)``, of shape (sizes,) or (sizes, repeats), drawn as markers at the median with a bar from
    minimum to maximum. `half_bytes` marks n½, where latency and bandwidth take the same time. Raises ValueError if
    there are no algorithms, if sizes are not above 0 and ascending, if a time is not above 0, or if lengths differ.
    """
    sizes = _sizes(num_bytes)
    if not isinstance(seconds, Mapping) or not seconds:
        raise ValueError(f"seconds must hold the times of at least one algorithm, by name, got {seconds!r}")
    lines_s = {name: _times(name, values, sizes) for name, values in seconds.items()}
    points = _points(measured or {})
    optional("half_bytes", half_bytes, number, above=0)
    all_s = np.concatenate([*lines_s.values(), *(times_s.ravel() for _, times_s in points.values())])
    scale, unit = next((unit for unit in _UNITS if all_s.min() >= unit[0]), _UNITS[-1])
    y_limits = (float(all_s.min()) / scale / 2, float(all_s.max()) / scale * 1.6)  # with some room on both sides
    first, changes = lowest(sizes, np.stack(list(lines_s.values())) / scale)
    names = list(lines_s)
    found = f"{names[first]} is the fastest at every size"
    if changes:
        found = f"Fastest: {', then '.join(names[leader] for leader in [first, *(one.leader for one in changes)])}"
    label = "size of each rank's buffer"
    ax = chart(ax, title or found, label, f"time [{unit}]", deck=deck, inches=5, x=sizes, y_limits=y_limits, log_y=True)
    ends: dict[str, tuple[float, Look]] = {}
    styles = looks([*lines_s, *points])
    for name, times_s in lines_s.items():
        look = styles[name]
        layer = 2.5 if look.dashed else 2.0  # if two lines coincide, both show only if the dashed one is on top
        ax.plot(sizes, times_s / scale, color=look.color, linestyle=dash(look), linewidth=2, label=name, zorder=layer)
        ends[name] = float(times_s[-1] / scale), look
    for name, (x, times_s) in points.items():
        spread = np.percentile(times_s / scale, [0, 50, 100], axis=1)
        markers(ax, name, styles[name], x, *spread)
        ends.setdefault(name, (float(spread[1][-1]), styles[name]))
    if changes:
        _mark_changes(ax, changes)
    if half_bytes is not None:
        ax.axvline(half_bytes, color=INK, linewidth=0.8, linestyle=":", label="n½")
        note(ax, f"n½ = {bytes_words(half_bytes)}", (half_bytes, y_limits[1]), (4, -2), va="top")
    if points:
        explain(ax, {"measured: median, minimum and maximum": {"marker": "o", "linestyle": "none"}})
    name_ends(ax, ends)
    return ax


def _mark_changes(ax: Axes, changes: Sequence[Change]) -> None:
    """A dot for each change of the fastest; its size stands below, where the dots leave room."""
    x, y = [change.x for change in changes], [change.y for change in changes]
    ax.plot(x, y, "o", color=INK, markersize=5, markerfacecolor=PAPER, label="crossover", zorder=4)
    to_axes = ax.transData + ax.transAxes.inverted()
    last_share = -np.inf
    for change in changes:
        share = float(to_axes.transform((change.x, change.y))[0])
        if share - last_share > 0.07:
            note(ax, bytes_words(change.x), (change.x, change.y), (0, -7), va="top", ha="center")
            last_share = share


def _sizes(num_bytes: ArrayLike) -> Floats:
    sizes = np.asarray(num_bytes, dtype=float)
    is_column = sizes.ndim == 1 and sizes.size > 1
    if not is_column or not np.isfinite(sizes).all() or not (np.diff(sizes, prepend=0.0) > 0).all():
        raise ValueError(f"num_bytes must be at least two sizes that rise from above 0, got {num_bytes!r}")
    return sizes


def _points(measured: Mapping[str, tuple[ArrayLike, ArrayLike]]) -> dict[str, tuple[Floats, Floats]]:
    """The sizes measured of each algorithm, and the times, sizes by repeats."""
    points = {}
    for name, (num_bytes, seconds) in measured.items():
        sizes = np.asarray(num_bytes, dtype=float)
        is_column = sizes.ndim == 1 and sizes.size > 0
        if not is_column or not np.isfinite(sizes).all() or not (sizes > 0).all():
            raise ValueError(f"{name}, measured: sizes must be finite and above 0, got {num_bytes!r}")
        times_s = _times(f"{name}, measured", seconds, sizes, most_axes=2)
        points[name] = sizes, times_s.reshape(sizes.size, -1)  # times without repeats become one column
    return points


def _times(name: str, values: ArrayLike, sizes: Floats, most_axes: int = 1) -> Floats:
    """The times of these sizes, above 0, as a logarithmic axis needs them."""
    times = np.asarray(values, dtype=float)
    if times.shape[:1] != sizes.shape or times.ndim > most_axes or times.size == 0:
        raise ValueError(f"{name}: {times.shape} values over sizes of shape {sizes.shape}")
    if not (np.isfinite(times) & (times > 0)).all():
        raise ValueError(f"{name}: times must be finite and above 0 on a logarithmic axis")
    return times


class Change(NamedTuple):
    """At `x` and above, line `leader` is the lowest; it is `y` high there."""

    x: float
    y: float
    leader: int


def lowest(x: Floats, y: Floats) -> tuple[int, list[Change]]:
    """Return the lowest line at the left, and each change of it, for lines that are straight on logarithmic axes.

    `y` has a row for each line, all above 0. Of lines that coincide the one that was the lowest remains so.

    >>> first, changes = lowest(np.array([1.0, 100.0]), np.array([[1.0, 100.0], [10.0, 10.0]]))
    >>> first, [(round(change.x, 9), round(change.y, 9), change.leader) for change in changes]
    (0, [(10.0, 10.0, 1)])
    """
    log_x, log_y = np.log(x), np.log(y)
    first = leader = int((log_y[:, 0] <= log_y[:, 0].min() + _SAME).argmax())
    changes: list[Change] = []
    for interval in range(x.size - 1):  # from one x to the next
        start, rise = log_y[:, interval], log_y[:, interval + 1] - log_y[:, interval]
        gaps, closing = np.subtract.outer(start, start), -np.subtract.outer(rise, rise)
        with np.errstate(divide="ignore", invalid="ignore"):  # parallel lines cross nowhere
            crossings = gaps / closing
        inside = crossings[(crossings > 0) & (crossings < 1 - _SAME)]
        for fraction in np.unique([0.0, *inside]).tolist():
            height = start + fraction * rise
            tied = np.flatnonzero(height <= height.min() + _SAME)
            after = int(tied[rise[tied].argmin()])  # of lines that meet, the one that rises least is the lowest next
            if rise[leader] > rise[after] + _SAME:
                leader = after
                change_x = log_x[interval] + fraction * (log_x[interval + 1] - log_x[interval])
                changes.append(Change(float(np.exp(change_x)), float(np.exp(height[leader])), leader))
    return first, changes
