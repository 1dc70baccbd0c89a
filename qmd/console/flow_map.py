"""The flow map: hosts around a circle, and an arrow from each sender to each receiver."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from qmd.client import ClientError
from qmd.console.fleet import Figures
from qmd.console.text import visible

WIDTH, HEIGHT = 760, 420
BOX_WIDTH, BOX_HEIGHT = 130, 40
NODES_MAX = 40
NAME_CHARACTERS = 16


class Flow(NamedTuple):
    """The messages that wait at one host for another one."""

    source: str
    target: str
    is_known: bool  # the target is a host of the console
    messages: int
    bytes: int
    state: str  # ok, waiting, stuck
    explanation: str
    destinations: tuple[str, ...]


class Node(NamedTuple):
    """A box of the map."""

    name: str
    shown: str
    x: float
    y: float
    kind: str  # host, down, other


class Edge(NamedTuple):
    """An arrow of the map."""

    flow: Flow
    path: str
    x: float
    y: float
    width: float
    text: str


class FlowMap(NamedTuple):
    """The map as coordinates in a box of WIDTH and HEIGHT."""

    nodes: list[Node]
    edges: list[Edge]
    width: int = WIDTH
    height: int = HEIGHT
    left_out: int = 0


def flows(figures: Mapping[str, Figures | ClientError]) -> list[Flow]:
    """Return the flows between hosts, the one with most messages first."""
    names = _names(figures)
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for source, each in figures.items():
        if isinstance(each, ClientError):
            continue
        for row in each.outgoing:
            target = str(row["address"] or row["destination"])
            target = names.get(target.lower(), target)
            found.setdefault((source, target), []).append(row)
    made = [
        _flow(source, target, target in figures, rows) for (source, target), rows in found.items()
    ]
    return sorted(made, key=lambda flow: (-flow.messages, flow.source, flow.target))


def _names(figures: Mapping[str, Figures | ClientError]) -> dict[str, str]:
    """Return the host of the console for each name and address by which others reach it."""
    names: dict[str, str] = {name.lower(): name for name in figures}
    for name, each in figures.items():
        if isinstance(each, Figures):
            names[str(each.status.get("name", name)).lower()] = name
            for place in each.status.get("listen", ()):
                names[str(place).lower()] = name
                names.setdefault(str(place).rpartition(":")[0].lower(), name)
    return names


def _flow(source: str, target: str, is_known: bool, rows: list[dict[str, Any]]) -> Flow:
    messages = sum(row["messages"] for row in rows)
    worst = max(rows, key=lambda row: row["messages"])
    is_paused = any(row["state"] == "paused" or row["in_doubt"] for row in rows)
    is_stuck = messages > 0 and (is_paused or worst["state"] == "waiting")
    state = "stuck" if is_stuck else "waiting" if messages else "ok"
    return Flow(
        source,
        target,
        is_known,
        messages,
        sum(row["bytes"] for row in rows),
        state,
        worst["explanation"],
        tuple(sorted(row["destination"] for row in rows)),
    )


def draw(figures: Mapping[str, Figures | ClientError], found: list[Flow]) -> FlowMap:
    """Return the map of the hosts and their flows; hosts with most messages come first."""
    names = list(figures)
    names += sorted({flow.target for flow in found} - set(names))
    left_out = max(0, len(names) - NODES_MAX)
    names = names[:NODES_MAX]
    places: dict[str, tuple[float, float]] = {}
    nodes = []
    for at, name in enumerate(names):
        angle = 2 * math.pi * at / max(1, len(names)) - math.pi / 2
        x = WIDTH / 2 + (WIDTH / 2 - BOX_WIDTH / 2 - 10) * math.cos(angle)
        y = HEIGHT / 2 + (HEIGHT / 2 - BOX_HEIGHT / 2 - 10) * math.sin(angle)
        places[name] = x, y
        kind = "other"
        if name in figures:
            kind = "down" if isinstance(figures[name], ClientError) else "host"
        nodes.append(Node(name, visible(name, NAME_CHARACTERS), round(x, 1), round(y, 1), kind))
    edges = [
        _edge(flow, places[flow.source], places[flow.target])
        for flow in found
        if flow.source in places and flow.target in places
    ]
    return FlowMap(nodes, edges, left_out=left_out)


def _edge(flow: Flow, start: tuple[float, float], end: tuple[float, float]) -> Edge:
    """Return an arrow that bends to its left, so that the one back does not cover it."""
    (x1, y1), (x2, y2) = _border(start, end), _border(end, start)
    if start == end:
        x1, y1 = start[0] - 20, start[1] + BOX_HEIGHT / 2
        x2, y2 = start[0] + 20, start[1] + BOX_HEIGHT / 2
    dx, dy = x2 - x1, y2 - y1
    bend_x, bend_y = (x1 + x2) / 2 - dy * 0.18, (y1 + y2) / 2 + dx * 0.18
    if start == end:
        bend_y = y1 + 50
    middle = (x1 + 2 * bend_x + x2) / 4, (y1 + 2 * bend_y + y2) / 4
    width = 1.5 + min(6.0, math.log10(1 + flow.messages))
    path = f"M{x1:.1f} {y1:.1f}Q{bend_x:.1f} {bend_y:.1f} {x2:.1f} {y2:.1f}"
    text = f"{flow.messages:,}"
    return Edge(flow, path, round(middle[0], 1), round(middle[1], 1), round(width, 1), text)


def _border(box: tuple[float, float], towards: tuple[float, float]) -> tuple[float, float]:
    """Return the point at which the way from the middle of a box leaves it."""
    dx, dy = towards[0] - box[0], towards[1] - box[1]
    if not dx and not dy:
        return box
    part = min(
        (BOX_WIDTH / 2 + 4) / abs(dx) if dx else math.inf,
        (BOX_HEIGHT / 2 + 4) / abs(dy) if dy else math.inf,
    )
    return box[0] + dx * min(part, 1.0), box[1] + dy * min(part, 1.0)


def sparkline(values: list[int], width: int = 120, height: int = 24) -> str:
    """Return the points of a line through the values, for an SVG polyline."""
    if len(values) < 2:
        values = [*values, *values] or [0, 0]
    low, high = min(values), max(values)
    span = (high - low) or 1
    step = width / (len(values) - 1)
    return " ".join(
        f"{at * step:.1f},{height - 2 - (value - low) / span * (height - 4):.1f}"
        for at, value in enumerate(values)
    )
