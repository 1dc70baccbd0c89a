# ruff: noqa: RUF009 (setting() is dataclasses.field with more arguments)
"""The web console."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qmd.config.console_hosts import ConsoleHost
from qmd.config.settings.declaration import setting
from qmd.config.value_types import (
    Address,
    Choice,
    ComputerNames,
    ConsoleHosts,
    Duration,
    Flag,
    Location,
    Mode,
    OptionalLocation,
    OptionalSecretFile,
    Whole,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSettings:
    """The web console: `qmd console`, docs/console.md."""

    address: str = setting(
        Address(), "127.0.0.1", "The address to listen on. Others than loopback need a certificate."
    )
    port: int = setting(Whole(0, 65535), 1810, "The TCP port. 0: any free one, for tests.")
    socket: Path | None = setting(
        OptionalLocation(), "", "A Unix socket to listen on instead, for a proxy on this computer."
    )
    mode: int = setting(Mode(), "0660", "Permissions of that socket.")
    certificate: Path | None = setting(
        OptionalLocation(), "", "The certificate (PEM) for HTTPS. Empty: HTTP, on loopback only."
    )
    key: Path | None = setting(OptionalSecretFile(), "", "Its key (PEM).")
    names: tuple[str, ...] = setting(
        ComputerNames(),
        [],
        "Names under which browsers reach it, besides its address and `localhost`. Requests under "
        "other names are refused.",
    )
    hosts: tuple[ConsoleHost, ...] = setting(
        ConsoleHosts(), ["local"], "The queue managers that it shows, each with its tokens."
    )
    users: Path = setting(
        Location(),
        "console-users",
        "The users of the console, their roles and the proofs of their passwords; see "
        "`qmd console user`.",
    )
    tokens: bool = setting(Flag(), True, "Whether a token can be used to log in.")
    act_for: bool = setting(
        Flag(),
        False,
        "Whether the console acts for its users on this computer: each has the rights of "
        "`sasl:NAME` only. It needs the right act-for-users.",
    )
    actions: str = setting(
        Choice(("loopback", "always", "never")),
        "loopback",
        "When users may change something: if the browser is on this computer, always, or never.",
    )
    idle_timeout_s: float = setting(
        Duration("10s", "1d"), "30m", "A login ends after this time without a request."
    )
    login_age_s: float = setting(Duration("1m", "30d"), "12h", "A login ends after this time.")
    refresh_s: float = setting(
        Duration("100ms", "1h"),
        "2s",
        "The age at which the figures of a host are asked again. All open pages share the answer.",
    )
    reports: Path | None = setting(
        OptionalLocation(),
        "",
        "A folder with the results of jobs (`qmd pipeline run`), whose reports are shown.",
    )

    @property
    def client_ca(self) -> Path | None:
        """The authorities of clients' certificates: none, because users log in."""
        return None
