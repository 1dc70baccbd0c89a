# ruff: noqa: RUF009 (setting() is dataclasses.field with more arguments)
"""Settings of the queue manager: key, default, allowed values and meaning of each.

This declaration is the only source for the loader, the file that `qmd init` writes, and the manual.
It is data, one entry for each key, so the length of the module is that of the manual.
An attribute is named as its key in the file, followed by the unit: `ack_timeout` is
`ack_timeout_s`, seconds; `computer` is `computer_bytes`.
"""

from __future__ import annotations

from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from qmd.config.route_rules import Hop, Pattern, Rule
from qmd.config.tls_rules import TlsRule
from qmd.config.value_types import (
    Accounts,
    Address,
    Choice,
    Choices,
    ComputerName,
    ComputerNames,
    Duration,
    Durations,
    Flag,
    Hosts,
    Kind,
    LdapServers,
    Location,
    Mode,
    Network,
    Networks,
    OptionalDuration,
    OptionalLocation,
    OptionalSecretFile,
    OptionalSize,
    Patterns,
    Places,
    Routes,
    SecretFile,
    SecretFiles,
    Size,
    Text,
    TlsRules,
    Whole,
)

T = TypeVar("T")

MEMORY_PART = 8  # divisor of the memory, for each budget without a configured size
MEMORY_BYTES_MIN, MEMORY_BYTES_MAX = 64 * 1024 * 1024, 1024 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of one section, as in the file."""

    section: str
    key: str
    attribute: str
    kind: Kind[object]
    default: object
    meaning: str


def setting(kind: Kind[T], default: object, meaning: str) -> T:
    """Return a field of a section; `default` is its value as written in the file."""
    return field(default=kind.parse(default), metadata={"setting": (kind, default, meaning)})


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueManagerSettings:
    """Name and data folder of this queue manager."""

    name: str = setting(
        ComputerName(),
        "",
        "The computer's name, as other computers write it in DIRECT=OS:name\\queue. Empty: the"
        " host name.",
    )
    aliases: tuple[str, ...] = setting(
        ComputerNames(), [], "Other names of this computer that stand for it in format names."
    )
    data: Path = setting(
        Location(), "data", "The folder of the messages, the identity and the queues."
    )
    run_as_root: bool = setting(
        Flag(),
        False,
        "Whether the daemon may run as root. It needs no privilege of root.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenSettings:
    """Addresses and ports for connections from other queue managers."""

    address: str = setting(
        Address(),
        "127.0.0.1",
        "The address to listen on. The default allows no connections from other computers.",
    )
    port: int = setting(
        Whole(0, 65535),
        1801,
        "The TCP port; other queue managers expect 1801. 0: any free one, for tests.",
    )
    reached_at: tuple[Hop, ...] = setting(
        Places(),
        [],
        "Further addresses at which other hosts reach this one, if NAT or a container translates "
        "them. Without them those hosts cannot prove to be the ones that this host knows by a key.",
    )
    ping: bool = setting(Flag(), False, "Whether to answer the protocol's ping, over UDP.")
    ping_port: int = setting(
        Whole(0, 65535),
        3527,
        "The UDP port for it; other queue managers expect 3527. 0: any free one.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PeersSettings:
    """Access for other queue managers, and limits on their sessions."""

    allow: tuple[Network, ...] = setting(
        Networks(),
        ["127.0.0.0/8", "::1/128"],
        "Connections from elsewhere are closed before a byte is read.",
    )
    large_messages: tuple[Network | str, ...] = setting(
        Hosts(),
        [],
        "Hosts that run qmd too: messages to and from them may be larger than 4MiB, up to "
        "message_bytes_max. Name the address from which a host connects, and the names and "
        "addresses by which messages are sent to it; there, name this one.",
    )
    relays: tuple[Network | str, ...] = setting(
        Hosts(),
        [],
        "Hosts that bring messages of other computers here, by the address from which they connect"
        " (or its name): docs/routing.md. Hops of [routing] routes and the routing servers of the"
        " directory need no entry. From all other hosts, messages of which they are not the source"
        " are refused.",
    )
    acknowledge_to: tuple[Pattern, ...] = setting(
        Patterns(),
        [],
        "Computers that get acknowledgments when messages of others name administration queues"
        " there. Without an entry, an acknowledgment goes only to the computer that sent the"
        " message, or to one to which applications of this computer send messages.",
    )
    sessions_max: int = setting(Whole(1, 65535), 1000, "Sessions at once, from all peers.")
    sessions_per_peer_max: int = setting(
        Whole(1, 65535), 500, "Sessions at once from one address; at most sessions_max."
    )
    handshakes_max: int = setting(
        Whole(1, 65535),
        256,
        "Connections at once that have not finished the handshake; the oldest is closed to make"
        " room.",
    )
    handshake_timeout_s: float = setting(
        Duration("10ms", "10m"), "60s", "How long the handshake may take, [MS-MQQB] 3.1.2.1."
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingSettings:
    """Routes of messages, and relaying for other computers: docs/routing.md."""

    routes: tuple[Rule, ...] = setting(
        Routes(),
        [],
        "Routes to destinations over other queue managers. The first matching route is taken; "
        "its hops are tried in turn. Without a route a destination is reached directly.",
    )
    relay_for: tuple[Network | str, ...] = setting(
        Hosts(),
        [],
        "Hosts that may relay messages to other computers through this one, by the address from"
        " which they connect. Empty: none.",
    )
    relay_to: tuple[Pattern, ...] = setting(
        Patterns(),
        [],
        "Which direct names in messages that arrive stand for other computers. All others stand"
        " for this one, regardless of their host part. Names with a GUID need no entry.",
    )
    relay_bytes_max: int = setting(
        Size("1MB", "1000TB"),
        "1GB",
        "Limit of messages that wait here to be relayed.",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotasSettings:
    """Limits on stored messages. A full queue refuses messages; it never drops any."""

    computer_bytes: int = setting(
        Size("1MB", "1000TB"), "8GB", "All messages of this queue manager together."
    )
    queue_bytes: int = setting(
        Size("1kB", "1000TB"), "4GB", "One queue, when it is created without a quota."
    )
    journal_bytes: int = setting(Size("1kB", "1000TB"), "1GB", "One journal queue, likewise.")
    message_bytes_max: int = setting(
        Size("1kB", "48MiB"),
        "4MiB",
        "One message's body. The packet that other hosts accept has 4MiB with its headers; a"
        " larger "
        "body is for queues of this computer and for hosts of [peers] large_messages.",
    )
    express_bytes: int = setting(
        Size("1MB", "1TB"), "256MB", "Memory for express messages, which are never on disk."
    )
    disk_reserve_bytes: int = setting(
        Size("1MB", "1TB"), "64MB", "Kept free on the disk, so that a full one can be drained."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsequencesSettings:
    """Limits on what messages of other hosts cause here, besides being stored."""

    queues_per_host: int = setting(
        Whole(1, 32767),
        1000,
        "Outgoing queues at once for acknowledgments that the messages of one host ask for. Many"
        " computers may share the address of one host.",
    )
    queues: int = setting(
        Whole(1, 32767), 8192, "The same for all hosts together. The others are for applications."
    )
    acknowledgments_per_host: int = setting(
        Whole(1, 100_000_000), 50_000, "Acknowledgments that wait here because of one host."
    )
    waiting_per_host_bytes: int = setting(
        Size("10kB", "1TB"), "64MiB", "Bytes of these acknowledgments and of confirmations."
    )
    waiting_bytes: int = setting(Size("10kB", "1TB"), "256MiB", "The same for all hosts together.")
    age_s: float = setting(
        Duration("1s", "365d"),
        "3d",
        "How long such an acknowledgment waits for the computer that it goes to.",
    )
    copies_per_second: int = setting(
        Whole(1, 1_000_000),
        100,
        "Acknowledgments to further administration queues: a message can name a hundred. The"
        " first one is always made. One host gets as many a second, averaged over 10 seconds.",
    )
    dead_letters_bytes: int = setting(
        Size("10kB", "1000TB"),
        "512MiB",
        "Dead letters of messages of other hosts that were refused or have expired here; at most a"
        " sixteenth of the computer quota, in which they do not count. One host gets half of it."
        " The oldest one of the host with the most bytes ends to make room.",
    )
    dead_letter_age_s: float = setting(
        Duration("1m", "3650d"), "14d", "How long such a dead letter is kept."
    )
    connections: int = setting(
        Whole(1, 1000),
        16,
        "Connections that are being made at once only for acknowledgments; one host gets a"
        " quarter of them.",
    )


class Budgets(NamedTuple):
    """Budgets in bytes."""

    packets: int
    requests: int
    transactions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySettings:
    """Memory budgets; one address, process or connection gets at most half of each."""

    packets_bytes: int | None = setting(
        OptionalSize("1MB", "1TB"),
        "",
        "Packets of more than 64KiB from other queue managers, until they are complete and taken. "
        "Without room the connection is not read; the slowest connections are closed when"
        " others wait. "
        "Empty: an eighth of the memory that the daemon may have, 64MiB to 1GiB.",
    )
    requests_bytes: int | None = setting(
        OptionalSize("1MB", "1TB"),
        "",
        "Requests of applications until they are begun; as much again for answers that are not "
        "read. Without room the connection is not read; the slowest connections are closed when"
        " others wait. Empty: as for packets.",
    )
    transactions_bytes: int | None = setting(
        OptionalSize("1MB", "1TB"),
        "",
        "Messages that transactions have sent and not committed. Where there is no room a send is "
        "refused. Empty: as for packets.",
    )

    def of(self, memory_bytes: int) -> Budgets:
        """Return the budgets of a daemon with this amount of memory."""
        share = min(max(memory_bytes // MEMORY_PART, MEMORY_BYTES_MIN), MEMORY_BYTES_MAX)
        chosen = (self.packets_bytes, self.requests_bytes, self.transactions_bytes)
        return Budgets(*(share if each is None else each for each in chosen))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverySettings:
    """Timers and windows of the sessions and transactional sequences."""

    time_to_reach_queue_s: float = setting(
        Duration("1s", "49710d"),
        "4d",
        "Default time-to-reach-queue of a message.",
    )
    downtime_max_s: float = setting(
        Duration("0s", "49710d"),
        "30d",
        "For how long the queue manager may have been down, by the wall clock of a computer"
        " that was rebooted. A longer time is not counted against the lifetimes of messages.",
    )
    window_size: int = setting(
        Whole(1, 32767), 64, "Messages that a peer may send before we acknowledge one."
    )
    ack_timeout_s: float = setting(
        Duration("10ms", "120s"),
        "20s",
        "How long we wait for a session ack. The specification allows 20s to 120s.",
    )
    recoverable_ack_timeout_min_s: float = setting(
        Duration("1ms", "120s"),
        "500ms",
        "The least delay of session acks of recoverable messages that we announce; the "
        "specification allows 500ms to 120s.",
    )
    acknowledge_at_once: bool = setting(
        Flag(), True, "Whether acknowledgments are sent as soon as their messages are committed."
    )
    order_ack_timeout_s: float = setting(
        Duration("1ms", "60s"),
        "500ms",
        "How long an order ack waits for more messages when it does not leave at once.",
    )
    order_ack_delay_max_s: float = setting(
        Duration("1ms", "10m"), "10s", "How long a busy sequence may postpone its order ack."
    )
    resend_s: tuple[float, ...] = setting(
        Durations(Duration("10ms", "7d"), 32),
        ["30s", "30s", "30s", "5m", "5m", "5m", "30m", "30m", "30m", "6h"],
        "When unacknowledged transactional messages are sent again; the last one repeats.",
    )
    connect_timeout_s: float = setting(
        Duration("10ms", "10m"), "10s", "How long connecting to a peer may take."
    )
    retry_first_s: float = setting(
        Duration("1ms", "1h"), "500ms", "The pause after the first failed connection; it doubles."
    )
    retry_max_s: float = setting(Duration("1ms", "1d"), "30s", "The longest such pause.")
    idle_close_s: float = setting(
        Duration("10ms", "1d"),
        "300s",
        "A session without messages for this time is closed.",
    )
    message_id_history_entries: int = setting(
        Whole(1, 1_000_000),
        10_000,
        "Plain messages of each source that are remembered at least, to notice duplicates; those "
        "with neighbouring numbers count as one.",
    )
    message_id_history_age_s: float = setting(
        Duration("1s", "7d"),
        "30m",
        "How long each is remembered. The last 1000 of a source are remembered for a week beyond "
        "its last one.",
    )
    xact_delay_receive_nack_s: float | None = setting(
        OptionalDuration("0s", "49710d"),
        "",
        "How long after its time-to-be-received the confirmation of a transactional message is "
        "awaited. Empty: as long again, or its time-to-reach-queue where that was set and is "
        "shorter.",
    )
    xact_dead_letter_always: bool = setting(
        Flag(),
        False,
        "Whether every transactional message asks for dead-lettering, and with it for confirmation "
        "of its receipt, regardless of its application.",
    )
    insecure_nacks: bool = setting(
        Flag(),
        False,
        "Whether negative acknowledgments that disclose our queues and keys are sent, [MS-MQQB]"
        " 3.1.1.3.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionsSettings:
    """Transactions of applications, which are in memory until they commit."""

    idle_s: float = setting(
        Duration("100ms", "7d"),
        "5m",
        "A transaction without a request for this time is aborted.",
    )
    live_max: int = setting(Whole(1, 1_000_000), 10_000, "Transactions under way at once.")
    messages_bytes_max: int = setting(
        Size("1KiB", "1GiB"), "64MiB", "Bodies of the messages that one of them sends."
    )
    outcome_age_s: float = setting(
        Duration("1m", "30d"),
        "1h",
        "How long the result of a request or transaction is kept, for a client that asks again.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectorySettings:
    """The directory of public queues, distribution lists and other computers."""

    kind: str = setting(
        Choice(("none", "file", "active-directory")),
        "none",
        "None: workgroup mode, for direct and private names. File: a TOML file. Active-directory: a"
        " domain controller.",
    )
    file: Path = setting(
        Location(), "directory.toml", 'The file of kind "file"; several hosts may share it.'
    )
    reload_s: float = setting(
        Duration("10ms", "1h"),
        "1s",
        "How often the file is checked for changes.",
    )
    timeout_s: float = setting(
        Duration("10ms", "10m"),
        "5s",
        "How long a send or another request waits for the directory.",
    )
    age_s: float = setting(
        Duration("1s", "7d"),
        "5m",
        "How long an answer of the directory is used without a new query.",
    )
    negative_age_s: float = setting(
        Duration("1s", "1d"),
        "15s",
        "The same for negative answers.",
    )
    pause_s: float = setting(
        Duration("0s", "10m"),
        "2s",
        "How long an unavailable directory is not queried again.",
    )
    servers: tuple[str, ...] = setting(
        LdapServers(),
        [],
        "The domain controllers of kind active-directory; they are tried in this order.",
    )
    join: bool = setting(
        Flag(),
        False,
        "Whether this queue manager is in the Active Directory itself and has public queues there:"
        " at its very first start it takes its id from there.",
    )
    start_tls: bool = setting(
        Flag(), False, "Whether ldap:// servers are asked to begin TLS, and refused without it."
    )
    ca_file: Path | None = setting(
        OptionalLocation(),
        "",
        "The CA certificates that sign for the servers. Empty: those of the system.",
    )
    server_name: str = setting(
        Text(), "", "The name in the servers' certificates. Empty: the host of the server."
    )
    bind: str = setting(
        Choice(("simple", "negotiate", "external")),
        "simple",
        "Simple: name and password, over TLS. Negotiate: Kerberos or NTLM. External: the client's"
        " certificate.",
    )
    user: str = setting(
        Text(),
        "",
        "The account for the directory: name@domain, DOMAIN\\name or a distinguished name; a "
        "computer account is name$@domain.",
    )
    password_file: Path | None = setting(
        OptionalSecretFile(),
        "",
        "The file with the password. Empty: it is in the environment variable QMD_LDAP_PASSWORD.",
    )
    plain_password: bool = setting(
        Flag(), False, "Whether a password may cross the network without TLS, readable by all."
    )
    certificate: Path | None = setting(
        OptionalLocation(), "", "The client's certificate, for bind external."
    )
    certificate_key: Path | None = setting(
        OptionalSecretFile(), "", "Its key, without a password. Empty: in the certificate's file."
    )
    base: str = setting(
        Text(),
        "",
        "The name below which searches begin. Empty: the whole domain of the server.",
    )
    lists_base: str = setting(
        Text(), "", "Where `qmd dl create` puts distribution lists. Empty: CN=Users of the domain."
    )
    connect_timeout_s: float = setting(
        Duration("10ms", "10m"),
        "3s",
        "How long connecting to one server may take, with TLS and bind.",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSettings:
    """The database; there is seldom a reason to change these."""

    commit_rows_max: int = setting(Whole(1, 100_000), 2048, "Rows that one commit may write.")
    checkpoint_pages: int = setting(
        Whole(100, 1_000_000), 4000, "Pages of 8 KiB in the write-ahead log before a checkpoint."
    )
    key_files: tuple[Path, ...] = setting(
        SecretFiles(),
        [],
        "Files with the keys that encrypt packets on the disk, outside of the data folder: the"
        " first for new packets, the others for older ones. Empty: packets are not encrypted.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsSettings:
    """The flight recorder: the history of each message, in the database."""

    enabled: bool = setting(
        Flag(),
        True,
        "Whether the history is recorded. Without it, the fate of a message cannot be explained.",
    )
    size_bytes: int = setting(
        Size("1MB", "1000TB"),
        "256MiB",
        "How much of it is kept; the oldest events are removed first.",
    )
    age_s: float = setting(Duration("1m", "3650d"), "14d", "How long it is kept at most.")
    keep_unshipped: bool = setting(
        Flag(),
        False,
        "Whether size and age wait for `qmd ship`. A disk that is full does not wait for it.",
    )
    ask: bool = setting(
        Flag(),
        True,
        "Whether the queue manager at the other end is queried too.",
    )
    answer: tuple[Network, ...] = setting(
        Networks(),
        ["127.0.0.0/8", "::1/128"],
        "Hosts that may query the history of messages exchanged with them.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSecuritySettings:
    """Signatures and encryption of messages."""

    hash_algorithms: tuple[str, ...] = setting(
        Choices(("sha512", "sha256", "sha1", "md5")),
        ["sha512", "sha256"],
        "Hash algorithms of signatures that are accepted; sha1 and md5 are broken.",
    )
    encryption_algorithms: tuple[str, ...] = setting(
        Choices(("aes256", "aes192", "aes128", "rc4", "rc2")),
        ["aes256", "aes192", "aes128"],
        "Algorithms of encrypted messages that are accepted; rc4 and rc2 are broken.",
    )
    msmq_1_signatures: bool = setting(
        Flag(),
        False,
        "Whether signatures of MSMQ 1.0 count, which do not cover the destination.",
    )
    authorities: Path | None = setting(
        OptionalLocation(),
        "",
        "Authorities (PEM) of the certificates of senders. With them only their certificates and"
        " registered ones count. Empty: every valid certificate does.",
    )
    revoked: Path | None = setting(
        OptionalLocation(), "", "Revocation lists (PEM) of these authorities."
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """The log, written to standard error."""

    level: str = setting(
        Choice(("debug", "info", "warning", "error")), "info", "The least important level written."
    )
    format: str = setting(
        Choice(("auto", "console", "json")),
        "auto",
        'Auto: "console" on a terminal, "json" (one object a line) otherwise.',
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The complete configuration."""

    queue_manager: QueueManagerSettings = field(default_factory=QueueManagerSettings)
    listen: ListenSettings = field(default_factory=ListenSettings)
    peers: PeersSettings = field(default_factory=PeersSettings)
    tls: TlsSettings = field(default_factory=TlsSettings)
    routing: RoutingSettings = field(default_factory=RoutingSettings)
    control: ControlSettings = field(default_factory=ControlSettings)
    access: AccessSettings = field(default_factory=AccessSettings)
    remote: RemoteSettings = field(default_factory=RemoteSettings)
    http: HttpSettings = field(default_factory=HttpSettings)
    quotas: QuotasSettings = field(default_factory=QuotasSettings)
    consequences: ConsequencesSettings = field(default_factory=ConsequencesSettings)
    memory: MemorySettings = field(default_factory=MemorySettings)
    delivery: DeliverySettings = field(default_factory=DeliverySettings)
    transactions: TransactionsSettings = field(default_factory=TransactionsSettings)
    directory: DirectorySettings = field(default_factory=DirectorySettings)
    pipeline: PipelineSettings = field(default_factory=PipelineSettings)
    storage: StorageSettings = field(default_factory=StorageSettings)
    events: EventsSettings = field(default_factory=EventsSettings)
    message_security: MessageSecuritySettings = field(default_factory=MessageSecuritySettings)
    amqp: AmqpSettings = field(default_factory=AmqpSettings)
    log: LogSettings = field(default_factory=LogSettings)


SECTIONS: dict[str, type[Any]] = {
    "queue_manager": QueueManagerSettings,
    "listen": ListenSettings,
    "peers": PeersSettings,
    "tls": TlsSettings,
    "routing": RoutingSettings,
    "control": ControlSettings,
    "access": AccessSettings,
    "remote": RemoteSettings,
    "http": HttpSettings,
    "quotas": QuotasSettings,
    "consequences": ConsequencesSettings,
    "memory": MemorySettings,
    "delivery": DeliverySettings,
    "transactions": TransactionsSettings,
    "directory": DirectorySettings,
    "pipeline": PipelineSettings,
    "storage": StorageSettings,
    "events": EventsSettings,
    "message_security": MessageSecuritySettings,
    "amqp": AmqpSettings,
    "log": LogSettings,
}


def settings_of(section: str) -> dict[str, Setting]:
    """Return the keys of one section, in the order of declaration."""
    found = (_setting(section, item) for item in fields(SECTIONS[section]))
    return {item.key: item for item in found}


def _setting(section: str, item: Field[Any]) -> Setting:
    kind, default, meaning = item.metadata["setting"]
    key = item.name.removesuffix(kind.attribute_suffix)
    return Setting(section, key, item.name, kind, default, meaning)
