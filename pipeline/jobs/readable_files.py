"""Run a job over the readable files; report each damaged one.

The footers of Parquet files are checked before a job begins, which is quick and finds truncated
files.  Damage further inside makes the job fail: then all files are read to find the damaged ones,
and the job runs again without them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pandas as pd
import pyarrow as pa

from pipeline.engines.local import LocalEngine
from pipeline.events import LogFile, Unreadable, check, host_of_path

Frame = Any

#: The table of unreadable files that each job returns.
BROKEN_FILES = "broken_files"
_READERS = 8


class NoReadableFile(Exception):
    """None of the files can be read; the text gives the error of the first."""


def over_readable_files(
    spark: Any,
    files: Sequence[LogFile],
    work: Callable[[list[LogFile]], dict[str, Frame]],
    progress: Callable[[str], None] = lambda text: None,
    *,
    has_earlier_results: bool = False,
) -> dict[str, Frame]:
    """Return the result of `work` on the readable files, with the table `BROKEN_FILES`.

    Raises NoReadableFile if no file is readable, unless `has_earlier_results`: then `work` also
    uses those.  Errors of `work` that no file caused are raised unchanged.
    """
    progress(f"checking {len(files)} files")
    broken = broken_files(spark, files)
    try:
        result = work(_readable(files, broken, has_earlier_results=has_earlier_results))
    except NoReadableFile:
        raise
    except Exception:  # of any type: Spark's bridge to Java wraps the errors
        progress("a file may be damaged: reading all files to find it")
        inside = broken_files(
            spark, _readable(files, broken, has_earlier_results=has_earlier_results), inside=True
        )
        if not inside:
            raise
        broken |= inside
        result = work(_readable(files, broken, has_earlier_results=has_earlier_results))
    return result | {BROKEN_FILES: as_table(broken)}


def _readable(
    files: Sequence[LogFile], broken: dict[str, str], *, has_earlier_results: bool
) -> list[LogFile]:
    found = [file for file in files if file.path not in broken]
    if not found and broken and not has_earlier_results:
        path, why = min(broken.items())
        raise NoReadableFile(f"none of {len(broken)} files can be read; {path}: {why}")
    return found


def as_table(broken: dict[str, str]) -> Frame:
    rows = [(host_of_path(path), path, why) for path, why in sorted(broken.items())]
    return pd.DataFrame(rows, columns=["host", "file", "reason"], dtype=object)


def broken_files(spark: Any, files: Sequence[LogFile], *, inside: bool = False) -> dict[str, str]:
    """Return path -> error of the unreadable files; with `inside`, read all of each."""
    long = [file.path for file in files if inside or not file.path.endswith(".parquet")]
    ends = [] if inside else [file.path for file in files if file.path.endswith(".parquet")]
    with ThreadPoolExecutor(_READERS) as readers:
        found = [each for each in readers.map(_checked, ends) if each is not None]
    if long:
        found += _read_by_tasks(spark, long, inside=inside)
    return dict(found)


def _checked(path: str, *, whole: bool = False) -> tuple[str, str] | None:
    try:
        check(path, whole=whole)
    except Unreadable as broken:
        return path, broken.why
    return None


def _read_by_tasks(spark: Any, paths: list[str], *, inside: bool) -> list[tuple[str, str]]:
    if isinstance(spark, LocalEngine):
        with ThreadPoolExecutor(spark.parallelism) as readers:
            checked = readers.map(partial(_checked, whole=inside), paths)
            return [each for each in checked if each is not None]
    schema = pa.schema([("path", pa.string()), ("why", pa.string())])

    def each(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            looked = [_checked(paths[n], whole=inside) for n in batch.column(0).to_pylist()]
            some = [one for one in looked if one is not None]
            yield pa.RecordBatch.from_pylist(
                [{"path": path, "why": why} for path, why in some], schema=schema
            )

    tasks = min(len(paths), int(spark.sparkContext.defaultParallelism) * 2)
    rows = spark.range(0, len(paths), 1, tasks).mapInArrow(each, "path string, why string")
    return [(row.path, row.why) for row in rows.collect()]
