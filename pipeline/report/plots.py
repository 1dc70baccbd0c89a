"""Pictures as SVG text, from aggregated tables."""

from __future__ import annotations

import html
import io
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np

Frame = Any

#: Placeholders for the page's colours, by name: the reader's browser chooses dark or light.  Their
#: values are those of the light page.
COLORS = {
    "red": "#b81f27", "amber": "#8a5200", "green": "#166b3f", "grey": "#667180", "blue": "#2563a0",
    "violet": "#6b4e9b", "teal": "#1f7674", "brown": "#7c5c33", "ink": "#1c2430",
}  # fmt: skip
RED, AMBER, GREEN, GREY, BLUE, VIOLET, TEAL, BROWN, INK = COLORS.values()
FEW_HOSTS = 8
NAMED_MAX = 40  # hosts with names in a flow map
KINDS_MAX = 8  # colours of bars
WAYS_MAX = 400  # routes in a flow map, besides those with findings


def _figure(width: float, height: float) -> tuple[Any, Any]:
    """Return figure and axes, without a window and without the global state of pyplot."""
    import matplotlib
    from matplotlib.figure import Figure

    drawn = dict.fromkeys(
        ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK
    )
    matplotlib.rcParams.update(
        {"svg.fonttype": "none", "svg.hashsalt": "qmd", "font.size": 9,
         "font.family": "sans-serif"} | drawn
    )  # fmt: skip
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def _svg(figure: Any, title: str) -> str:
    """Return the figure as SVG; `title` is its text for screen readers."""
    out = io.StringIO()
    figure.savefig(out, format="svg", transparent=True,
                   metadata={"Date": None, "Creator": None, "Type": None,
                             "Format": None})  # fmt: skip
    text = out.getvalue()
    text = text[text.index("<svg") :]
    for name, color in COLORS.items():
        text = text.replace(color, f"var(--{name})")
    return text.replace("<svg", f'<svg role="img" aria-label="{html.escape(title)}"', 1)


def flow_map(streams: Frame) -> str:
    """Draw hosts on a circle and the routes between them; routes with findings are red.

    `streams` has from_host, to_host, sent, open, findings.  All hosts are drawn.  Names are given
    to hosts with findings, then to those with undecided messages, then to those with the most
    messages, as far as there is room.
    """
    pairs = streams.groupby(["from_host", "to_host"], as_index=False)[
        ["sent", "open", "findings"]
    ].sum()
    # Sums of no rows have an object type, which cannot be sorted.
    pairs = pairs.astype({"sent": "int64", "open": "int64", "findings": "int64"})
    weight: dict[str, float] = {}
    for row in pairs.itertuples():
        for host in (row.from_host, row.to_host):
            extra = 1e12 * row.findings + 1e9 * (row.open > 1)
            weight[host] = weight.get(host, 0) + row.sent + extra
    named = set(sorted(weight, key=lambda host: -weight[host])[:NAMED_MAX])
    hosts = sorted(weight)
    room = np.array([6.0 if host in named else 1.0 for host in hosts])
    turn = (np.cumsum(room) - room / 2) / max(room.sum(), 1.0) * 2 * np.pi
    at = {host: (np.cos(a), np.sin(a)) for host, a in zip(hosts, turn, strict=True)}
    # A map of few hosts is small, so that a phone shows all of it with readable names.
    figure, axes = _figure(*((4.6, 4.0) if len(hosts) <= FEW_HOSTS else (8.6, 7.4)))
    axes.set_aspect("equal")
    axes.axis("off")
    axes.set(xlim=(-1.45, 1.45), ylim=(-1.42, 1.42))
    most = max(1, pairs.sent.max()) if len(pairs) else 1
    from matplotlib.patches import FancyArrowPatch

    pairs["is_open"] = pairs.open > 1
    plain = pairs[(pairs.findings == 0) & ~pairs.is_open].nlargest(WAYS_MAX, "sent")
    struck = pairs[(pairs.findings > 0) | pairs.is_open].sort_values("findings")
    for part in (plain, struck):
        for row in part.itertuples():
            color = RED if row.findings else AMBER if row.is_open else GREY
            is_plain = color == GREY
            axes.add_patch(
                FancyArrowPatch(
                    at[row.from_host], at[row.to_host], connectionstyle="arc3,rad=0.12",
                    arrowstyle="-" if is_plain else "-|>", mutation_scale=10, shrinkA=4, shrinkB=4,
                    color=color, lw=(0.4 if is_plain else 1.0) + 2.0 * row.sent / most,
                    ls="--" if color == AMBER else "-",
                    alpha=(0.45 if len(pairs) < 200 else 0.18) if is_plain else 0.95,
                    zorder=1 if is_plain else 3,
                )
            )  # fmt: skip
    bad = {*pairs[pairs.findings > 0].from_host, *pairs[pairs.findings > 0].to_host}
    for host, a in zip(hosts, turn, strict=True):
        x, y = at[host]
        is_bad, is_named = host in bad, host in named
        axes.plot(x, y, "o", ms=7 if is_named else 3, color=RED if is_bad else BLUE, zorder=4)
        if is_named:
            angle = float(np.degrees(a))
            flip = 90 < angle < 270
            axes.text(
                x * 1.06, y * 1.06, host, rotation=angle + 180 if flip else angle,
                rotation_mode="anchor", ha="right" if flip else "left", va="center", fontsize=8,
                color=RED if is_bad else INK, weight="bold" if is_bad else "normal",
            )  # fmt: skip
    return _svg(figure, f"{len(hosts)} hosts; those with findings: {', '.join(sorted(bad)[:40])}")


#: Times below a timeline: more of them would overlap.
RANGES_MAX = 2  # of numbers in one text
TICKS_MAX = 8


def timeline(messages: Frame, title: str, from_host: str, to_host: str) -> str:
    """Draw a few messages of one stream: when each was sent, and when it was stored.

    `messages` has number, sent_at, accepted_at (a list of times), ended_at, is_bad; times are ms.
    """
    figure, axes = _figure(9.4, 2.5)
    rows = list(messages.itertuples())
    step = {moment: float(at) for at, moment in enumerate(sorted(_moments(rows)))}
    numbers: dict[tuple[int, float], list[tuple[int, bool]]] = {}  # by height and place
    for row in rows:
        color = RED if row.is_bad else GREY
        sent = step[_Moment(row.sent_at, 0)] if _is_time(row.sent_at) else None
        number = int(row.number)
        if sent is not None:
            axes.plot(sent, 1, "o", color=color, ms=5)
            numbers.setdefault((1, sent), []).append((number, row.is_bad))
        for moment in _stored(row):
            stored = step[moment]
            start = stored if sent is None else sent
            axes.plot([start, stored], [1, 0], "-", color=color, lw=1.6 if row.is_bad else 0.9)
            axes.plot(stored, 0, "o", color=color, ms=5)
            numbers.setdefault((0, stored), []).append((number, row.is_bad))
        if sent is not None and not len(row.accepted_at):
            axes.plot([sent] * 2, [1, 0.55], "--", color=color, lw=1.2)
            axes.plot(sent, 0.5, "x", color=color, ms=9, mew=2)
        if _is_time(row.ended_at):
            axes.plot(step[_Moment(row.ended_at, 0)], 1, "s", color=AMBER, ms=7, zorder=4)
    _write_numbers(axes, numbers)
    axes.set(
        ylim=(-0.6, 1.6),
        yticks=[1, 0],
        yticklabels=[f"sent by\n{from_host}", f"stored by\n{to_host}"],
    )
    places = {moment.ms: at for moment, at in reversed(step.items())}  # the first of each time
    shown = sorted(places)[:: max(1, -(-len(places) // TICKS_MAX))]
    texts = [datetime.fromtimestamp(ms / 1000, UTC).strftime("%H:%M:%S.%f")[:-3] for ms in shown]
    axes.set_xticks([places[ms] for ms in shown], texts, fontsize=7)
    axes.set_title(title, loc="left", fontsize=10)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.09)  # room for long numbers at both ends
    return _svg(figure, f"{title}, from {from_host} to {to_host}")


class _Moment(NamedTuple):
    """A place on the axis of time.  What was stored within one millisecond has several."""

    ms: float
    turn: int


def _is_time(ms: float | None) -> bool:
    return ms is not None and ms == ms


def _stored(row: Any) -> list[_Moment]:
    """Return when a message was stored; a wrong one after the others, each of its copies apart."""
    return [_Moment(ms, turn * row.is_bad) for turn, ms in enumerate(row.accepted_at, 1)]


def _moments(rows: Iterable[Any]) -> set[_Moment]:
    found = set[_Moment]()
    for row in rows:
        found.update(_Moment(ms, 0) for ms in (row.sent_at, row.ended_at) if _is_time(ms))
        found.update(_stored(row))
    return found


def _write_numbers(axes: Any, numbers: dict[tuple[int, float], list[tuple[int, bool]]]) -> None:
    """Write the numbers of messages at their points, each text where no other one is.

    Messages of one moment share a text, wrong ones have one of their own, and neighbours are at two
    heights, because long numbers are wider than the distance of two points.
    """
    for height in (1, 0):
        for at, place in enumerate(sorted(x for of, x in numbers if of == height)):
            here = numbers[height, place]
            bad = {number for number, is_bad in here if is_bad}
            fine = {number for number, is_bad in here if not is_bad}
            for chosen, color, level in ((fine, GREY, at % 2), (bad, RED, 2 if fine else at % 2)):
                if chosen:
                    lift = 6 + 9 * level if height else -13 - 9 * level
                    axes.annotate(
                        in_ranges(chosen), (place, height), (0, lift),
                        textcoords="offset points", ha="center", fontsize=8, color=color,
                    )  # fmt: skip


def in_ranges(numbers: set[int]) -> str:
    """Return numbers as a short text: "4", "4-6, 9", or "4 to 90" if there are many ranges."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    if len(ranges) > RANGES_MAX:
        return f"{ranges[0][0]} to {ranges[-1][1]}"
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def lanes(events: Frame, bad: set[str]) -> str:
    """Draw events in their order, each at its host: the history of a message and its responses.

    `events` has host, message_id, kind; kinds in `bad` are marked.
    """
    hosts = list(dict.fromkeys(events.host))
    lane = {host: float(len(hosts) - n) for n, host in enumerate(hosts)}
    figure, axes = _figure(9.4, 1.6 + 0.75 * len(hosts))
    colors = [BLUE, GREEN, VIOLET, TEAL, BROWN, GREY]
    for n, (_, part) in enumerate(events.reset_index(drop=True).groupby("message_id", sort=False)):
        axes.plot(
            part.index.to_numpy(float), [lane[host] for host in part.host], "-",
            color=colors[n % len(colors)], lw=1.3, alpha=0.7,
        )  # fmt: skip
    for at, row in enumerate(events.itertuples()):
        is_bad = row.kind in bad
        axes.plot(at, lane[row.host], "X" if is_bad else "o", color=RED if is_bad else BLUE,
                  ms=9 if is_bad else 6, zorder=4)  # fmt: skip
        axes.annotate(
            row.kind.replace("_", " "), (at, lane[row.host]), (0, 7), textcoords="offset points",
            ha="left", va="bottom", rotation=30, fontsize=8, color=RED if is_bad else INK,
            weight="bold" if is_bad else "normal",
        )  # fmt: skip
    axes.set(ylim=(0.7, len(hosts) + 0.95), yticks=list(lane.values()), yticklabels=list(lane))
    axes.set_xlim(-0.5, max(len(events) - 0.2, 6.5))
    axes.set_xticks([])
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return _svg(figure, f"{len(events)} events at {', '.join(map(str, hosts))}")


def heat_map(
    cells: Frame,
    rows: str,
    columns: str,
    value: str,
    label: str,
    value_text: Callable[[float], str] = str,
) -> str:
    """Draw `value` by row (in the given order) and time, on a logarithmic scale."""
    from matplotlib.colors import LogNorm

    grid = cells.pivot_table(index=rows, columns=columns, values=value, aggfunc="max", sort=False)
    grid = grid.sort_index(axis=1)
    figure, axes = _figure(9.4, 1.4 + 0.2 * len(grid))
    data = np.maximum(grid.to_numpy(float), 0.1)
    shown = np.ma.masked_invalid(data)
    # If all routes are similar, none is dark.
    low, high = float(shown.min()), float(max(shown.max(), shown.min() * 30))
    image = axes.imshow(shown, aspect="auto", cmap="YlOrRd", norm=LogNorm(low, high))
    axes.set_yticks(range(len(grid)), [str(each) for each in grid.index], fontsize=8)
    step = max(1, len(grid.columns) // 16)
    texts = [each.strftime("%d %b %H:%M") for each in grid.columns[::step]]
    places = range(0, len(grid.columns), step)
    axes.set_xticks(places, texts, fontsize=8, rotation=45, ha="right")
    bar = figure.colorbar(image, ax=axes, label=label, shrink=0.9)
    bar.outline.set_visible(False)
    ticks = [10.0**n for n in range(-1, 8) if low <= 10.0**n <= high] or [low, high]
    bar.set_ticks(ticks, labels=[value_text(each) for each in ticks])
    bar.ax.minorticks_off()
    return _svg(figure, f"{label} by {rows} and {columns}")


def stacked(table: Frame, at: str, by: str, value: str, label: str) -> str:
    """Draw bars over time, with one colour for each value of `by`."""
    grid = table.pivot_table(index=at, columns=by, values=value, aggfunc="sum").fillna(0)
    grid = grid[grid.sum().sort_values(ascending=False).index]
    if grid.shape[1] > KINDS_MAX:
        rest = grid.iloc[:, KINDS_MAX - 1 :].sum(axis=1)
        grid = grid.iloc[:, : KINDS_MAX - 1].assign(others=rest)
    figure, axes = _figure(9.4, 3.2)
    below = np.zeros(len(grid))
    colors = [BLUE, AMBER, RED, GREEN, VIOLET, TEAL, BROWN, GREY]
    places = np.arange(len(grid))
    for n, name in enumerate(grid.columns):
        values = grid[name].to_numpy(float)
        color, label_ = colors[n % len(colors)], str(name) or "other"
        axes.bar(places, values, 0.9, bottom=below, color=color, label=label_)
        below += values
    _times(axes, grid.index)
    axes.set_ylabel(label)
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return _svg(figure, f"{label} by {by}, over time")


def lines(
    table: Frame,
    at: str,
    values: Mapping[str, str],
    label: str,
    *,
    value_text: Callable[[float], str] | None = None,
) -> str:
    """Draw one line for each of `values` (column -> label), over time.

    With `value_text` the scale is logarithmic, and `value_text` formats its labels.
    """
    figure, axes = _figure(9.4, 3.0)
    colors = [GREEN, AMBER, RED, BLUE]
    for n, (name, text) in enumerate(values.items()):
        axes.plot(
            range(len(table)), table[name].to_numpy(float), color=colors[n % 4], label=text,
            ls=["-", "--", "-.", ":"][n % 4], marker="o" if len(table) == 1 else None,
        )  # fmt: skip
    _times(axes, table[at])
    if value_text is not None:
        from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda each, _: value_text(each)))
        axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylabel(label)
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return _svg(figure, f"{label} over time")


def _times(axes: Any, moments: Any) -> None:
    has_hours = any(each.hour for each in moments)
    texts = [each.strftime("%d %b %H:%M" if has_hours else "%d %b") for each in moments]
    step = max(1, len(texts) // 10)
    axes.set_xticks(range(0, len(texts), step), texts[::step], fontsize=8, rotation=30, ha="right")
