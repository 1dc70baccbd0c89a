"""A visit: one request of a user that has logged in, with all that pages need to answer it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from qmd.console.choices import Form
from qmd.console.fleet import Fleet, Link
from qmd.console.jobs import Jobs
from qmd.console.logins import Session
from qmd.console.roles import Identity, Role


class NotFound(Exception):
    """There is no such page, host or file; the text says which."""


class Forbidden(Exception):
    """The user may not do this; the text says why."""


class Page(NamedTuple):
    """A template and its values."""

    template: str
    values: dict[str, Any]
    status: int = 200


class Redirect(NamedTuple):
    """Another page that the browser opens next."""

    address: str


class File(NamedTuple):
    """A file for the browser to save, or a report to show apart from the console."""

    content: bytes
    media_type: str
    name: str = ""
    policy: str = ""


Answer = Page | Redirect | File


@dataclass(frozen=True)
class Visit:
    """One request; `read_only` is why nothing can be changed, or empty."""

    fleet: Fleet
    jobs: Jobs
    session: Session
    segments: Sequence[str]
    query: Form
    form: Form
    read_only: str
    config: Path
    reports: Path | None
    #: The script of a page that is open asks for its figures only.
    is_live: bool = False

    @property
    def identity(self) -> Identity:
        """The user."""
        return self.session.identity

    def may(self, role: str) -> bool:
        """Return whether the user has a role, and may change something now."""
        return not self.read_only and self.identity.role >= Role[role.upper()]

    def link(self, host: str) -> Link:
        """Return the connection to a host.  Raises NotFound, ClientError."""
        try:
            return self.fleet.link(host, self.identity)
        except KeyError:
            raise NotFound(f"The console has no host {host}.") from None

    def command(self, host: str) -> list[str]:
        """Return the beginning of the command line for a host."""
        return self.fleet.command(host, self.identity)

    def asked(self, name: str, default: str = "") -> str:
        """Return a parameter of the query."""
        values = self.query.get(name)
        return values[0] if values else default

    def place(self, name: str) -> int:
        """Return a parameter that is a lookup id; 0: it is none."""
        value = self.asked(name)
        is_number = value.isascii() and value.isdigit() and len(value) < 20
        return int(value) if is_number and int(value) < 1 << 63 else 0


def page(template: str, visit: Visit, **values: Any) -> Page:
    """Return a page about something."""
    return Page(template, dict(values))


def host_page(template: str, visit: Visit, host: str, **values: Any) -> Page:
    """Return a page about a host, with the navigation of the host."""
    return Page(template, {"host": host, **values})


def sorted_by(
    rows: Sequence[Mapping[str, Any]], key: str, allowed: Sequence[str], *, down: bool
) -> list[Mapping[str, Any]]:
    """Return rows in the order of a column, or of the first allowed one."""
    column = key if key in allowed else allowed[0]

    def value(row: Mapping[str, Any]) -> tuple[int, Any]:
        found = row.get(column)
        if isinstance(found, str):
            return 1, found.casefold()
        return 0, found or 0

    return sorted(rows, key=value, reverse=down)
