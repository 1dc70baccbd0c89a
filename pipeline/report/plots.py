"""Pictures as SVG text, from tables that are small already."""

from __future__ import annotations

import io
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

Frame = Any

RED, AMBER, GREEN, GREY, BLUE = "#c4232b", "#d98300", "#1a7f4b", "#aab2bd", "#2f6fab"
HOSTS_MAX = 32


def _figure(width: float, height: float) -> tuple[Any, Any]:
    """Figure and axes, without a window and without the state of pyplot."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams.update(
        {"svg.fonttype": "none", "svg.hashsalt": "qmd", "font.size": 9, "font.family": "sans-serif"}
    )
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def _svg(figure: Any) -> str:
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Type": None,
                                                "Format": None})  # fmt: skip
    text = out.getvalue()
    return text[text.index("<svg") :]


def flow_map(streams: Frame) -> str:
    """Hosts on a circle, and what goes between them: red where messages were lost or doubled.

    `streams` has from_host, to_host, sent, open, findings.  Of many hosts those with findings, then
    those with the most messages.
    """
    pairs = streams.groupby(["from_host", "to_host"], as_index=False)[
        ["sent", "open", "findings"]
    ].sum()
    weight: dict[str, float] = {}
    for row in pairs.itertuples():
        for host in (row.from_host, row.to_host):
            extra = 1e9 * (row.findings > 0) + 1e6 * (row.open > 1)
            weight[host] = weight.get(host, 0) + row.sent + extra
    hosts = sorted(sorted(weight, key=lambda host: -weight[host])[:HOSTS_MAX])
    at = {
        host: (np.cos(2 * np.pi * n / len(hosts)), np.sin(2 * np.pi * n / len(hosts)))
        for n, host in enumerate(hosts)
    }
    figure, axes = _figure(8.6, 7.4)
    axes.set_aspect("equal")
    axes.axis("off")
    axes.set(xlim=(-1.4, 1.4), ylim=(-1.25, 1.25))
    most = max(1, pairs.sent.max()) if len(pairs) else 1
    from matplotlib.patches import FancyArrowPatch

    for row in pairs.sort_values("findings").itertuples():
        if row.from_host not in at or row.to_host not in at:
            continue
        color = RED if row.findings else AMBER if row.open > 1 else GREY
        axes.add_patch(
            FancyArrowPatch(
                at[row.from_host], at[row.to_host], connectionstyle="arc3,rad=0.12",
                arrowstyle="-|>", mutation_scale=9, shrinkA=6, shrinkB=6, color=color,
                lw=0.5 + 2.5 * row.sent / most, alpha=0.95 if row.findings else 0.55,
                zorder=3 if row.findings else 1,
            )
        )  # fmt: skip
    bad = {*pairs[pairs.findings > 0].from_host, *pairs[pairs.findings > 0].to_host}
    for n, host in enumerate(hosts):
        x, y = at[host]
        axes.plot(x, y, "o", ms=7, color=RED if host in bad else BLUE, zorder=4)
        angle = 360 * n / len(hosts)
        flip = 90 < angle < 270
        axes.text(
            x * 1.06, y * 1.06, host, rotation=angle + 180 if flip else angle,
            rotation_mode="anchor", ha="right" if flip else "left", va="center", fontsize=8,
        )  # fmt: skip
    return _svg(figure)


def timeline(messages: Frame, title: str, from_host: str, to_host: str) -> str:
    """A few messages of one stream: when each was sent, and when it was stored.

    `messages` has key, number, sent_at, accepted_at (a list: one for each time), ended_at, is_bad.
    """
    figure, axes = _figure(9.4, 2.5)
    moments = sorted(
        {
            each
            for row in messages.itertuples()
            for each in (row.sent_at, *row.accepted_at, row.ended_at)
            if each == each and each is not None
        }
    )
    step = {ms: float(at) for at, ms in enumerate(moments)}

    def x(ms: float) -> float:
        return step[ms]

    for row in messages.itertuples():
        color = RED if row.is_bad else GREY
        has_sent = row.sent_at == row.sent_at and row.sent_at is not None
        number = int(row.key) & 0xFFFF_FFFF
        if has_sent:
            axes.plot(x(row.sent_at), 1, "o", color=color, ms=5)
            axes.annotate(str(number), (x(row.sent_at), 1), (0, 6), textcoords="offset points",
                          ha="center", fontsize=8, color=color)  # fmt: skip
        for each in row.accepted_at:
            start = x(row.sent_at) if has_sent else x(each)
            axes.plot([start, x(each)], [1, 0], "-", color=color, lw=1.6 if row.is_bad else 0.9)
            axes.plot(x(each), 0, "o", color=color, ms=5)
            axes.annotate(str(number), (x(each), 0), (0, -13), textcoords="offset points",
                          ha="center", fontsize=8, color=color)  # fmt: skip
        if has_sent and not len(row.accepted_at):
            axes.plot([x(row.sent_at)] * 2, [1, 0.55], "--", color=color, lw=1.2)
            axes.plot(x(row.sent_at), 0.5, "x", color=color, ms=9, mew=2)
        if row.ended_at == row.ended_at and row.ended_at is not None:
            axes.plot(x(row.ended_at), 1, "s", color=AMBER, ms=7, zorder=4)
    axes.set(
        ylim=(-0.35, 1.35),
        yticks=[1, 0],
        yticklabels=[f"sent by\n{from_host}", f"stored by\n{to_host}"],
    )
    shown = moments[:: max(1, len(moments) // 8)]
    texts = [datetime.fromtimestamp(ms / 1000, UTC).strftime("%H:%M:%S.%f")[:-3] for ms in shown]
    axes.set_xticks([step[ms] for ms in shown], texts, fontsize=7)
    axes.set_title(title, loc="left", fontsize=10)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.04)
    return _svg(figure)


def heat_map(cells: Frame, rows: str, columns: str, value: str, label: str) -> str:
    """`value` for each of `rows` and `columns`; by its logarithm, as times of a network are."""
    from matplotlib.colors import LogNorm

    grid = cells.pivot_table(index=rows, columns=columns, values=value, aggfunc="max")
    figure, axes = _figure(9.4, 1.4 + 0.2 * len(grid))
    data = np.maximum(grid.to_numpy(float), 0.1)
    shown = np.ma.masked_invalid(data)
    low, high = float(shown.min()), float(max(shown.max(), shown.min() * 2))
    image = axes.imshow(shown, aspect="auto", cmap="YlOrRd", norm=LogNorm(low, high))
    axes.set_yticks(range(len(grid)), [str(each) for each in grid.index], fontsize=8)
    step = max(1, len(grid.columns) // 16)
    axes.set_xticks(
        range(0, len(grid.columns), step), [str(each) for each in grid.columns[::step]], fontsize=8,
        rotation=45, ha="right",
    )  # fmt: skip
    figure.colorbar(image, ax=axes, label=label, shrink=0.9)
    return _svg(figure)


def stacked(table: Frame, at: str, by: str, value: str, label: str) -> str:
    """Bars over time, one colour for each of `by`."""
    grid = table.pivot_table(index=at, columns=by, values=value, aggfunc="sum").fillna(0)
    grid = grid[grid.sum().sort_values(ascending=False).index]
    figure, axes = _figure(9.4, 3.2)
    below = np.zeros(len(grid))
    colors = [BLUE, AMBER, RED, GREEN, "#7b5ea7", "#4aa3a2", "#8c6d46", GREY]
    places = np.arange(len(grid))
    for n, name in enumerate(grid.columns):
        values = grid[name].to_numpy(float)
        color, label_ = colors[n % len(colors)], str(name) or "other"
        axes.bar(places, values, 0.9, bottom=below, color=color, label=label_)
        below += values
    _times(axes, grid.index)
    axes.set_ylabel(label)
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return _svg(figure)


def lines(table: Frame, at: str, values: Sequence[str], label: str, *, log: bool = False) -> str:
    """One line for each of `values`, over time."""
    figure, axes = _figure(9.4, 3.0)
    colors = [GREEN, AMBER, RED, BLUE]
    for n, name in enumerate(values):
        axes.plot(range(len(table)), table[name].to_numpy(float), color=colors[n % 4], label=name)
    _times(axes, table[at])
    if log:
        axes.set_yscale("log")
    axes.set_ylabel(label)
    axes.legend(frameon=False, fontsize=8)
    return _svg(figure)


def _times(axes: Any, moments: Any) -> None:
    texts = [each.strftime("%d %b %H:%M") for each in moments]
    step = max(1, len(texts) // 10)
    axes.set_xticks(range(0, len(texts), step), texts[::step], fontsize=8, rotation=30, ha="right")
