"""The file of definitions: read strictly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qmd.migration.collection import parse_collection, read_collection
from qmd.migration.errors import BadSource
from tests.windows_files import collection, queue

DATA = Path(__file__).parents[2] / "data" / "windows"


def test_the_example_is_read():
    found = read_collection(DATA / "hosta.json")

    assert [each.name for each in found.queues] == [
        "private$\\orders",
        "private$\\replies",
        "prices",
    ]
    assert (
        found.queues[0].accounts["S-1-5-21-1004336348-1177238915-682003330-1104"] == "CONTOSO\\ann"
    )
    assert found.triggers[0].below[0].values == {"Rule0": "{77c0a9a5-7f0e-4d0e-a2ee-27c6e8a5f4b1}"}
    assert found.lists[0].members[0].path == "HOSTA\\prices"


def test_long_values_of_the_registry_and_names_that_only_resemble_each_other_are_read():
    facts = {"parameters": {"Security": "01-00-" * 10_000}}
    queues = [queue("straße"), queue("strasse")]
    given = collection(*queues, queue_manager=facts)

    found = parse_collection(json.dumps(given).encode())

    assert [each.name for each in found.queues] == [each["name"] for each in queues]
    assert found.queue_manager.parameters == facts["parameters"]


def test_a_byte_order_mark_is_allowed():
    assert parse_collection(b"\xef\xbb\xbf" + json.dumps(collection()).encode()).computer == "HOSTA"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"qmd_windows_collection": 2}, "version 2"),
        ({"computer": ""}, "computer"),
        ({"novelty": 1}, "novelty"),
        ({"queues": [queue("a"), queue("A")]}, "twice"),
        ({"queues": [queue("a", security_base64="?")]}, "base64"),
        ({"queues": [queue("a", quota_kb=-1)]}, "quota_kb"),
        ({"queues": [queue("a", privacy="high")]}, "privacy"),
        ({"queues": [queue("a", colour="red")]}, "colour"),
    ],
)
def test_other_files_are_refused(changes, reason):
    with pytest.raises(BadSource, match=reason):
        parse_collection(json.dumps(collection(**changes)).encode())


@pytest.mark.parametrize("content", [b"", b"[", b"[" * 100_000, b"\xff", b"{}"])
def test_broken_files_are_refused(content):
    with pytest.raises(BadSource):
        parse_collection(content)
