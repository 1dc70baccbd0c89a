"""The findings that were announced, and the news of a run.

A finding is announced once.  One that a later run no longer has (a late log has explained it) is
withdrawn, also once.  Findings about hosts and logs come and go while logs arrive, so they are news
only when several runs in a row have them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.jobs.audit.findings import ABOUT_HOSTS, KINDS
from pipeline.results.places import Place
from pipeline.results.runs import ANNOUNCED

#: Runs in a row after which a finding about a host is news.
PATIENT_RUNS = 3
VERSION = 1

Finding = Mapping[str, Any]


@dataclass(frozen=True)
class News:
    """The difference between two runs."""

    new: list[dict[str, Any]] = field(default_factory=list)
    withdrawn: list[dict[str, Any]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.new or self.withdrawn)


class Announced:
    """The announced findings of one place of results, in a file beside them."""

    def __init__(self, place: Place) -> None:
        """Raise ValueError if the file is not one of this class."""
        self._place = place
        self._known: dict[str, dict[str, Any]] = {}
        self._runs: dict[str, int] = {}  # of findings that are not announced yet
        noted: Any = None
        try:
            noted = place.read_json(ANNOUNCED)
        except FileNotFoundError:
            return
        except ValueError:
            pass
        if not isinstance(noted, dict) or noted.get("version") != VERSION:
            raise ValueError(
                f"{place.address(ANNOUNCED)} is not a list of announced findings; remove it"
            )
        self._known, self._runs = noted["known"], noted["runs"]

    def news(
        self, findings: Iterable[Finding], kinds: Collection[str], *, patient_runs: int
    ) -> News:
        """Return the news of a run that has found `findings`; only `kinds` count."""
        present = {key_of(one): dict(one) for one in findings if one["kind"] in kinds}
        self._runs = {key: self._runs.get(key, 0) + 1 for key in present if key not in self._known}
        new = [
            one
            for key, one in present.items()
            if key not in self._known
            and (one["kind"] not in ABOUT_HOSTS or self._runs[key] >= patient_runs)
        ]
        withdrawn = [one for key, one in self._known.items() if key not in present]
        order = list(KINDS)
        new.sort(key=lambda one: (order.index(one["kind"]), one.get("at_ms") or 0))
        return News(new, withdrawn)

    @property
    def has_pending(self) -> bool:
        """Return whether findings wait for further runs that have them."""
        return bool(self._runs)

    def take(self, news: News) -> None:
        """Note that the news were announced."""
        for one in news.new:
            self._known[key_of(one)] = one
            self._runs.pop(key_of(one), None)
        for one in news.withdrawn:
            self._known.pop(key_of(one), None)

    def save(self) -> None:
        """Write the file; on return it is durable.  Raises OSError."""
        noted = {"version": VERSION, "known": self._known, "runs": self._runs}
        self._place.write_text(ANNOUNCED, json.dumps(noted))


def key_of(one: Finding) -> str:
    """Return the identity of a finding; its wording and its time may change between runs."""
    names = ("kind", "host", "from_host", "to_host", "queue", "message_id", "sequence_id",
             "sequence_number", "until_number")  # fmt: skip
    values = [one.get(name) for name in names]
    if one["kind"] == "broken_file":
        values.append(one.get("detail"))
    return json.dumps(["" if value is None else str(value) for value in values])


def read_findings(table: Any) -> list[dict[str, Any]]:
    """Return the rows of an Arrow table of findings, for JSON."""
    return [
        {
            name: value if value is None or isinstance(value, str | int) else str(value)
            for name, value in row.items()
        }
        for row in table.to_pylist()
    ]


def line_of(one: Finding) -> str:
    """Return a finding as one line for people."""
    where = " -> ".join(str(one[name]) for name in ("from_host", "to_host") if one.get(name))
    parts = [str(one["kind"]).replace("_", " "), where or str(one.get("host") or "")]
    if one.get("queue"):
        parts.append(str(one["queue"]))
    if one.get("message_id"):
        parts.append(f"qmd why '{one['message_id']}'")
    if one.get("detail"):
        parts.append(str(one["detail"]))
    return "  ".join(part for part in parts if part)
