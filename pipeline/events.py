"""Event logs as files: which there are, and how they are cut into pieces of work.

Input is what `qmd events export` and `qmd ship` write: Parquet or NDJSON, in any folders, one host
or many in a file.  Names that begin with `_` or `.` are of no log.  docs/events.md has the columns;
files of an older version may lack the newer ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

SPLIT_BYTES = 64 * 1024 * 1024  # a larger file is read by several tasks
UNIT_ROWS = 500_000  # are looked at together
VERSION = 1  # of the schema: a newer one may mean something else by the same words

#: What the columns of an older or a smaller log are taken for.
_OPTIONAL = {"label": "", "correlation_id": "", "transaction": "", "reason": "", "to_queue": ""}


class Unreadable(Exception):
    """A file that is broken, or has no events in it; `why` is what the library says."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path, self.why = path, why


class NoEvents(Exception):
    """There is no log to read; says where none was found."""


@dataclass(frozen=True, slots=True, order=True)
class LogFile:
    """A file as it was found: a changed one counts as another."""

    path: str
    size: int
    stamp: str  # when it was written, or what the store calls its version

    @property
    def key(self) -> str:
        return f"{self.path}|{self.size}|{self.stamp}"


def find_files(inputs: Sequence[str]) -> list[LogFile]:
    """All files of events below `inputs`: folders or files, local or of any store fsspec knows.

    Raises NoEvents.
    """
    import fsspec

    found: set[LogFile] = set()
    for each in inputs:
        fs, root = fsspec.core.url_to_fs(each)
        is_local = "file" in (fs.protocol if isinstance(fs.protocol, tuple) else (fs.protocol,))
        if not fs.exists(root):
            raise NoEvents(f"{each} does not exist")
        listed = fs.find(root, detail=True) if fs.isdir(root) else {root: fs.info(root)}
        for path, info in listed.items():
            below = path[len(root) :].strip("/") or path.rsplit("/", 1)[-1]
            if any(part.startswith(("_", ".")) for part in below.split("/")):
                continue
            if below.startswith("journal/"):
                continue  # beside the events, where `qmd ship` puts both
            if not path.endswith((".parquet", ".ndjson", ".jsonl", ".json")):
                continue
            stamp = info.get("mtime") or info.get("ETag") or info.get("LastModified") or ""
            found.add(
                LogFile(path if is_local else fs.unstrip_protocol(path), info["size"], str(stamp))
            )
    if not found:
        raise NoEvents(f"no .parquet and no .ndjson file is below {', '.join(inputs)}")
    return sorted(found)


def pieces(files: Iterable[LogFile], tasks: int) -> list[list[tuple[str, int, int]]]:
    """(path, first row group, behind the last) for each task, about the same work for each.

    -1 is the end of the file, whatever it has.  Neighbours stay together, and in order.
    """
    cut: list[tuple[int, tuple[str, int, int]]] = []
    for file in files:
        if file.size > SPLIT_BYTES and file.path.endswith(".parquet"):
            try:
                with open_parquet(file.path) as parquet:
                    groups = parquet.metadata.num_row_groups
            except (OSError, ValueError):
                groups = 1  # it is broken: who reads it says how
            parts = max(min(groups, -(-file.size // SPLIT_BYTES)), 1)
            bounds = [groups * part // parts for part in range(parts + 1)]
            cut += [
                (file.size // parts, (file.path, first, last)) for first, last in pairwise(bounds)
            ]
        else:
            cut.append((file.size, (file.path, 0, -1)))
    total = sum(size for size, _ in cut)
    found: list[list[tuple[str, int, int]]] = [[] for _ in range(min(tasks, len(cut)))]
    reached = 0
    for size, piece in cut:
        found[min(len(found) - 1, reached * len(found) // max(total, 1))].append(piece)
        reached += size
    return [each for each in found if each]


#: Of a table with the probing columns: which rows are wanted (numpy, bool).
Choice = Callable[[Any], Any]


def read_piece(
    piece: tuple[str, int, int],
    columns: Sequence[str],
    probe: Sequence[str] = (),
    choose: Choice | None = None,
) -> Iterator[Any]:
    """Arrow tables of at most some `UNIT_ROWS` rows, in the order of the file.

    Texts that repeat are dictionaries.  A column that the file lacks is null.  With `choose` only
    the rows that it wants: it sees the columns `probe`, and the others are read where it wants any.

    Raises Unreadable for what is no whole file of events.
    """
    path, first, last = piece
    try:
        if path.endswith(".parquet"):
            yield from _read_parquet(path, first, last, columns, probe, choose)
        else:
            for table in _read_ndjson(path, columns):
                yield table if choose is None else table.filter(choose(table))
    except FileNotFoundError:
        raise  # it was there when the files were listed: this run is of no use
    except _BROKEN as error:
        raise Unreadable(path, _first_line(error)) from error


def check(path: str, *, whole: bool = False) -> None:
    """Raises Unreadable for what is no file of events.

    Of a Parquet file its end is read, which a cut one has not; with `whole` all of it.  Lines are
    always read.
    """
    try:
        if not path.endswith(".parquet"):
            for _ in _read_ndjson(path, _NEEDED):
                pass
            return
        with open_parquet(path) as file:
            _check_columns(file)
            if whole:
                for group in range(file.metadata.num_row_groups):
                    file.read_row_group(group, use_threads=False)
    except FileNotFoundError:
        raise
    except _BROKEN as error:
        raise Unreadable(path, _first_line(error)) from error


# pyarrow's own errors are ValueErrors and OSErrors.
_BROKEN = (OSError, ValueError, TypeError, ArithmeticError)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else repr(error)


#: What every log has, however old.
_NEEDED = ("host", "queue_manager", "block", "index", "at_ms", "kind", "message_id", "queue")
_REPEATED = ("host", "queue_manager", "kind", "queue", "peer", "class", "delivery", "reason",
             "to_queue", "label")  # fmt: skip


def open_parquet(path: str, **options: Any) -> Any:
    from pyarrow import parquet

    if "://" not in path:
        return parquet.ParquetFile(path, **options)
    import fsspec

    return parquet.ParquetFile(fsspec.open(path).open(), **options)


def _read_parquet(
    path: str,
    first: int,
    last: int,
    columns: Sequence[str],
    probe: Sequence[str],
    choose: Choice | None,
) -> Iterator[Any]:
    import pyarrow as pa

    repeated = [name for name in columns if name in _REPEATED]
    try:
        opened = open_parquet(path, read_dictionary=repeated)
    except KeyError:  # one of them is not there
        with open_parquet(path) as file:
            repeated = [name for name in repeated if name in file.schema_arrow.names]
        opened = open_parquet(path, read_dictionary=repeated)
    with opened as file:
        _check_columns(file)
        there = set(file.schema_arrow.names)
        wanted = [name for name in columns if name in there]
        rest = [name for name in wanted if name not in probe]
        end = file.metadata.num_row_groups if last < 0 else last
        held: list[Any] = []
        rows = 0
        for group in range(first, end):
            if choose is None:
                table = file.read_row_group(group, columns=wanted, use_threads=False)
            else:
                table = file.read_row_group(group, columns=list(probe), use_threads=False)
                chosen = choose(table)
                if not chosen.any():
                    continue
                others = file.read_row_group(group, columns=rest, use_threads=False)
                for name in rest:
                    table = table.append_column(name, others.column(name))
                table = table.filter(pa.array(chosen))
            if held and rows + len(table) > UNIT_ROWS:
                yield _completed(pa.concat_tables(held), columns)
                held, rows = [], 0
            held.append(table)
            rows += len(table)
        if held:
            yield _completed(pa.concat_tables(held), columns)


def _check_columns(file: Any) -> None:
    """Raises ValueError for what has other columns than events, or is of a newer version."""
    import pyarrow.compute as pc

    there = file.schema_arrow.names
    if missing := [name for name in _NEEDED if name not in there]:
        raise ValueError(f"it has no column {missing[0]}")
    if "schema" not in there:
        return
    at = there.index("schema")
    for group in range(file.metadata.num_row_groups):
        known = file.metadata.row_group(group).column(at).statistics
        if known is not None and known.has_min_max:
            version = known.max
        else:
            table = file.read_row_group(group, columns=["schema"], use_threads=False)
            version = pc.max(table.column("schema")).as_py()
        _check_version(version)


def _check_version(version: int | None) -> None:
    if version is not None and version > VERSION:
        raise ValueError(
            f"it is of version {version} of the events, and this qmd reads {VERSION}; install the"
            " newer release"
        )


def _event(line: str, number: int) -> dict[str, Any]:
    import json

    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"line {number} is no event: {error}") from error
    if not isinstance(row, dict):
        raise ValueError(f"line {number} is no event")
    if missing := [name for name in _NEEDED if name not in row]:
        raise ValueError(f"line {number} has no {missing[0]}")
    _check_version(row.get("schema"))
    if row.get("sequence_id") is not None:
        row["sequence_id"] = _decimal(row["sequence_id"])
    return row


def _read_ndjson(path: str, columns: Sequence[str]) -> Iterator[Any]:
    import fsspec
    import pyarrow as pa

    rows: list[dict[str, Any]] = []

    def table() -> Any:
        return pa.table(
            {name: pa.array([row.get(name) for row in rows], _type(name)) for name in columns}
        )

    with fsspec.open(path, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                rows.append(_event(line, number))
            if len(rows) == UNIT_ROWS // 4:
                yield table()
                rows.clear()
    if rows:
        yield table()


def _decimal(value: Any) -> Any:
    from decimal import Decimal

    return Decimal(value)


def _type(name: str) -> Any:
    import pyarrow as pa

    if name == "sequence_id":
        return pa.decimal128(20, 0)
    if name in ("block", "index", "at_ms", "lookup_id", "sequence_number", "bytes", "schema"):
        return pa.int64()
    if name == "time":
        return pa.timestamp("ms", "UTC")
    return pa.dictionary(pa.int32(), pa.string()) if name in _REPEATED else pa.string()


def _completed(table: Any, columns: Sequence[str]) -> Any:
    import pyarrow as pa

    for name in columns:
        if name not in table.column_names:
            default = _OPTIONAL.get(name)
            array = pa.array([default] * len(table), pa.string())
            table = table.append_column(name, array.cast(_type(name)))
    return table.select(list(columns))


def host_of_path(path: str) -> str:
    """Of whom a file is, by its folder, as `qmd ship` names them: its own words cannot be read."""
    parts = [part.partition("=")[2] for part in path.split("/") if part.startswith("host=")]
    return parts[-1] if parts else ""


def hash_of(text: str) -> int:
    """64 bits with a sign that stand for a name: the same in every process and for ever."""
    return int.from_bytes(
        hashlib.blake2b(text.encode(), digest_size=8).digest(), "big", signed=True
    )


def text_hashes(column: Any, names: dict[int, str] | None = None) -> Any:
    """`hash_of` for each row of a column of repeated texts (null is ""), as a numpy array."""
    import numpy as np
    import pyarrow as pa

    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    texts = column.dictionary.to_pylist()
    hashes = np.array([*map(hash_of, (text or "" for text in texts)), hash_of("")], np.int64)
    if names is not None:
        names.update(zip(hashes.tolist(), [*(text or "" for text in texts), ""], strict=True))
    codes = column.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False)
    return hashes[codes]
