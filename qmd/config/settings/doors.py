# ruff: noqa: RUF009 (setting() is dataclasses.field with more arguments)
"""Doors for other protocols, and pipelines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qmd.config.settings.declaration import setting
from qmd.config.value_types import (
    Address,
    Duration,
    Flag,
    Hosts,
    Location,
    Mode,
    Network,
    OptionalLocation,
    OptionalSecretFile,
    Size,
    Text,
    Texts,
    Whole,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """The HTTP door: `qmd door http`, docs/http.md."""

    enabled: bool = setting(Flag(), True, "Whether `qmd serve --doors` starts it.")
    address: str = setting(
        Address(), "127.0.0.1", "The address to listen on. Others than loopback need a certificate."
    )
    port: int = setting(Whole(0, 65535), 1808, "The TCP port. 0: any free one, for tests.")
    socket: Path | None = setting(
        OptionalLocation(), "", "A Unix socket to listen on instead of a port."
    )
    mode: int = setting(Mode(), "0660", "Permissions of that socket.")
    certificate: Path | None = setting(
        OptionalLocation(), "", "The certificate (PEM) for HTTPS. Empty: HTTP, on loopback only."
    )
    key: Path | None = setting(OptionalSecretFile(), "", "Its key (PEM).")
    client_ca: Path | None = setting(
        OptionalLocation(),
        "",
        "Authorities (PEM) of clients' certificates, which clients may have instead of a token.",
    )
    anonymous: bool = setting(
        Flag(),
        True,
        "Whether programs on this computer may use it without a token, as the principal `anonymous`"
        " of docs/access.md.",
    )
    connections_max: int = setting(Whole(1, 65_535), 1000, "Connections at once.")
    connections_per_address_max: int = setting(
        Whole(1, 65_535), 500, "Connections at once from one address."
    )
    request_bytes_max: int = setting(Size("1kB", "64MiB"), "16MiB", "One request's body.")
    bodies_bytes_max: int = setting(
        Size("1MB", "10GB"), "128MiB", "The bodies of all requests that are not answered."
    )
    head_timeout_s: float = setting(
        Duration("10ms", "10m"), "10s", "How long the head of a request may take."
    )
    body_timeout_s: float = setting(
        Duration("10ms", "1h"), "60s", "How long the body of a request may take."
    )
    idle_timeout_s: float = setting(
        Duration("10ms", "1h"), "75s", "How long a connection without requests is kept."
    )
    write_timeout_s: float = setting(
        Duration("10ms", "1h"), "30s", "How long a client may not read its response."
    )
    pushes: Path = setting(
        Location(), "pushes", "The queues that are delivered to URLs; see `qmd push`."
    )
    push_targets: tuple[Network | str, ...] = setting(
        Hosts(),
        [],
        "Hosts and networks that `qmd push` may deliver to. A name permits none of the addresses of"
        " this computer.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AmqpSettings:
    """The door for AMQP 1.0: `qmd door amqp`; docs/amqp.md."""

    enabled: bool = setting(Flag(), True, "Whether `qmd serve --doors` starts it.")
    address: str = setting(Address(), "127.0.0.1", "The address to listen on.")
    port: int = setting(
        Whole(0, 65535), 5672, "The TCP port without TLS. 0: any free one, for tests."
    )
    tls_port: int = setting(
        Whole(0, 65535), 5671, "The TCP port with TLS; it needs a certificate. 0: any free one."
    )
    certificate: Path | None = setting(
        OptionalLocation(),
        "",
        "The certificate (PEM), with those between it and its authority. Empty: no port with TLS.",
    )
    key: Path | None = setting(OptionalSecretFile(), "", "Its key (PEM).")
    client_ca: Path | None = setting(
        OptionalLocation(),
        "",
        "Authorities (PEM) of clients' certificates. With it, clients may log in by EXTERNAL.",
    )
    users: Path = setting(
        Location(),
        "door-users",
        "The users of doors and the proofs of their passwords; see `qmd door user`.",
    )
    anonymous: bool = setting(
        Flag(), True, "Whether programs of this computer may connect without a login."
    )
    passwords_on_loopback: bool = setting(
        Flag(), False, "Whether programs of this computer may log in by password without TLS."
    )
    connections_max: int = setting(Whole(1, 65_535), 2000, "Connections at once.")
    sessions_max: int = setting(Whole(1, 65_535), 256, "Sessions of one connection.")
    links_max: int = setting(Whole(1, 65_535), 1024, "Links of one connection.")
    credit: int = setting(
        Whole(1, 100_000),
        1000,
        "Messages that a client may send over a link before the first is accepted.",
    )
    unsettled_max: int = setting(
        Whole(1, 1_000_000),
        10_000,
        "Messages that one connection has received and not settled; then it gets no more.",
    )
    unsettled_bytes: int = setting(
        Size("64KiB", "4GiB"), "64MiB", "The same, in bytes of these messages."
    )
    frame_bytes: int = setting(Size("512B", "16MiB"), "64KiB", "The largest frame.")
    message_bytes: int = setting(
        Size("1KiB", "64MiB"), "8MiB", "The largest message, with all its sections."
    )
    waiting_bytes: int = setting(
        Size("1MiB", "4GiB"),
        "16MiB",
        "Messages of one connection that wait for their commit; then it is not read.",
    )
    idle_timeout_s: float = setting(
        Duration("1s", "1h"), "60s", "How long a client may send nothing, not even a heartbeat."
    )
    login_timeout_s: float = setting(
        Duration("10ms", "10m"), "10s", "How long the handshake and the login may take together."
    )
    login_failures_max: int = setting(
        Whole(1, 1000),
        10,
        "Wrong passwords of one user from one address within a minute; then the user must wait.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SrmpSettings:
    """SRMP, MSMQ over HTTP: `qmd door srmp`, docs/srmp.md."""

    enabled: bool = setting(
        Flag(),
        False,
        "Whether messages for DIRECT=HTTP and HTTPS are handed to the door, and whether"
        " `qmd serve --doors` starts it.",
    )
    address: str = setting(Address(), "127.0.0.1", "The address to listen on.")
    port: int = setting(Whole(1, 65535), 80, "The TCP port for HTTP.")
    tls_port: int = setting(Whole(1, 65535), 443, "That for HTTPS; it needs a certificate.")
    certificate: Path | None = setting(
        OptionalLocation(), "", "The certificate (PEM) for HTTPS. Empty: HTTP only."
    )
    key: Path | None = setting(OptionalSecretFile(), "", "Its key (PEM).")
    client_ca: Path | None = setting(
        OptionalLocation(),
        "",
        "Authorities (PEM) of certificates of senders: the rights of `cert:` apply. Empty: none.",
    )
    ca: Path | None = setting(
        OptionalLocation(),
        "",
        "Authorities (PEM) of the certificates of other hosts. Empty: those of the system.",
    )
    client_certificate: Path | None = setting(
        OptionalLocation(),
        "",
        "The certificate (PEM) that proves this host to others over HTTPS. Empty: none.",
    )
    client_key: Path | None = setting(OptionalSecretFile(), "", "Its key (PEM).")
    gateway_port: int = setting(
        Whole(1, 65535), 1812, "The port on loopback at which the daemon reaches the door."
    )
    allowed: tuple[Network | str, ...] = setting(
        Hosts(), [], "Networks of the hosts that may send. Empty: all."
    )
    names: tuple[Network | str, ...] = setting(
        Hosts(), [], "Further names of this host in URLs, besides that by which it was reached."
    )
    receipts_url: str = setting(
        Text(),
        "",
        "The URL to which other hosts send receipts for streams, such as"
        " http://hosta/msmq/private$/order_queue$. Empty: that with the name of this host.",
    )
    receipts_from: tuple[Network | str, ...] = setting(
        Hosts(),
        [],
        "Networks of hosts whose receipts for streams are believed, besides the address to which"
        " the stream was sent: those behind a proxy.",
    )
    receipts_to: tuple[Network | str, ...] = setting(
        Hosts(),
        [],
        "Networks to which receipts for streams may be sent, besides the address of their sender:"
        " those of hosts that send by a proxy.",
    )
    inbound: tuple[str, ...] = setting(
        Texts(),
        [],
        'Queues that requests are for instead, such as "http://old/msmq/* -> DIRECT=OS:.\\orders".',
    )
    outbound: tuple[str, ...] = setting(
        Texts(),
        [],
        'URLs that messages are sent to instead, such as "http://hostb/* -> https://gate/b/*".',
    )
    streams: Path = setting(
        Location(),
        "srmp-streams",
        "The file of the URLs for receipts of streams that other hosts send, without its ending"
        " (.db).",
    )
    connections_max: int = setting(Whole(1, 65_535), 1000, "Connections at once.")
    connections_per_address_max: int = setting(
        Whole(1, 65_535), 100, "Connections at once from one address."
    )
    request_bytes_max: int = setting(Size("1kB", "64MiB"), "8MiB", "One request's body.")
    bodies_bytes_max: int = setting(
        Size("1MB", "10GB"), "128MiB", "The bodies of all requests that are not answered."
    )
    body_timeout_s: float = setting(
        Duration("10ms", "1h"), "60s", "How long the body of a request may take."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggersSettings:
    """Triggers: `qmd trigger run`, docs/triggers.md."""

    file: Path = setting(Location(), "triggers", "The definitions of the triggers.")
    runs_max: int = setting(Whole(1, 10_000), 16, "Programs and calls of all triggers at once.")
    targets: tuple[Network | str, ...] = setting(
        Hosts(),
        [],
        "Hosts and networks that triggers may call. A name permits none of the addresses of this"
        " computer.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """The door for metrics: `qmd door metrics`; docs/metrics.md."""

    enabled: bool = setting(Flag(), False, "Whether `qmd serve --doors` starts it.")
    address: str = setting(
        Address(),
        "127.0.0.1",
        "The address to listen on. Others than loopback need a certificate, and a token or client"
        " certificates.",
    )
    port: int = setting(Whole(0, 65535), 1809, "The TCP port. 0: any free one, for tests.")
    certificate: Path | None = setting(OptionalLocation(), "", "The certificate (PEM) for HTTPS.")
    key: Path | None = setting(OptionalSecretFile(), "", "Its key (PEM).")
    client_ca: Path | None = setting(
        OptionalLocation(),
        "",
        "Authorities (PEM) of client certificates, which scrapes then need.",
    )
    token_file: Path | None = setting(
        OptionalSecretFile(), "", "A file with the token that scrapes then need."
    )
    queues_max: int = setting(
        Whole(1, 10_000), 100, "Queues that have series of their own; the rest is `other`."
    )
    destinations_max: int = setting(
        Whole(1, 10_000), 100, "Destinations that have series of their own."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings:
    """Data pipelines: ranges reserved for readers, rows staged for one publication."""

    quiet_warning_s: float = setting(
        Duration("1s", "3650d"),
        "1d",
        "A warning is logged about a reader with reserved messages that sends no request for "
        "this time.",
    )
    reader_age_s: float = setting(
        Duration("0s", "3650d"),
        "90d",
        "A reader without requests for this time ends, after a warning: its reserved messages are "
        "ready again. 0s: never.",
    )
    stage_age_s: float = setting(
        Duration("1m", "3650d"),
        "1d",
        "Stages that are not published within this time are removed.",
    )
    staged_bytes_max: int = setting(
        Size("1MB", "1TB"),
        "1GB",
        "Limit of staged messages; they count in the computer quota too.",
    )
    published_rows_max: int = setting(
        Whole(1, 1_000_000), 200_000, "Messages of one publication, which is one commit."
    )
    publication_age_s: float = setting(
        Duration("1d", "3650d"),
        "365d",
        "How long the publications of a query are remembered after its last one.",
    )
