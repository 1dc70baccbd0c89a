"""Parts of the logs of a fleet, as they exist when some files are late, lost or not yet shipped."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter, defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from pipeline.events import find_files
from qmd.cli.event_files import arrow_schema

Key = tuple[str, str, int, int]

# Later files may change a finding: a message lost so far may arrive, and a message that arrived
# once may arrive again.
_BECOMES = {
    "lost": ("reordered", "duplicated", "acked_not_stored"),
    "reordered": ("duplicated",),
    "wrong_number": ("duplicated",),
}
_DAY_MS = 86_400_000


def logs_of(folder: Path) -> dict[str, Any]:
    """Return the complete log of each queue manager, from the files of a fleet."""
    logs = defaultdict(list)
    for file in find_files([str(folder)]):
        table = _table_of(file.path)
        for guid in pc.unique(table["queue_manager"]).to_pylist():
            logs[guid].append(table.filter(pc.equal(table["queue_manager"], guid)))
    return {guid: pa.concat_tables(parts) for guid, parts in logs.items()}


def _table_of(path: str) -> Any:
    if not path.endswith(".ndjson"):
        return parquet.ParquetFile(path).read().select(arrow_schema().names)
    rows = [json.loads(line) for line in Path(path).read_text().splitlines()]
    for row in rows:
        if row["sequence_id"] is not None:
            row["sequence_id"] = Decimal(row["sequence_id"])
    return pa.Table.from_pylist(rows, schema=arrow_schema())


def write_a_part(chance: random.Random, logs: dict[str, Any], folder: Path) -> set[str]:
    """Write all, none or a part of each log.  Return the names of the hosts with complete logs."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    whole = set()
    for guid, log in logs.items():
        what = chance.choice(("all",) * len(_WHAT) + _WHAT)
        some = log.filter(pa.array(_kept(chance, what, log)))
        if len(some):
            parquet.write_table(some, folder / f"{guid}.parquet")
        if len(some) == len(log):
            whole |= set(pc.unique(log["host"]).to_pylist())
    return whole


def keep_a_part(chance: random.Random, path: Path) -> None:
    """Replace the log in a file by all, none or a part of it."""
    log = parquet.read_table(path)
    some = log.filter(pa.array(_kept(chance, chance.choice(("all", "all", *_WHAT)), log)))
    path.unlink()
    if len(some):
        parquet.write_table(some, path)


_WHAT = ("nothing", "beginning", "beginning", "end", "without", "without", "here and there", "days")


def _kept(chance: random.Random, what: str, log: Any) -> Any:
    """Return the selected events: complete blocks, as daemons ship them."""
    block = log["block"].to_numpy()
    first, last = int(block.min()), int(block.max())
    count = last - first + 1
    if what == "all":
        return np.ones(len(block), bool)
    if what == "nothing":
        return np.zeros(len(block), bool)
    begin = first + count * chance.random()
    if what == "beginning":
        return block < begin
    if what == "end":
        return block > begin
    if what == "without":
        end = begin + count * chance.random() * chance.choice([0.01, 0.05, 0.3])
        return (block < begin) | (block > end)
    if what == "here and there":
        size = max(int(count * chance.choice([0.02, 0.1, 0.25])), 1)
        here = [n for n in range(count // size + 1) if chance.random() < 0.5]
        return np.isin((block - first) // size, here)
    day = log["at_ms"].to_numpy() // _DAY_MS
    return ~np.isin(block, block[day == chance.choice(np.unique(day).tolist())])


def accused_falsely(found: Counter[Key], true: Counter[Key]) -> list[Key]:
    """Return the findings that are neither true of the complete fleet nor can become true."""
    return [
        finding
        for finding in found - true
        if not any((kind, *finding[1:]) in true for kind in _BECOMES.get(finding[0], ()))
    ]
