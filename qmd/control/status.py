"""Status for operators: the state of the queue manager as plain values for JSON."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import qmd
from protocol.identifiers import guid_text
from protocol.names.format_name import PublicName
from qmd.access.rights import ALL_RIGHTS, Rights
from qmd.control_protocol import messages as frames
from qmd.history.event_query import time_text
from qmd.queues import quotas
from qmd.queues.local_queue import LocalQueue
from qmd.transfer import sequence_renewal
from storage.tables.queues import DEAD_LETTER_ID, TRANSACTIONAL_DEAD_LETTER_ID

if TYPE_CHECKING:
    from collections.abc import Iterable

    from qmd.control.components import Components

Value = dict[str, Any]


def hello(components: Components) -> Value:
    return {
        "version": frames.VERSION,
        "release": qmd.__version__,
        "queue_manager": guid_text(components.services.id),
        "name": components.services.name,
        "message_bytes_max": components.services.settings.quotas.message_bytes_max,
    }


def status(components: Components) -> Value:
    """Return the state of the queue manager in one object, as `qmd status` shows it."""
    return {
        **totals(components),
        "memory": memory(components),
        "outcomes": components.outcome_limit.status(),
        "directory": directory(components),
        "tls": components.tls.status(),
        "consequences": {
            "acknowledgments": components.answer_limits.status(),
            "dead_letters": components.refused_letters.status(),
            "events_not_listed": components.recorder.shares.left_out,
            "look_ups": components.name_lookups.status(),
        },
        "two_of_one_identity": _identity_conflicts(components),
        "sequences_in_doubt": _sequences_in_doubt(components),
    }


def totals(components: Components) -> Value:
    """Return the identity, the contents, the storage and the counts since the start."""
    parts = (identity, _contents, _storage, traffic)
    return {name: value for part in parts for name, value in part(components).items()}


def memory(components: Components) -> Value:
    """Return the budgets in memory, and the bytes that each has in use."""
    budgets, names = components.services.memory, ("packets", "requests", "answers", "transactions")
    return {name: getattr(budgets, name).status() for name in names}


def brief(components: Components) -> Value:
    """Return the part of the status that every user of the host may see."""
    return identity(components) | {"brief": True}


def identity(components: Components) -> Value:
    """Return the names, the version and the times of the queue manager."""
    services = components.services
    return {
        "name": services.name,
        "queue_manager": guid_text(services.id),
        "release": qmd.__version__,
        "clock_s": services.clock.now_s,
        "uptime_s": round(services.loop.time() - services.lifecycle.started_at, 1),
        "listen": [f"{host}:{port}" for host, port in services.listening],
    }


def _contents(components: Components) -> Value:
    """Return the numbers of queues and messages."""
    outgoing = components.outgoing.queues
    by_id = components.queues.by_id
    dead_letters = [by_id[each].messages for each in (DEAD_LETTER_ID, TRANSACTIONAL_DEAD_LETTER_ID)]
    return {
        **_own_contents(by_id.values()),
        "dead_letters": sum(dead_letters),
        "outgoing_messages": sum(queue.messages for queue in outgoing),
        **_delayed(components),
        "awaiting_messages": sum(queue.awaiting.messages for queue in outgoing),
    }


def _own_contents(queues: Iterable[LocalQueue]) -> Value:
    """Count queues, and messages that have not ended, in one pass: there may be 32,000."""
    count = messages = 0
    for queue in queues:
        if queue.is_system or queue.is_journal:
            continue
        count += queue.parent is None
        messages += queue.messages
    return {"queues": count, "messages": messages}


def _delayed(components: Components) -> Value:
    """Return the number of delayed messages, and when the next one may be due."""
    messages, size = components.delayed.totals
    next_at_ms = components.delayed.next_at_ms if messages else None
    return {
        "delayed_messages": messages,
        "delayed_bytes": size,
        "delayed_until": None if next_at_ms is None else time_text(next_at_ms),
    }


def _storage(components: Components) -> Value:
    """Return quotas, the disk, and the periodic work that fails."""
    warnings = quotas.warnings(components.usage, components.queues.by_key.values())
    return storage(components) | {"quota_warnings": warnings}


def storage(components: Components) -> Value:
    """Return the same without the quotas of queues, which takes a time that is always short."""
    storage, usage = components.services.storage, components.usage
    return {
        "bytes": usage.bytes,
        "quota_bytes": usage.quota_bytes,
        "quota_used_percent": usage.used_percent,
        "disk_full": not storage.room(components.services.loop.time()),
        "disk_full_s": components.disk_watch.full_s,
        "disk_free_bytes": storage.free_bytes,
        "commits_wait": storage.obstacle or None,
        **components.row_watch.status(),
        "housekeeping_failing": [
            {"act": act, "reason": reason}
            for act, reason in components.housekeeping.failing.items()
        ],
    }


def traffic(components: Components) -> Value:
    """Return the sessions, and the counts of messages since the start."""
    incoming = components.incoming
    return {
        "sessions": len(components.peers.connections),
        "sent": components.message_sender.sent_count,
        "transmitted": components.outgoing.transmitted_count,
        "resent": sum(queue.resent_count for queue in components.outgoing.queues),
        "received": incoming.received_count,
        "duplicates_refused": incoming.duplicate_count + incoming.rejected_count,
        "refused": components.nacks.count,
        "relayed": components.relay_store.relayed_count,
        "access_refused": components.access_checks.refused_count,
    }


def _identity_conflicts(components: Components) -> list[Value]:
    return [
        {
            "queue_manager": guid_text(each.queue_manager),
            "addresses": list(each.hosts),
            "time": _time(each.at_s),
            "reason": each.reason,
            "remedy": each.remedy,
        }
        for each in components.identities.conflicts
    ]


def _sequences_in_doubt(components: Components) -> list[Value]:
    return [
        {
            "destination": queue.destination,
            "messages": queue.sequence.outstanding,
            "reason": queue.doubt or sequence_renewal.unanswered(queue),
            "remedy": sequence_renewal.remedy(queue),
        }
        for queue in components.outgoing.queues
        if queue.doubt or sequence_renewal.unanswered(queue)
    ]


def directory(components: Components) -> Value:
    """Return kind, state and problem of the directory; `directory_status` has all of it."""
    status = components.directory.status()
    facts = {"kind": status.kind, "state": status.state}
    return facts | ({"problem": status.problem} if status.problem else {})


def transactions(components: Components, rights: Rights = ALL_RIGHTS) -> list[Value]:
    """Return the transactions in progress that the client began, the oldest first.

    A client with all rights gets those of all clients.
    """
    now = components.services.loop.time()
    return [
        {
            "transaction": shown_id.hex(),
            "state": "committing" if each.is_committing else "active",
            "age_s": round(now - each.began_at, 3),
            "idle_s": round(now - each.used_at, 3),
            "idle_limit_s": each.idle_s,
            "sent": len(each.messages),
            "bytes": each.bytes,
            "received": each.taken_count,
            "queues": sorted(queue.name for queue, mine in each.reader.taken.items() if mine),
        }
        for each in components.transactions.live
        if (shown_id := rights.shown_id(each.id)) is not None
    ]


def queue(queue: LocalQueue) -> Value:
    return {
        "name": queue.name,
        "format_name": queue.format_name,
        "label": queue.label,
        "transactional": queue.transactional,
        "journal": queue.journal,
        "system": queue.is_system,
        "messages": queue.messages,
        "bytes": queue.own_bytes,
        "quota_bytes": queue.payer.quota_bytes,
        "quota_used_percent": queue.payer.used_percent,
        "quota_warning_percent": queue.payer.noticed_percent or None,
        "journal_quota_bytes": queue.journal_quota_bytes,
        "authenticate": queue.authenticate,
        "privacy": queue.privacy,
        "groups": queue.groups is not None,
        "groups_owned": 0 if queue.groups is None else queue.groups.owned,
        "quota_used_bytes": queue.payer.bytes,
        "parent": None if queue.parent is None else queue.parent.name,
        "subqueues": [
            {"name": each.name, "messages": each.messages, "bytes": each.bytes}
            for each in queue.subqueues
        ],
        "journal_messages": 0 if queue.own_journal is None else queue.own_journal.messages,
        "journal_bytes": 0 if queue.own_journal is None else queue.own_journal.bytes,
        "retry": None
        if queue.payer.retry is None
        else queue.payer.retry._asdict() | {"end": queue.payer.retry.end.value},
        "delayed_messages": 0 if queue.delayed is None else queue.delayed.messages,
        "delayed_bytes": 0 if queue.delayed is None else queue.delayed.bytes,
        "taken": queue.reserved.unready,
        "readers_waiting": len(queue.waiters),
        "created_at": _time(queue.created_at_s),
        "number": queue.id,
        "public_name": str(PublicName(queue.guid)),
        "public": queue.is_public,
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
