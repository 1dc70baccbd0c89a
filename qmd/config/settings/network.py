"""Other queue managers: listening, peers and routes."""

from __future__ import annotations

from dataclasses import dataclass

from qmd.config.route_rules import Hop, Pattern, Rule
from qmd.config.settings.declaration import setting
from qmd.config.value_types import (
    Address,
    Duration,
    Flag,
    Hosts,
    Network,
    Networks,
    Patterns,
    Places,
    Routes,
    Size,
    Whole,
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
