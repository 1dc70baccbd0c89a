"""The components that requests of clients are about."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qmd.access.things import ThingFinder
    from qmd.bulk.range_read import Ranges
    from qmd.bulk.reservations import Reserving
    from qmd.bulk.staging import Staging
    from qmd.directory.interface import Directory
    from qmd.directory.registration import Publishing
    from qmd.directory.resolver import Resolver
    from qmd.events.recorder import Recorder
    from qmd.history.event_query import EventLog
    from qmd.history.message_lookup import Inquiry
    from qmd.maintenance.disk_watch import DiskWatch
    from qmd.maintenance.housekeeping import Housekeeping
    from qmd.naming.destinations import Routes
    from qmd.operations.dead_letter_summary import DeadLetters
    from qmd.operations.import_messages import Importing
    from qmd.operations.move import Moving
    from qmd.operations.queue_admin import Administration
    from qmd.operations.receive import Reading
    from qmd.operations.receive_selected import Picking
    from qmd.operations.request_outcomes import RequestOutcomes
    from qmd.operations.resend import Resending
    from qmd.operations.send import Sending
    from qmd.operations.transactions import Transactions
    from qmd.operations.two_phase_commit import Branches
    from qmd.outcomes.acknowledgments import Acknowledging
    from qmd.outcomes.nack import Refusing
    from qmd.outcomes.undeliverable import Undelivered
    from qmd.peers.identity_conflicts import Identities
    from qmd.peers.link import Link
    from qmd.peers.next_hop import Routing
    from qmd.peers.redirect import Redirecting
    from qmd.peers.sessions import Peers
    from qmd.queues.incoming_sequences import IncomingStreams
    from qmd.queues.outgoing_queues import Outgoing
    from qmd.queues.registry import LocalQueues
    from qmd.queues.usage import Usage
    from qmd.runtime.fair_scheduler import Turns
    from qmd.runtime.services import Services
    from qmd.transfer.confirmation import Confirmations
    from qmd.transfer.incoming import Incoming
    from qmd.transfer.relay import Relaying
    from qmd.transfer.release import Releasing
    from qmd.transfer.sequence_renewal import SequenceRenewal


@dataclass(frozen=True, slots=True)
class Components:
    """One for a queue manager: what the handlers of verbs call."""

    services: Services
    acknowledging: Acknowledging
    administration: Administration
    branches: Branches
    confirmations: Confirmations
    dead_letters: DeadLetters
    directory: Directory
    disk_watch: DiskWatch
    event_log: EventLog
    housekeeping: Housekeeping
    identities: Identities
    importing: Importing
    incoming: Incoming
    incoming_streams: IncomingStreams
    inquiry: Inquiry
    local_turns: Turns
    make_link: Callable[..., Link]
    moving: Moving
    outgoing: Outgoing
    peers: Peers
    picking: Picking
    publishing: Publishing
    queues: LocalQueues
    ranges: Ranges
    reading: Reading
    recorder: Recorder
    redirecting: Redirecting
    refusing: Refusing
    releasing: Releasing
    relaying: Relaying
    reload_directory: Callable[[], Awaitable[None]]
    request_outcomes: RequestOutcomes
    resending: Resending
    reserving: Reserving
    resolver: Resolver
    routes: Routes
    routing: Routing
    sending: Sending
    sequence_renewal: SequenceRenewal
    staging: Staging
    things: ThingFinder
    transactions: Transactions
    undelivered: Undelivered
    usage: Usage
