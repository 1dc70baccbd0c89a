# ruff: noqa: RUF009 (setting() is dataclasses.field with more arguments)
"""Clients: the control socket, rights, and the port for remote control."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qmd.config.settings.declaration import setting
from qmd.config.value_types import (
    Accounts,
    Address,
    Duration,
    Flag,
    Location,
    Mode,
    OptionalLocation,
    SecretFile,
    Text,
    Whole,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlSettings:
    """The Unix socket that the command line and applications use."""

    socket: Path = setting(Location(), "qmd.sock", "The socket; at most 107 bytes with its folder.")
    mode: int = setting(
        Mode(),
        "0660",
        "Permissions of the socket. The default allows its owner and its group.",
    )
    group: str = setting(Text(), "", "The group that owns it. Empty: the daemon's own group.")
    clients_max: int = setting(
        Whole(1, 65535),
        1024,
        "Clients at once. Root and the user of the daemon have 32 more places.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSettings:
    """Rights of local users; docs/access.md."""

    administrators: tuple[str, ...] = setting(
        Accounts(),
        [],
        "Users and groups with all rights, besides root and the daemon's own user.",
    )
    queues_max: int = setting(
        Whole(0, 32_000), 1000, "Queues that one owner without all rights may have."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSettings:
    """The control protocol over TCP with TLS, for pipelines and operators on other hosts."""

    enabled: bool = setting(
        Flag(),
        False,
        "Whether connections from other hosts are accepted.",
    )
    address: str = setting(Address(), "127.0.0.1", "The address to listen on.")
    port: int = setting(Whole(0, 65535), 1806, "The TCP port. 0: any free one, for tests.")
    certificate: Path = setting(
        Location(), "remote.crt", "The certificate (PEM), with those between it and its authority."
    )
    key: Path = setting(SecretFile(), "remote.key", "Its key (PEM).")
    client_ca: Path | None = setting(
        OptionalLocation(),
        "",
        "Authorities (PEM) of clients' certificates. With it, every client needs a certificate.",
    )
    tokens: Path = setting(
        Location(), "remote-tokens", "The tokens, as hashes; see `qmd remote token`."
    )
    plain_on_loopback: bool = setting(
        Flag(), False, "Whether it is without TLS; then the address must be a loopback one."
    )
    connections_max: int = setting(Whole(1, 10_000), 64, "Connections at once.")
    login_timeout_s: float = setting(
        Duration("10ms", "10m"), "10s", "How long the handshake and the login may take together."
    )
    requests_per_second: int = setting(
        Whole(1, 1_000_000), 2000, "Requests of one connection, averaged over 5 seconds."
    )
