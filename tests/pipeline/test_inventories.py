"""Where an audit finds the inventories of a lake, and what a damaged one does to it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the extra qmd-msmq[spark] is not installed")
pytest.importorskip("duckdb", reason="the extra qmd-msmq[spark] is not installed")

import pyarrow as pa
from pyarrow import parquet

from pipeline.engines.local import LocalEngine
from pipeline.events import find_files
from pipeline.jobs.audit import presence
from pipeline.jobs.audit.findings import AuditResult
from pipeline.jobs.audit.job import audit
from pipeline.jobs.audit.state import State
from tests.pipeline.test_presence import Pair, found

pytestmark = [pytest.mark.process, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Return the lake of two daemons, and the messages that an inventory should name."""
    pair = Pair(tmp_path_factory.mktemp("inventories"))
    try:
        orders = pair.send("orders", 6)
        pair.receive("orders", 2)
        time.sleep(1.0)  # the logs are complete until a moment that is clearly later
        pair.ship()
    finally:
        pair.close()
    return pair.lake, orders[2:]


def audited(*inputs: Path) -> AuditResult:
    places = [str(each) for each in inputs]
    with LocalEngine(threads=1) as engine:
        return audit(engine, find_files(places), State(), inventories=presence.find(places))


def inventory_of_receiver(lake: Path) -> Path:
    for path in lake.glob("**/inventory/day=*/host=*/*.parquet"):
        if "message" in parquet.read_table(path)["table"].to_pylist():
            return path
    raise AssertionError(lake)


def forget_messages(lake: Path) -> None:
    """Let the inventory of the receiver name no message of a queue."""
    path = inventory_of_receiver(lake)
    table = parquet.read_table(path)
    rows = table.to_pylist()
    empty = rows[0] | dict.fromkeys(("table", "queue", "source", "first", "last"))
    parquet.write_table(pa.Table.from_pylist([empty], schema=table.schema), path)


INPUTS: dict[str, Callable[[Path], list[Path]]] = {
    "the lake": lambda lake: [lake],
    "the events of the lake": lambda lake: [lake / "events"],
    "a folder with several lakes": lambda lake: [lake.parent.parent],
}


@pytest.mark.parametrize("inputs", INPUTS.values(), ids=INPUTS)
def test_vanished_messages_are_found_wherever_the_lake_lies_below_the_input(
    tmp_path: Path, shipped: tuple[Path, list[str]], inputs: Callable[[Path], list[Path]]
) -> None:
    lake = tmp_path / "lakes" / "first" / "qmd"
    shutil.copytree(shipped[0], lake)
    (lake / "journal/day=2026-11-21/host=hosta").mkdir(parents=True)
    (lake / "journal/day=2026-11-21/host=hosta/orders-1-2.parquet").write_bytes(b"no log")
    forget_messages(lake)
    assert found(audited(*inputs(lake))) == {("vanished", each) for each in shipped[1]}


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:200]),
    "empty": lambda path: path.write_bytes(b""),
    "other columns": lambda path: parquet.write_table(pa.table({"host": ["hosta"]}), path),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_inventory_is_named(
    tmp_path: Path, shipped: tuple[Path, list[str]], damage: Callable[[Path], object]
) -> None:
    lake = tmp_path / "lake"
    shutil.copytree(shipped[0], lake)
    path = inventory_of_receiver(lake)
    damage(path)
    result = audited(lake)
    [finding] = result.findings.to_dict("records")
    assert finding["kind"] == "broken_file"
    assert str(path) in finding["detail"]
    assert result.files == 2
