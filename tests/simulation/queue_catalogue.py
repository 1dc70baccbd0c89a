"""The queues that worlds have, and the kinds of messages that go to them (declared data)."""

from __future__ import annotations

from tests.simulation.applications import MessageKind, Queue
from tests.simulation.message_records import Outcome

QUEUES = (
    Queue("orders", True),
    Queue("invoices", True),
    Queue("news", False),
    Queue("small_orders", True, quota_bytes=6_000),
    Queue("small_news", False, quota_bytes=6_000),
    Queue("scratch", False),  # is purged, deleted and created again
    Queue("scratch_orders", True),  # likewise
    Queue("work", True),  # is read in transactions that forward messages
)
# Some worlds have each of these as well.
OPTIONAL_PROBABILITY = 0.3
OPTIONAL_QUEUES = (
    Queue("audited", True, journal=True),
    Queue("audited_news", False, journal=True),
    Queue("sorted", True),  # its messages are moved to a subqueue before they are received
    Queue("sorted_news", False),
    Queue("picky", True),  # its readers reject some messages
    Queue("picky_news", False),
)
# In some worlds several readers share these queues, so that the order is not defined.
SHARED_PROBABILITY = 0.25
SHARED_QUEUES = (Queue("shared", True), Queue("shared_news", False))
SHARED_NAMES = frozenset(queue.name for queue in SHARED_QUEUES)
# In some of these worlds their readers take under locks, and the queues have groups.
LOCKS_PROBABILITY = 0.7
GROUPS_PROBABILITY = 0.6
TOPICS_PROBABILITY = 0.3  # of worlds with lists
# In some worlds readers of pipelines read these queues, which a sweeper empties behind them; they
# take the place of readers of other queues, or stand beside them.
RANGES_PROBABILITY, RANGE_PROBABILITY = 0.3, 0.5
VIEWED_QUEUES = (Queue("viewed", True), Queue("viewed_news", False))
VIEWED_NAMES = frozenset(queue.name for queue in VIEWED_QUEUES)
# In some worlds these queues have no reader, so that their messages expire.
UNREAD_PROBABILITY = 0.25
UNREAD = (Queue("attic_orders", True), Queue("attic", False))

# The messages that writers send; a kind is drawn as often as it is named.
_DEAD = Outcome.RECEIVED_OR_DEAD
KINDS = (
    *(MessageKind("orders", "transactional"),) * 4,
    *(MessageKind("invoices", "transactional"),) * 2,
    *(MessageKind("news", "recoverable"),) * 4,
    *(MessageKind("news", "express"),) * 2,
    MessageKind("orders", "transactional", _DEAD, lifetime_s=2),
    MessageKind("news", "recoverable", _DEAD, lifetime_s=2),
    MessageKind("news", "express", _DEAD, lifetime_s=1),
    *(MessageKind("invoices", "transactional", _DEAD, receive_within_s=1),) * 2,
    MessageKind("news", "recoverable", _DEAD, receive_within_s=1),
    MessageKind("small_orders", "transactional", _DEAD),
    MessageKind("small_news", "recoverable", _DEAD),
    MessageKind("small_news", "express", _DEAD),
    MessageKind("scratch", "recoverable", Outcome.ANY, keeps=True),
    MessageKind("scratch", "express", Outcome.ANY, keeps=True),
    MessageKind("scratch_orders", "transactional", Outcome.ANY, keeps=True),
    *(MessageKind("work", "transactional"),) * 4,
    *(MessageKind("audited", "transactional", keeps=True),) * 3,
    *(MessageKind("audited_news", "recoverable", keeps=True),) * 3,
    *(MessageKind("sorted", "transactional"),) * 3,
    *(MessageKind("sorted_news", "recoverable"),) * 3,
    *(MessageKind("attic_orders", "transactional", _DEAD, receive_within_s=1),) * 4,
    *(MessageKind("attic", "recoverable", _DEAD, receive_within_s=1),) * 3,
    *(MessageKind("attic", "express", _DEAD, receive_within_s=2),) * 2,
    *(MessageKind("shared", "transactional", is_ordered=False),) * 3,
    *(MessageKind("shared_news", "recoverable", is_ordered=False),) * 3,
    *(MessageKind("viewed", "transactional"),) * 3,
    *(MessageKind("viewed_news", "recoverable"),) * 3,
    MessageKind("viewed_news", "express"),
    *(MessageKind("picky", "transactional", _DEAD),) * 2,
    *(MessageKind("picky_news", "recoverable", _DEAD),) * 2,
    MessageKind("missing", "transactional", Outcome.REFUSED),
    MessageKind("missing", "recoverable", Outcome.REFUSED),
    MessageKind("orders", "recoverable", Outcome.REFUSED),
    MessageKind("news", "transactional", Outcome.REFUSED),
)

# The queues of the foreign receiver.
FOREIGN_KINDS = (
    MessageKind("abroad", "transactional"),
    MessageKind("news_abroad", "recoverable"),
    MessageKind("news_abroad", "express"),
)
