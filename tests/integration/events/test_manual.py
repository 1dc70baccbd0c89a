"""docs/events.md: it has all fields and all kinds of events."""

from __future__ import annotations

import re
from pathlib import Path

from qmd.cli.event_files import FIELDS
from qmd.control_protocol.messages import RECOVERABLE
from qmd.events.header import Kind
from qmd.history.event_query import flat
from storage.tables import event_search
from storage.tables.events import SCHEMA
from tests.integration.managers import Hosts, hosted

MANUAL = (Path(__file__).resolve().parents[3] / "docs" / "events.md").read_text()
TYPES = {"timestamp": "timestamp[ms, UTC]", "decimal": "decimal(20, 0)"}


def rows(heading: str) -> list[list[str]]:
    """Return the rows of the table below a heading, without the header row."""
    part = MANUAL.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_manual_has_every_field_with_its_types() -> None:
    reported = [(row[0].strip("`"), row[2], "`null`" in row[1]) for row in rows("One event")]

    assert reported == [(name, TYPES.get(kind, kind), nullable) for name, kind, nullable in FIELDS]
    assert f"**Version {SCHEMA}**" in MANUAL


def test_the_manual_has_every_kind() -> None:
    reported = [kind for row in rows("Kinds") for kind in re.findall("`([a-z_]+)`", row[0])]

    assert sorted(reported) == sorted(kind.value for kind in Kind)


@hosted
async def test_an_event_has_exactly_these_fields(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", b"x", delivery=RECOVERABLE)
    await a.settled()

    page = await a.storage.read(
        lambda db: event_search.last(db, events_max=1, blocks_max=10, is_wanted=lambda _: True)
    )

    assert list(flat(a.services, page.found[0])) == [name for name, _, _ in FIELDS]
