"""The archive: shipped journals, compacted into a few sorted files for each closed day.

    <archive>/day=2026-11-21/run=<fingerprint>/part-*.parquet
    <archive>/_manifest/day=2026-11-21.json       the day's valid run, and its source files

A day is compacted once, and again when late files arrive.  Its new run is complete before the
manifest names it, which is one atomic step, and the old run is removed after that.  So a reader
that follows the manifests never sees an incomplete day.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from pipeline.jobs.archived_rows import Rows, rows_of
from pipeline.results.places import Place
from pipeline.stores import store_at

_DAY = re.compile(r"day=(\d{4}-\d\d-\d\d)/")


@dataclass(frozen=True)
class Archived:
    """The result for one day."""

    day: str
    files: int  # its source files
    rows: int
    was_done: bool  # archived by an earlier run, and nothing has arrived since
    #: Unreadable files, and why; the next run tries them again.
    broken: tuple[tuple[str, str], ...] = ()


class Archive:
    """An archive in a folder or store, by path or URL."""

    def __init__(self, where: str) -> None:
        self._system, self._root, _ = store_at(where)
        self._where = where.rstrip("/")

    def manifests(self) -> dict[str, dict[str, Any]]:
        """Return the manifest of each archived day."""
        found = {}
        for name in sorted(self._system.glob(f"{self._root}/_manifest/day=*.json")):
            with self._system.open(name, "rb") as file:
                manifest = json.loads(file.read())
            found[str(manifest["day"])] = manifest
        return found

    def runs(self, since: str = "", until: str = "9999") -> list[str]:
        """Return the folders of the days from `since` until `until`."""
        return [
            f"{self._where}/{manifest['folder']}"
            for day, manifest in sorted(self.manifests().items())
            if since <= day <= until
        ]

    def plan_days(self, lake: str, *, today: datetime.date) -> dict[str, list[str]]:
        """Return the unarchived files of each closed day of which `lake` has journals."""
        known = self.manifests()
        return {
            day: [name for name in names if _last(name) not in set(_sources(known.get(day)))]
            for day, names in _days(lake, today).items()
        }

    def unread_bytes(self, lake: str, *, today: datetime.date) -> int:
        """Return the size of all that `compact` will read."""
        system, _, _ = store_at(lake)
        known = self.manifests()
        size = 0
        for day, names in self.plan_days(lake, today=today).items():
            size += sum(int(system.size(name) or 0) for name in names)
            if names and day in known:
                size += int(self._system.du(f"{self._root}/{known[day]['folder']}"))
        return size

    def compact(
        self,
        spark: Any,
        lake: str,
        *,
        today: datetime.date,
        progress: Callable[[str], None] = lambda text: None,
    ) -> list[Archived]:
        """Archive all days before `today` of the journals that `qmd ship` wrote to `lake`.

        `spark` is a session, or the embedded engine.
        """
        rows = rows_of(spark)
        system, _, _ = store_at(lake)
        known = self.manifests()
        done = []
        days = _days(lake, today)
        for number, (day, names) in enumerate(sorted(days.items())):
            progress(f"{day}, day {number + 1} of {len(days)}: {len(names)} files")
            done.append(self._day(rows, day, names, system, known.get(day)))
        return done

    def contents(self, spark: Any) -> Any:
        """Return the archived amounts by day, host and queue (`archived_rows.CONTENTS`)."""
        return rows_of(spark).contents(self.runs())

    def size(self, since: str = "", until: str = "9999") -> int:
        """Return the size of the archived days in bytes."""
        folders = [
            f"{self._root}/{each['folder']}"
            for day, each in self.manifests().items()
            if since <= day <= until
        ]
        return sum(int(self._system.du(folder)) for folder in folders)

    def write_report(self, contents: Any, page: str) -> str:
        """Write the report beside the days, in a folder that is no day; return the page's path."""
        table = pa.BufferOutputStream()
        parquet.write_table(pa.Table.from_pandas(contents, preserve_index=False), table)
        self._name("_report/contents.parquet", table.getvalue().to_pybytes())
        self._name("_report/report.html", page.encode())
        return f"{self._where}/_report/report.html"

    def _day(
        self,
        rows: Rows,
        day: str,
        names: list[str],
        system: Any,
        before: dict[str, Any] | None,
    ) -> Archived:
        # Files that were removed from the lake by age remain in the archive.
        new = [name for name in names if _last(name) not in set(_sources(before))]
        broken = _broken(system, new, inside=False)
        try:
            done = self._run(rows, day, _without(new, broken), system, before)
        except Exception:  # of any type: Spark's bridge to Java wraps the errors
            inside = _broken(system, _without(new, broken), inside=True)
            if not inside:
                raise
            broken |= inside
            done = self._run(rows, day, _without(new, broken), system, before)
        return replace(done, broken=tuple(sorted(broken.items())))

    def _run(
        self, rows: Rows, day: str, new: list[str], system: Any, before: dict[str, Any] | None
    ) -> Archived:
        """Compact the day again if any of its files is `new`."""
        known = _sources(before)
        if not new:
            count = 0 if before is None else before["rows"]
            return Archived(day, len(known), count, was_done=True)
        paths = [system.unstrip_protocol(name) for name in new]
        if before is not None:
            paths.append(f"{self._where}/{before['folder']}")
        together = sorted({*map(_last, new), *known})
        fingerprint = hashlib.sha256("\n".join(together).encode()).hexdigest()[:16]
        folder = f"day={day}/run={fingerprint}"
        # If notes are lost, messages are shipped again in other files; a replay sends each once.
        count = rows.compact(paths, f"{self._where}/{folder}")
        manifest = {"day": day, "folder": folder, "rows": count, "sources": together}
        self._name(f"_manifest/day={day}.json", json.dumps(manifest).encode())
        for old in self._system.glob(f"{self._root}/day={day}/run=*"):
            if not str(old).endswith(fingerprint):
                self._system.rm(old, recursive=True)
        return Archived(day, len(together), count, was_done=False)

    def plan(self, name: str) -> dict[str, Any] | None:
        """Return the plan of the replay of that name, fixed when it began; None without one."""
        try:
            with self._system.open(f"{self._root}/_replays/{name}.json", "rb") as file:
                plan: dict[str, Any] = json.loads(file.read())
        except FileNotFoundError:
            return None
        return plan

    def write_plan(self, name: str, plan: dict[str, Any]) -> None:
        self._name(f"_replays/{name}.json", json.dumps(plan).encode())

    def _name(self, name: str, data: bytes) -> None:
        """Write one small file; it is durable and complete, or not there."""
        Place(self._where).write_bytes(name, data)


def _days(lake: str, today: datetime.date) -> dict[str, list[str]]:
    """Return the journal files of each closed day."""
    system, root, _ = store_at(lake)
    days: dict[str, list[str]] = {}
    for name in sorted(system.glob(f"{root}/journal/day=*/host=*/*.parquet")):
        found = _DAY.search(name)
        if found is not None and found[1] < today.isoformat():
            days.setdefault(found[1], []).append(name)
    return days


def _broken(system: Any, names: list[str], *, inside: bool) -> dict[str, str]:
    """Return path -> error of damaged files, by their footers; with `inside`, read all of each."""
    found = {}
    for name in names:
        try:
            with system.open(name, "rb") as opened, parquet.ParquetFile(opened) as file:
                for group in range(file.metadata.num_row_groups) if inside else ():
                    file.read_row_group(group)
        except FileNotFoundError:
            raise
        except (OSError, ValueError) as error:  # includes pyarrow's own errors
            found[name] = str(error).splitlines()[0] if str(error) else repr(error)
    return found


def _without(names: list[str], broken: dict[str, str]) -> list[str]:
    return [name for name in names if name not in broken]


def _last(path: str) -> str:
    return path.rpartition("/")[2]


def _sources(manifest: dict[str, Any] | None) -> list[str]:
    return [] if manifest is None else list(manifest["sources"])
