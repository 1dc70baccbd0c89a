"""qmd name explain: the meaning of each spelling of a name."""

import json

import pytest


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        (
            "orders@10.0.0.5:1802",
            {
                "format_name": r"DIRECT=TCP:10.0.0.5:1802\private$\orders",
                "kind": "direct",
                "transport": "tcp",
                "host": "10.0.0.5",
                "port": 1802,
                "private": True,
                "in_packets": r"TCP:10.0.0.5\private$\orders",
            },
        ),
        (r".\system$;deadxact", {"system": True, "queue": None, "part": "deadxact"}),
        ("orders", {"host": "hosta", "queue": "orders"}),
        (
            "PRIVATE=01020304-0506-0708-090a-0b0c0d0e0f10\\c",
            {
                "kind": "private",
                "queue_manager": "01020304-0506-0708-090a-0b0c0d0e0f10",
                "number": 12,
            },
        ),
        ("PUBLIC=01020304-0506-0708-090a-0b0c0d0e0f10", {"kind": "public"}),
        ("MACHINE=01020304-0506-0708-090a-0b0c0d0e0f10;DEADXACT", {"kind": "machine"}),
        ("CONNECTOR=01020304-0506-0708-090a-0b0c0d0e0f10", {"kind": "connector"}),
        ("DL=01020304-0506-0708-090a-0b0c0d0e0f10@example.org", {"domain": "example.org"}),
        ("MULTICAST=224.0.0.1:8001", {"kind": "multicast", "port": 8001}),
    ],
)
def test_a_spelling_is_explained(qmd, text, facts):
    explained = json.loads(qmd("name", "explain", text, "--json").output)

    assert explained == {**explained, **facts}


def test_several_destinations_are_explained_one_by_one(qmd):
    explained = json.loads(qmd("name", "explain", "a@hosta,b@hostb", "--json").output)

    assert explained["kind"] == "several"
    assert [each["host"] for each in explained["elements"]] == ["hosta", "hostb"]
