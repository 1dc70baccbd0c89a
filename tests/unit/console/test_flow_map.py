"""The flow map: flows, their states and their places."""

import math

from qmd.client import NotConnected
from qmd.console.fleet import Figures
from qmd.console.flow_map import BOX_HEIGHT, HEIGHT, NODES_MAX, WIDTH, draw, flows, sparkline


def outgoing(address: str, messages: int, state: str = "waiting", **more: object) -> dict:
    return {
        "destination": f"DIRECT=OS:{address}\\private$\\q",
        "address": address,
        "messages": messages,
        "bytes": 10 * messages,
        "state": state,
        "in_doubt": False,
        "explanation": "x",
    } | more


def host(name: str, *rows: dict) -> Figures:
    figures = Figures()
    figures.status = {"name": name, "listen": ["10.0.0.1:1801"] if name == "hostb" else []}
    figures.outgoing = list(rows)
    return figures


def test_queues_of_one_address_are_one_flow():
    found = flows({"a": host("a", outgoing("b", 3), outgoing("b", 4, "connected"))})

    assert [(each.source, each.target, each.messages, each.bytes) for each in found] == [
        ("a", "b", 7, 70)
    ]


def test_a_flow_ends_at_the_host_that_has_the_name_or_the_address():
    figures = {
        "a": host("a", outgoing("HOSTB", 1), outgoing("10.0.0.1:1801", 2)),
        "east": host("hostb"),
    }

    (found,) = flows(figures)

    assert (found.target, found.is_known, found.messages) == ("east", True, 3)


def test_states():
    rows = [
        outgoing("idle", 0, "inactive"),
        outgoing("moving", 5, "connected"),
        outgoing("stuck", 5, "waiting"),
        outgoing("paused", 5, "paused"),
        outgoing("doubt", 5, "connected", in_doubt=True),
    ]

    found = {each.target: each.state for each in flows({"a": host("a", *rows)})}

    assert found == {
        "idle": "ok", "moving": "waiting", "stuck": "stuck", "paused": "stuck", "doubt": "stuck",
    }  # fmt: skip


def test_the_map_has_a_place_for_each_host_within_its_box():
    figures = {f"host{n}": host(f"host{n}", outgoing(f"host{n + 1}", n)) for n in range(100)}
    figures["down"] = NotConnected("no")

    drawn = draw(figures, flows(figures))

    assert len(drawn.nodes) == NODES_MAX
    assert drawn.left_out == 102 - NODES_MAX
    assert all(0 <= node.x <= WIDTH for node in drawn.nodes)
    assert all(BOX_HEIGHT / 2 <= node.y <= HEIGHT - BOX_HEIGHT / 2 for node in drawn.nodes)


def test_a_host_that_sends_to_itself_can_be_drawn():
    figures = {"a": host("a", outgoing("a", 1))}

    (edge,) = draw(figures, flows(figures)).edges

    assert math.isfinite(edge.x)


def test_sparklines():
    assert sparkline([]).count(",") == 2
    assert sparkline([1, 5, 3], 100, 20).split()[1] == "50.0,2.0"
