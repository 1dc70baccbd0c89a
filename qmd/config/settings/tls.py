# ruff: noqa: RUF009 (setting() is dataclasses.field with more arguments)
"""TLS between queue managers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qmd.config.settings.declaration import setting
from qmd.config.tls_rules import TlsRule
from qmd.config.value_types import (
    Address,
    Duration,
    Flag,
    Location,
    OptionalLocation,
    SecretFile,
    TlsRules,
    Whole,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """TLS 1.3 between queue managers that run qmd, on a port of its own: docs/tls.md."""

    enabled: bool = setting(Flag(), False, "Whether sessions over TLS are accepted and made.")
    address: str = setting(
        Address(),
        "127.0.0.1",
        "The address to listen on. The default allows no connections from other computers.",
    )
    port: int = setting(
        Whole(0, 65535),
        1807,
        "The TCP port for sessions over TLS. 0: any free one, for tests.",
    )
    certificate: Path = setting(
        Location(),
        "tls.crt",
        "The certificate (PEM) of this queue manager, with those between it and its authority."
        " Without such a file it makes one from the key of its data folder.",
    )
    key: Path = setting(SecretFile(), "tls.key", "Its key (PEM).")
    authorities: Path | None = setting(
        OptionalLocation(),
        "",
        "Authorities (PEM) of the certificates of other queue managers. Empty: their keys are"
        " bound on first use.",
    )
    revoked: Path | None = setting(
        OptionalLocation(), "", "Revocation lists (PEM) of these authorities."
    )
    pins: Path = setting(
        Location(), "tls-pins", "The pinned keys of other queue managers; see `qmd tls pin`."
    )
    policy: tuple[TlsRule, ...] = setting(
        TlsRules(),
        [],
        "Which peers need TLS; the first rule that fits is used. Without one TLS is preferred:"
        " used with a peer that offers it, and required of a peer that has been met over TLS.",
    )
    handshakes_max: int = setting(
        Whole(1, 65535),
        256,
        "Connections at once that have not finished the handshake of TLS; one is closed to make"
        " room.",
    )
    handshake_timeout_s: float = setting(
        Duration("10ms", "10m"), "10s", "How long the handshake of TLS may take."
    )
    reload_s: float = setting(
        Duration("10ms", "1h"), "1s", "How often the files are checked for changes."
    )
    overlap_s: float = setting(
        Duration("0s", "3650d"),
        "7d",
        "How long the replaced key of a peer is accepted after its later key has been met.",
    )
    warn_before_s: float = setting(
        Duration("1m", "3650d"),
        "30d",
        "A certificate that expires within this time is reported, in the log once a day.",
    )
