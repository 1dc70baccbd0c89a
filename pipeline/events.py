"""Event logs as files: find them, and divide them into pieces of work.

The input is the output of `qmd events export` and `qmd ship`: Parquet or NDJSON, in any folders,
with one host or many in a file.  Names that begin with `_` or `.` are ignored.
docs/events.md lists the columns; files of an older version may lack the newer columns.
"""

from __future__ import annotations

import hashlib
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pipeline.event_numbers import REQUIRED, check_place, within_limits
from pipeline.results.below import results_among
from pipeline.stores import store_at

#: Names of NDJSON files, also compressed.
_TEXT = tuple(
    f".{kind}{packed}"
    for kind in ("ndjson", "jsonl", "json")
    for packed in ("", ".gz", ".bz2", ".xz")
)
SPLIT_BYTES = 64 * 1024 * 1024  # several tasks share a larger file
UNIT_ROWS = 100_000  # rows that are processed together: some 30 MB, and as much again for results
VERSION = 1  # of the schema: a newer version may give the same names another meaning

#: The values of columns that an older or a smaller log lacks.
_OPTIONAL = {"label": "", "correlation_id": "", "transaction": "", "reason": "", "to_queue": ""}


#: Files that `qmd ship` writes beside the events; an input may hold several of its folders.
SHIPPED_BESIDE = re.compile(r"(?:^|/)(?:journal|inventory)/day=")


class Unreadable(Exception):
    """A file that is damaged or contains no events; `why` is the library's error message."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path, self.why = path, why


class NoEvents(Exception):
    """No event log was found; the text names the places that were searched."""


@dataclass(frozen=True, slots=True, order=True)
class LogFile:
    """A file as the listing found it; a file with another size or stamp counts as another file."""

    path: str
    size: int
    stamp: str  # modification time, or the version that the object store reports

    @property
    def key(self) -> str:
        return f"{self.path}|{self.size}|{self.stamp}"


def find_files(inputs: Sequence[str]) -> list[LogFile]:
    """Return all event files below `inputs`, sorted; results of jobs and archives are none.

    `inputs` are folders or files, local or in any store that fsspec supports.  Raises NoEvents if
    an input does not exist or contains no event file, StoreUnknown and StoreFailed.
    """
    found: set[LogFile] = set()
    for each in inputs:
        fs, root, is_local = store_at(each)
        if not fs.exists(root):
            raise NoEvents(f"{each} does not exist")
        listed = fs.find(root, detail=True) if fs.isdir(root) else {root: fs.info(root)}
        is_result = results_among(fs, listed)
        for path, info in listed.items():
            below = path[len(root) :].strip("/") or path.rsplit("/", 1)[-1]
            if any(part.startswith(("_", ".")) for part in below.split("/")):
                continue
            if below.startswith(("journal/", "inventory/")) or SHIPPED_BESIDE.search(below):
                continue  # `qmd ship` writes them beside the events
            if not path.endswith((".parquet", *_TEXT)) or is_result(path):
                continue
            stamp = info.get("mtime") or info.get("ETag") or info.get("LastModified") or ""
            found.add(
                LogFile(path if is_local else fs.unstrip_protocol(path), info["size"], str(stamp))
            )
    if not found:
        raise NoEvents(f"no .parquet and no .ndjson file is below {', '.join(inputs)}")
    return sorted(found)


def pieces(files: Iterable[LogFile], tasks: int) -> list[list[tuple[str, int, int]]]:
    """Divide the files into about `tasks` pieces with about equal work.

    Each piece is a list of (path, first row group, end row group); the end is exclusive, and -1
    means the end of the file.  Adjacent parts stay together and in order.
    """
    cut: list[tuple[int, tuple[str, int, int]]] = []
    for file in files:
        if file.size > SPLIT_BYTES and file.path.endswith(".parquet"):
            try:
                with open_parquet(file.path) as parquet:
                    groups = parquet.metadata.num_row_groups
            except (OSError, ValueError):
                groups = 1  # damaged; the task that reads the file reports the error
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


#: A function from a table with the probe columns to the wanted rows (numpy, bool).
Choice = Callable[[Any], Any]


def read_piece(
    piece: tuple[str, int, int],
    columns: Sequence[str],
    probe: Sequence[str] = (),
    choose: Choice | None = None,
) -> Iterator[Any]:
    """Yield Arrow tables of about `UNIT_ROWS` rows at most, in the order of the file.

    Repeated texts are dictionary-encoded.  A column that the file lacks is null.  Numbers are
    `within_limits`.  With `choose`, yield only the rows that it selects: it gets the columns
    `probe`, and the other columns are read only if it selects a row.

    Raises Unreadable for a file that is damaged or is no file of events.
    """
    path, first, last = piece
    try:
        if path.endswith(".parquet"):
            yield from _read_parquet(path, first, last, columns, probe, choose)
        else:
            for table in _read_ndjson(path, columns):
                yield table if choose is None else table.filter(choose(table))
    except FileNotFoundError:
        raise  # the file was deleted after the listing, so this run cannot complete
    except _BROKEN as error:
        raise Unreadable(path, _first_line(error)) from error


def check(path: str, *, whole: bool = False) -> None:
    """Raise Unreadable for a file that is no file of events.

    Of a Parquet file, read only the footer, which a truncated file lacks; with `whole`, read all of
    it.  NDJSON is always read completely.
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
                    _group(file, group)
    except FileNotFoundError:
        raise
    except _BROKEN as error:
        raise Unreadable(path, _first_line(error)) from error


def read_rows(path: str, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Return all rows of a small Parquet file.  Raises Unreadable, also if it lacks a column."""
    try:
        with open_parquet(path) as file:
            table = file.read()
    except FileNotFoundError:
        raise
    except _BROKEN as error:
        raise Unreadable(path, _first_line(error)) from error
    if missing := [name for name in columns if name not in table.column_names]:
        raise Unreadable(path, f"it has no column {missing[0]}")
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


# pyarrow's own errors are subclasses of ValueError and OSError; those of a compressed file that is
# cut off or damaged are not.
_BROKEN = (
    *(OSError, ValueError, TypeError, ArithmeticError),
    *(EOFError, zlib.error, lzma.LZMAError),
)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else repr(error)


#: The columns that logs of every version have.
_NEEDED = ("host", "queue_manager", "block", "index", "at_ms", "kind", "message_id", "queue")
#: Numbers that a floating-point number does not hold: an audit would compare others.
_LONG = ("sequence_id", "lookup_id")
_LOST_DIGITS = "which lose digits; write whole numbers"
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
    except KeyError:  # the file lacks one of these columns
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
            for table in (
                _parts(file, group, wanted) if choose is None
                else _chosen(file, group, probe, rest, choose)
            ):  # fmt: skip
                if held and rows + len(table) > UNIT_ROWS:
                    yield _completed(pa.concat_tables(held), columns)
                    held, rows = [], 0
                held.append(table)
                rows += len(table)
        if held:
            yield _completed(pa.concat_tables(held), columns)


def _parts(file: Any, group: int, columns: Sequence[str]) -> Iterator[Any]:
    """Yield a row group in parts: it may have a million rows, and all of it takes much memory."""
    import pyarrow as pa

    for batch in file.iter_batches(
        UNIT_ROWS, row_groups=[group], columns=columns, use_threads=False
    ):
        yield within_limits(_plain(pa.Table.from_batches([batch])))


def _plain(table: Any) -> Any:
    """Return the table with texts of the types that `qmd ship` writes: other programs have more.

    pandas and Arrow keep categories, long strings and views of strings in the files they write.
    """
    import pyarrow as pa

    for at, column in enumerate(table.schema):
        kind, is_repeated = column.type, column.name in _REPEATED
        is_dictionary = pa.types.is_dictionary(kind)
        texts = kind.value_type if is_dictionary else kind
        is_odd = pa.types.is_large_string(texts) or pa.types.is_string_view(texts)
        if not is_odd and (is_repeated or not is_dictionary):
            continue
        plain = pa.string() if is_odd else texts
        changed = table.column(at).cast(texts).cast(plain)
        if is_repeated:
            changed = changed.dictionary_encode()
        table = table.set_column(at, column.name, changed)
    return table


def _chosen(
    file: Any, group: int, probe: Sequence[str], rest: Sequence[str], choose: Choice
) -> Iterator[Any]:
    """Yield the rows of a row group that `choose` selects by the columns `probe`."""
    import numpy as np
    import pyarrow as pa

    masks, found = [], []
    for part in _parts(file, group, probe):
        masks.append(choose(part))
        found.append(part.filter(pa.array(masks[-1])))
    chosen = np.concatenate(masks) if masks else np.zeros(0, bool)
    if not chosen.any():
        return
    # Parts of other columns may have other lengths.
    others, at = [], 0
    for part in _parts(file, group, rest) if rest else ():
        others.append(part.filter(pa.array(chosen[at : at + len(part)])))
        at += len(part)
    table: Any = pa.concat_tables(found)
    more: Any = pa.concat_tables(others) if others else None
    for name in rest:
        table = table.append_column(name, more.column(name))
    for at in range(0, len(table), UNIT_ROWS):
        yield table.slice(at, UNIT_ROWS)


def _group(file: Any, number: int, columns: Sequence[str] | None = None) -> Any:
    return within_limits(file.read_row_group(number, columns=columns, use_threads=False))


def _check_columns(file: Any) -> None:
    """Raise ValueError if the columns are not those of events, or the version is newer.

    Also for the numbers of blocks, as far as the footer shows them.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    there = file.schema_arrow.names
    if missing := [name for name in _NEEDED if name not in there]:
        raise ValueError(f"it has no column {missing[0]}")
    for name in _LONG:
        if name in there and pa.types.is_floating(file.schema_arrow.field(name).type):
            raise ValueError(f"its column {name} has floating-point numbers, {_LOST_DIGITS}")
    for name in REQUIRED:
        for group in range(file.metadata.num_row_groups):
            known = file.metadata.row_group(group).column(there.index(name)).statistics
            if known is not None and known.has_min_max:
                check_place(name, known.min, known.max, known.null_count or 0)
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
            f"the events have version {version}, and this qmd reads version {VERSION}; install"
            " the newer release"
        )


def _event(line: str, number: int) -> dict[str, Any]:
    import json

    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"line {number} is not an event: {error}") from error
    if not isinstance(row, dict):
        raise ValueError(f"line {number} is not an event")
    if missing := [name for name in _NEEDED if name not in row]:
        raise ValueError(f"line {number} has no {missing[0]}")
    _check_version(row.get("schema"))
    for name in _LONG:
        if isinstance(row.get(name), float):
            raise ValueError(f"line {number} has a floating-point {name}, {_LOST_DIGITS}")
    if row.get("sequence_id") is not None:
        row["sequence_id"] = _decimal(row["sequence_id"])
    return row


def _read_ndjson(path: str, columns: Sequence[str]) -> Iterator[Any]:
    import fsspec
    import pyarrow as pa

    rows: list[dict[str, Any]] = []

    def table() -> Any:
        arrays = {name: pa.array([row.get(name) for row in rows], _type(name)) for name in columns}
        return within_limits(pa.table(arrays))

    # Programs on Windows begin a text with a byte order mark.
    with fsspec.open(path, "rt", encoding="utf-8-sig", compression="infer") as lines:
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
    """Return the host of a file's folder (`host=...`, as `qmd ship` names it), or "".

    Used for files with unreadable content.
    """
    parts = [part.partition("=")[2] for part in path.split("/") if part.startswith("host=")]
    return parts[-1] if parts else ""


def hash_of(text: str) -> int:
    """Return a signed 64-bit hash of a name; it is the same in every process and release."""
    return int.from_bytes(
        hashlib.blake2b(text.encode(), digest_size=8).digest(), "big", signed=True
    )


def text_hashes(column: Any, names: dict[int, str] | None = None) -> Any:
    """Return `hash_of` of each row of a dictionary column (null is ""), as a numpy array."""
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
