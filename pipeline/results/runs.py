"""Runs of a job: each publishes its tables, its pages and its state by one file.

    _commits/00000042.json      one run: which files it consists of, and a summary
    runs/00000042-1f2e3d4c/     its tables and pages, which never change
    state/NAME-00000042-....    parts of its state
    latest                      a link to the folder of the newest run
    findings.parquet, ...       links into `latest`

A run writes all its files under new names; the file in `_commits` is made last, and only if no
other run has made it.  A run that dies before has changed nothing.  The links follow the newest
commit; a run that dies before it has moved them leaves those of the run before, all of one run, and
the next run moves them.  Where there are no links (a store), copies of tables are written, and then
those of pages; `latest.json` names the newest run.
"""

from __future__ import annotations

import datetime
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.results.column_types import typed
from pipeline.results.places import Place

KEEP_RUNS = 30  # with tables and pages
KEEP_STATES = 2
COMMITS, RUNS, STATE, LATEST = "_commits", "runs", "state", "latest"
ANNOUNCED = "announced.json"  # the findings that were announced: pipeline/watch/announced.py
VERSION = 1

_NUMBER = re.compile(r"(\d{8})")


class RunSuperseded(Exception):
    """Another run has published meanwhile: this run's results are discarded."""


class WrongResults(Exception):
    """The results at this place are of another job or release; the text gives the remedy."""


@dataclass(frozen=True)
class Commit:
    """The files that a run has published; names are relative to the place."""

    number: int
    job: str
    files: Mapping[str, str]  # the name of each table and page, and where it is
    state: str  # a file; "" if the job has none
    parts: Sequence[str]  # of the state
    summary: Mapping[str, Any]
    at: str

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Commit:
        if found.get("version") != VERSION:
            raise WrongResults("another release has written these results; name another folder")
        return cls(
            found["run"], found["job"], found["files"], found["state"], found["parts"],
            found["summary"], found["at"],
        )  # fmt: skip


class Results:
    """All results of one job at one place: a folder, or an address that fsspec knows."""

    def __init__(self, where: str | Path) -> None:
        """Raise StoreUnknown for an address that cannot be used."""
        self.place = Place(where)

    def numbers(self) -> list[int]:
        """Return the numbers of the published runs that are kept, in their order."""
        found = (_NUMBER.fullmatch(each.removesuffix(".json")) for each in self._commits())
        return sorted(int(each[1]) for each in found if each)

    def _commits(self) -> list[str]:
        return [name for name in self.place.names(COMMITS) if name.endswith(".json")]

    def commit(self, number: int) -> Commit:
        return Commit.of(self.place.read_json(_commit_name(number)))

    def latest(self) -> Commit | None:
        """Return the newest run; None if there is none."""
        numbers = self.numbers()
        return self.commit(numbers[-1]) if numbers else None

    def begin(self, job: str) -> Draft:
        """Return the next run.  Raises WrongResults."""
        before = self.latest()
        if before is not None and before.job != job:
            raise WrongResults(
                f"{self.place.where} holds results of {before.job}; name another folder for {job}"
            )
        return Draft(self.place, job, before)

    def publish(self) -> None:
        """Let the links, or copies, follow the newest run: a run may have died before it did."""
        newest = self.latest()
        if newest is not None:
            _publish(self.place, newest)


@dataclass
class Draft:
    """A run that has not published yet."""

    place: Place
    job: str
    before: Commit | None
    summary: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.number = 1 + (self.before.number if self.before else 0)
        self._token = secrets.token_hex(4)
        self._folder = f"{RUNS}/{self.number:08}-{self._token}"
        self._files: dict[str, str] = {}
        self._state = ""
        self._parts: list[str] = []
        self._written: list[str] = []
        self._is_published = False

    def earlier(self, most: int) -> list[Commit]:
        """Return the newest earlier runs whose pages are kept, the oldest first."""
        found = []
        results = Results(self.place.where)
        for number in sorted(results.numbers())[-most:]:
            try:
                found.append(results.commit(number))
            except (OSError, ValueError, WrongResults):
                continue  # another run has just deleted it
        return found

    # Tables and pages.

    def put_table(self, name: str, table: Any) -> None:
        """Write table `name`, an Arrow table."""
        self.place.write_table(self._file(f"{name}.parquet"), typed(table))

    def put_page(self, name: str, text: str) -> None:
        self.place.write_text(self._file(name), text)

    def _file(self, name: str) -> str:
        self._files[name] = f"{self._folder}/{name}"
        return self._files[name]

    # State.

    def state(self) -> dict[str, Any] | None:
        """Return the state that the run before has published; None if there is none."""
        if self.before is None or not self.before.state:
            return None
        return self.place.read_json(self.before.state)

    def put_part(self, name: str, table: Any) -> str:
        """Write a part of the state; return its name for `put_state`."""
        part = f"{STATE}/{name}-{self.number:08}-{self._token}-{len(self._written)}.parquet"
        self._written.append(part)
        self.place.write_table(part, table)
        return part

    def put_state(self, about: Mapping[str, Any], parts: Sequence[str]) -> None:
        """Write the state, which consists of `about` and `parts`; these may be of earlier runs."""
        self._state = f"{STATE}/about-{self.number:08}-{self._token}.json"
        self._written.append(self._state)
        self._parts = list(parts)
        self.place.write_text(self._state, json.dumps(about))

    # The end.

    def check_writable(self) -> None:
        """Write a small file and remove it.  Raises OSError."""
        name = f"{self._folder}/probe"
        self.place.write_text(name, "")
        self.place.remove(name)

    def commit(self) -> Commit:
        """Publish all at once.  Raises RunSuperseded if another run has published meanwhile."""
        about = {
            "version": VERSION, "run": self.number, "job": self.job, "files": self._files,
            "state": self._state, "parts": self._parts, "summary": self.summary,
            "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }  # fmt: skip
        if not self.place.create(_commit_name(self.number), json.dumps(about)):
            raise RunSuperseded(
                f"another run has published results at {self.place.where} meanwhile; those of this"
                " run were discarded; run it again"
            )
        self._is_published = True
        done = Commit.of(about)
        _publish(self.place, done)
        _clean(self.place, done)
        return done

    def discard(self) -> None:
        """Remove what was written, unless it is published."""
        if self._is_published:
            return
        for name in (*self._written, self._folder):
            self.place.remove(name)


def _commit_name(number: int) -> str:
    return f"{COMMITS}/{number:08}.json"


def _publish(place: Place, newest: Commit) -> None:
    pages_last = sorted(newest.files, key=lambda name: (not name.endswith(".parquet"), name))
    if place.folder is not None:
        try:
            for folder in {path.rpartition("/")[0] for path in newest.files.values()}:
                place.link(LATEST, folder)
            for name in pages_last:
                place.link(name, f"{LATEST}/{name}")
        except OSError:
            pass  # a file system without links
        else:
            return
    for name in pages_last:
        with place.open(newest.files[name]) as file:
            content = file.read()
        place.write_bytes(name, content)
    latest = {"run": newest.number, "files": dict(newest.files), "at": newest.at}
    place.write_text(f"{LATEST}.json", json.dumps(latest))


def _clean(place: Place, newest: Commit) -> None:
    """Remove old runs, the remains of dead ones, and states that no run needs any more."""
    numbers = sorted(n for n in (_number(each) for each in place.names(COMMITS)) if n > 0)
    kept = [n for n in numbers if newest.number - KEEP_RUNS < n <= newest.number]
    commits = [Commit.of(place.read_json(_commit_name(n))) for n in kept]
    folders = {path.split("/")[1] for each in commits for path in each.files.values()}
    parts = {
        name
        for each in commits
        if each.number > newest.number - KEEP_STATES
        for name in (each.state, *each.parts)
    }
    for number in numbers:
        if number <= newest.number - KEEP_RUNS:
            place.remove(_commit_name(number))
    if place.folder is not None:  # stores have no incomplete files
        for folder in ("", COMMITS):
            for name in place.names(folder):
                if name.startswith(".") and name.endswith(".part"):
                    place.remove(f"{folder}/{name}".lstrip("/"))
    # A number that is not published yet may be another run's, which is at work.
    for name in place.names(RUNS):
        if name not in folders and 0 < _number(name) <= newest.number:
            place.remove(f"{RUNS}/{name}")
    for name in place.names(STATE):
        if f"{STATE}/{name}" not in parts and 0 < _number(name) <= newest.number:
            place.remove(f"{STATE}/{name}")


def _number(name: str) -> int:
    """Return the number of the run in the name of a file; 0: there is none."""
    found = _NUMBER.search(name)
    return int(found[1]) if found else 0
