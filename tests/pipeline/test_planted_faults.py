"""Faults that are planted by hand into the logs of real daemons: each is found, and no other."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra qmd-msmq[spark] is not installed")
pytest.importorskip("duckdb", reason="the extra qmd-msmq[spark] is not installed")

import pyarrow as pa
from pyarrow import parquet

from pipeline.engines.local import LocalEngine
from pipeline.events import find_files
from pipeline.jobs.audit import presence
from pipeline.jobs.audit.findings import ABOUT_HOSTS, AuditResult, AuditSettings
from pipeline.jobs.audit.job import audit
from pipeline.jobs.audit.state import State
from tests.pipeline.test_presence import Pair

SOAK = bool(os.environ.get("QMD_SOAK"))  # `make soak-pipeline`
HOUR_MS = 3_600_000

pytestmark = [pytest.mark.process, pytest.mark.timeout(1800)]

Row = dict[str, Any]
#: A kind of event that says nothing about the way of a message.
NEUTRAL = "reported"


@dataclass
class Lake:
    """The files of a lake, as rows; `orders` and `plain` are the ids of the messages."""

    folder: Path
    orders: list[str] = field(default_factory=list)
    plain: list[str] = field(default_factory=list)

    def files(self, part: str = "events") -> list[Path]:
        return sorted(self.folder.glob(f"{part}/day=*/host=*/*.parquet"))

    def of(self, host: str, part: str = "events") -> Path:
        """Return the file of a host: `sender` or `receiver`."""
        for path in self.files(part):
            rows = parquet.read_table(path).to_pylist()
            kinds = {row.get("kind") for row in rows} | {row.get("table") for row in rows}
            if (host == "receiver") == bool(kinds & {"accepted", "message"}):
                return path
        raise AssertionError(host)

    def change(
        self, host: str, change: Callable[[list[Row]], list[Row] | None], part: str = "events"
    ) -> None:
        path = self.of(host, part)
        table = parquet.read_table(path)
        rows = table.to_pylist()
        changed = change(rows)
        rows = rows if changed is None else changed
        parquet.write_table(pa.Table.from_pylist(rows, table.schema), path)

    def each(self, host: str, kind: str, ids: list[str], /, **values: Any) -> None:
        """Change the rows of these messages and this kind."""

        def change(rows: list[Row]) -> None:
            some = [row for row in rows if row["kind"] == kind and row["message_id"] in ids]
            assert len(some) == len(ids), (kind, ids)
            for row in some:
                row.update({n: v(row) if callable(v) else v for n, v in values.items()})

        self.change(host, change)

    def add(self, host: str, kind: str, message: str, /, **values: Any) -> None:
        """Add a copy of a row as the last block."""

        def change(rows: list[Row]) -> list[Row]:
            [row] = [
                each for each in rows if each["kind"] == kind and each["message_id"] == message
            ]
            block = max(each["block"] for each in rows) + 1
            last = max(each["at_ms"] for each in rows)
            return [*rows, row | {"block": block, "index": 0, "cursor": f"{block}.0", "at_ms": last}
                    | values]  # fmt: skip

        self.change(host, change)

    def audit(self, engine: Any) -> AuditResult:
        inputs = [str(self.folder)]
        found = presence.find(inputs)
        settings = AuditSettings(tasks=2)
        return audit(engine, find_files(inputs), State(), settings, inventories=found)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Return what two daemons have shipped: 12 orders and 8 plain messages, some received."""
    folder = tmp_path_factory.mktemp("planted")
    pair = Pair(folder)
    try:
        orders, plain = pair.send("orders", 12), pair.send("plain", 8)
        pair.receive("orders", 5)
        pair.receive("plain", 3)
        time.sleep(1.0)  # the logs are complete until a moment that is clearly later
        pair.ship()
    finally:
        pair.close()
    return Lake(pair.lake, orders, plain)


Fault = Callable[[Lake], set[tuple[str, str | None]]]


def stored_never(lake: Lake) -> set[tuple[str, str | None]]:
    lake.each("receiver", "accepted", [lake.orders[7]], kind=NEUTRAL)
    return {("acked_not_stored", lake.orders[7])}


def last_stored_never(lake: Lake) -> set[tuple[str, str | None]]:
    """The logs of both hosts end within milliseconds of the loss."""
    lake.each("receiver", "accepted", [lake.orders[-1]], kind=NEUTRAL)
    return {("acked_not_stored", lake.orders[-1])}


def plain_stored_never(lake: Lake) -> set[tuple[str, str | None]]:
    lake.each("receiver", "accepted", [lake.plain[-1]], kind=NEUTRAL)
    return {("acked_not_stored", lake.plain[-1])}


def passed_over(lake: Lake) -> set[tuple[str, str | None]]:
    """Neither stored nor acknowledged, and the stream goes on."""
    lake.each("receiver", "accepted", [lake.orders[6]], kind=NEUTRAL)
    lake.each("sender", "order_acknowledged", [lake.orders[6]], kind=NEUTRAL)
    return {("lost", lake.orders[6])}


def stored_twice(lake: Lake) -> set[tuple[str, str | None]]:
    lake.add("receiver", "accepted", lake.orders[9], lookup_id=free_place(lake))
    return {("duplicated", lake.orders[9])}


def free_place(lake: Lake) -> int:
    rows = parquet.read_table(lake.of("receiver")).to_pylist()
    arrivals = (1 << 44) - 1
    lookup_ids = [row["lookup_id"] or 0 for row in rows]
    return max(lookup_ids) & ~arrivals | max(each & arrivals for each in lookup_ids) + 1


def plain_stored_twice(lake: Lake) -> set[tuple[str, str | None]]:
    lake.add("receiver", "accepted", lake.plain[5], lookup_id=free_place(lake))
    return {("duplicated", lake.plain[5])}


def received_twice(lake: Lake) -> set[tuple[str, str | None]]:
    lake.add("receiver", "received", lake.orders[2])
    return {("ended_twice", lake.orders[2])}


def received_without_arrival(lake: Lake) -> set[tuple[str, str | None]]:
    lake.add("receiver", "received", lake.orders[2], message_id=lake.orders[2][:-1] + "99",
             lookup_id=free_place(lake))  # fmt: skip
    return {("received_unstored", lake.orders[2][:-1] + "99")}


def another_size(lake: Lake) -> set[tuple[str, str | None]]:
    lake.each("receiver", "accepted", [lake.orders[3]], bytes=lambda row: row["bytes"] + 4)
    return {("other_size", lake.orders[3])}


def another_queue(lake: Lake) -> set[tuple[str, str | None]]:
    lake.each("receiver", "accepted", [lake.plain[6]], queue="private$\\orders")
    return {("other_queue", lake.plain[6])}


def another_number(lake: Lake) -> set[tuple[str, str | None]]:
    lake.each("receiver", "accepted", [lake.orders[10]],
              sequence_number=lambda row: row["sequence_number"] + 50)  # fmt: skip
    return {("wrong_number", lake.orders[10])}


def overtaken(lake: Lake) -> set[tuple[str, str | None]]:
    one, two = lake.orders[7], lake.orders[8]

    def swap(rows: list[Row]) -> None:
        places = {r["message_id"]: r["lookup_id"] for r in rows if r["kind"] == "accepted"}
        for row in rows:
            if row["message_id"] in (one, two) and row["lookup_id"] is not None:
                row["lookup_id"] = places[two if row["message_id"] == one else one]

    lake.change("receiver", swap)
    return {("reordered", one)}


def sent_never(lake: Lake) -> set[tuple[str, str | None]]:
    lake.each("sender", "sent", [lake.plain[4]], kind=NEUTRAL)
    return {("never_sent", lake.plain[4])}


def order_sent_never(lake: Lake) -> set[tuple[str, str | None]]:
    lake.each("sender", "sent", [lake.orders[5]], kind=NEUTRAL)
    return {("never_sent", lake.orders[5])}


def number_given_twice(lake: Lake) -> set[tuple[str, str | None]]:
    def change(rows: list[Row]) -> None:
        numbers = {r["message_id"]: r["sequence_number"] for r in rows if r["kind"] == "sent"}
        for row in rows:
            if row["message_id"] == lake.orders[4] and row["kind"] == "sent":
                row["sequence_number"] = numbers[lake.orders[3]]

    lake.change("sender", change)
    return {("number_reused", lake.orders[4]), ("wrong_number", lake.orders[4])}


def dead_and_delivered(lake: Lake) -> set[tuple[str, str | None]]:
    lake.add("sender", "sent", lake.plain[2], kind="expired")
    return {("delivered_and_dead", lake.plain[2])}


def imported_twice(lake: Lake) -> set[tuple[str, str | None]]:
    for _ in range(2):
        lake.add("receiver", "accepted", lake.plain[7], kind="imported",
                 lookup_id=free_place(lake))  # fmt: skip
    return {("imported_twice", lake.plain[7])}


def row_deleted(lake: Lake) -> set[tuple[str, str | None]]:
    gone = int(lake.orders[8].rpartition("\\")[2])

    def change(rows: list[Row]) -> list[Row]:
        kept: list[Row] = []
        for row in rows:
            if row["first"] is not None and row["first"] <= gone <= row["last"]:
                kept += [row | {"last": gone - 1}] if row["first"] < gone else []
                kept += [row | {"first": gone + 1}] if row["last"] > gone else []
            else:
                kept.append(row)
        return kept

    lake.change("receiver", change, "inventory")
    return {("vanished", lake.orders[8])}


def row_missed(lake: Lake) -> set[tuple[str, str | None]]:
    """The queue manager itself has noticed it, and there is no inventory."""
    lake.of("receiver", "inventory").unlink()
    return row_noticed(lake)


def row_noticed(lake: Lake) -> set[tuple[str, str | None]]:
    lake.add("receiver", "accepted", lake.orders[8], kind="vanished")
    return {("vanished", lake.orders[8])}


def row_missed_twice(lake: Lake) -> set[tuple[str, str | None]]:
    """The queue manager has noticed it, and the inventory shows it too."""
    row_noticed(lake)
    return row_deleted(lake)


def row_on_its_way_missed(lake: Lake) -> set[tuple[str, str | None]]:
    """It vanished from the outgoing queue of its sender before it was transmitted."""
    last = lake.plain[-1]
    lake.of("sender", "inventory").unlink()
    lake.add("sender", "sent", last, kind="vanished")
    lake.change("receiver", lambda rows: [
        row | {"kind": NEUTRAL, "message_id": None} if row["message_id"] == last else row
        for row in rows
    ])  # fmt: skip
    lake.change("sender", lambda rows: [
        row | {"kind": NEUTRAL} if row["message_id"] == last and row["kind"] not in
        ("sent", "vanished") else row for row in rows
    ])  # fmt: skip
    return {("vanished", last)}


def row_passed_over_missed(lake: Lake) -> set[tuple[str, str | None]]:
    """It vanished from the outgoing queue of its sender, and the stream goes on."""
    passed_over(lake)
    lake.add("sender", "sent", lake.orders[6], kind="vanished")
    return {("vanished", lake.orders[6])}


def received_and_missed(lake: Lake) -> set[tuple[str, str | None]]:
    """An application received it nevertheless: it is not lost."""
    lake.add("receiver", "received", lake.orders[2], kind="vanished")
    return set()


def copy_missed(lake: Lake) -> set[tuple[str, str | None]]:
    lake.add("receiver", "received", lake.orders[2], kind="vanished",
             queue="private$\\orders;journal")  # fmt: skip
    return {("vanished", lake.orders[2])}


def clock_jumps(lake: Lake) -> set[tuple[str, str | None]]:
    """The clock of the receiver is an hour ahead from the middle on."""

    def change(rows: list[Row]) -> None:
        for row in rows[len(rows) // 3 :]:
            row["at_ms"] += HOUR_MS

    lake.change("receiver", change)
    return {("clock", None)}


def log_cut(lake: Lake) -> set[tuple[str, str | None]]:
    lake.change("receiver", lambda rows: [r for r in rows if r["block"] < middle(rows)])
    return {("late_log", None)}


def middle(rows: list[Row]) -> int:
    blocks = sorted({row["block"] for row in rows})
    return int(blocks[len(blocks) // 2])


def log_without_middle(lake: Lake) -> set[tuple[str, str | None]]:
    lake.change("receiver", lambda rows: [r for r in rows if r["block"] != middle(rows)])
    return {("log_hole", None)}


def log_missing(lake: Lake) -> set[tuple[str, str | None]]:
    lake.of("receiver").unlink()
    return {("no_log", None)}


def log_copied(lake: Lake) -> set[tuple[str, str | None]]:
    for path in lake.files():
        shutil.copy(path, path.with_name(f"copy-of-{path.name}"))
    return set()


def file_cut(lake: Lake) -> set[tuple[str, str | None]]:
    path = lake.of("receiver")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return {("broken_file", None), ("no_log", None)}


def nothing(lake: Lake) -> set[tuple[str, str | None]]:
    return set()


FAULTS: list[Fault] = [
    *(nothing, stored_never, last_stored_never, plain_stored_never, passed_over, stored_twice),
    *(plain_stored_twice, received_twice, received_without_arrival, another_size, another_queue),
    *(another_number, overtaken, sent_never, order_sent_never, number_given_twice),
    *(dead_and_delivered, imported_twice, row_deleted, row_missed, row_noticed, row_missed_twice),
    *(row_on_its_way_missed, row_passed_over_missed, received_and_missed, copy_missed),
    *(clock_jumps, log_cut, log_without_middle),
    *(log_missing, log_copied, file_cut),
]


def found(result: AuditResult) -> set[tuple[str, str | None]]:
    return {
        (kind, None if kind in ABOUT_HOSTS else message)
        for kind, message in zip(result.findings.kind, result.findings.message_id, strict=True)
    }


def planted(original: Lake, folder: Path, fault: Fault) -> tuple[Lake, set[Any]]:
    shutil.copytree(original.folder, folder)
    lake = Lake(folder, original.orders, original.plain)
    return lake, fault(lake)


@pytest.fixture(scope="module")
def embedded() -> Iterator[LocalEngine]:
    with LocalEngine(threads=1) as engine:
        yield engine


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_and_nobody_else_is_accused(
    original: Lake, embedded: LocalEngine, tmp_path: Path, fault: Fault
) -> None:
    lake, wanted = planted(original, tmp_path / "lake", fault)

    result = lake.audit(embedded)

    assert found(result) == wanted, result.findings.to_string()
    assert not result.findings.duplicated(["kind", "host", "message_id"]).any()


#: Faults of different messages, which one log may have together.
TOGETHER = [stored_never, stored_twice, plain_stored_twice, received_twice, another_size,
            another_queue, imported_twice]  # fmt: skip


def test_spark_finds_the_same(original: Lake, spark: Any, tmp_path: Path) -> None:
    lake, wanted = planted(original, tmp_path / "lake", nothing)
    for fault in TOGETHER:
        wanted |= fault(lake)

    assert found(lake.audit(spark)) == wanted


@pytest.mark.skipif(not SOAK, reason="takes minutes: make soak-pipeline")
@pytest.mark.parametrize("fault", FAULTS)
def test_spark_finds_each(original: Lake, spark: Any, tmp_path: Path, fault: Fault) -> None:
    lake, wanted = planted(original, tmp_path / "lake", fault)

    assert found(lake.audit(spark)) == wanted
