"""Topics: names of which a message goes to the queues of all subscriptions that match it.

    send to topic:news ──► subscriptions with a matching selector ──► "q1,q2@hostb": a message to
                                                                     several queues, one commit

A topic is expanded when a message is sent, as a distribution list is; everything after that is the
way of a message to several queues (fan_out.py).  Topics and subscriptions are on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog
from msgspec import structs

from qmd.control_protocol.messages import NewMessage
from qmd.errors import Refusal
from qmd.properties.block import read_extension, with_properties
from qmd.properties.values import TO
from qmd.queues.message_values import NewValues
from qmd.queues.selectors import selector_of
from storage.tables import topics as rows

if TYPE_CHECKING:
    from qmd.core.selectors.parser import Selector
    from qmd.runtime.services import Services

log = structlog.get_logger()

PREFIX = "topic:"
NAME_CHARACTERS_MAX = 100
TOPICS_MAX = 10_000
SUBSCRIPTIONS_MAX = 1000  # of one topic: a destination has at most as many elements
DESTINATION_CHARACTERS_MAX = 4000

Protect = Callable[..., list[NewMessage]]


def is_topic(destination: str) -> bool:
    """Return whether a destination is the name of a topic."""
    return destination[: len(PREFIX)].lower() == PREFIX


def has_topic(destination: str) -> bool:
    """Return whether a destination is a topic, or a list of queues with one in it."""
    return is_topic(destination) or (
        "," in destination and any(is_topic(each.strip()) for each in destination.split(","))
    )


def topic_key(text: str) -> str:
    """Return the key of a topic, with or without the prefix in its name."""
    return (text[len(PREFIX) :] if is_topic(text) else text).casefold()


@dataclass(slots=True)
class Topic:
    """One topic with its subscriptions, by their keys, and their selectors; None: all messages."""

    row: rows.TopicRow
    subscriptions: dict[str, tuple[rows.SubscriptionRow, Selector | None]] = field(
        default_factory=dict
    )

    def described(self) -> dict[str, Any]:
        return {
            "name": self.row.name,
            "destination": f"{PREFIX}{self.row.name}",
            "unmatched": self.row.unmatched or None,
            "subscriptions": [
                {"name": each.name, "destination": each.destination, "where": each.selector}
                for _, (each, _) in sorted(self.subscriptions.items())
            ],
        }


class Topics:
    """The topics of this queue manager."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._topics: dict[str, Topic] = {}

    def restore(
        self, topics: list[rows.TopicRow], subscriptions: list[rows.SubscriptionRow]
    ) -> None:
        """Take over what the disk has, at the start."""
        self._topics = {row.key: Topic(row) for row in topics}
        for each in subscriptions:
            self._topics[each.topic].subscriptions[each.key] = each, _selector(each.selector)

    # Sending.

    def before(self, protect: Protect) -> Protect:
        """Return `protect` for messages of which the topics are expanded first."""

        def expand(messages: list[NewMessage], **named: Any) -> list[NewMessage]:
            for new in messages:
                if ":" in new.destination and has_topic(new.destination):
                    messages = [
                        self._expanded(each) if has_topic(each.destination) else each
                        for each in messages
                    ]
                    break
            return protect(messages, **named)

        return expand

    def _expanded(self, new: NewMessage) -> NewMessage:
        """Return a message to a topic as one to the queues of its subscriptions.

        The property `to` of the message names the topic.  Raises Refusal.
        """
        topic = self._find(new.destination)
        values = NewValues(new, int(self._services.environment.time() * 1000))
        destinations = [
            row.destination
            for row, selector in topic.subscriptions.values()
            if selector is None or selector.matches(values)
        ]
        if not destinations and topic.row.unmatched:
            destinations = [topic.row.unmatched]
        if not destinations:
            raise Refusal(
                "no_subscription",
                f"no subscription of topic {topic.row.name} takes the message",
                "Subscribe a queue to it, or name a queue for such messages:"
                f" qmd topic create {topic.row.name} --unmatched QUEUE",
            )
        properties, own = read_extension(new.extension)
        if TO not in properties.standard and not new.signature:
            standard = {**properties.standard, TO: f"{PREFIX}{topic.row.name}"}
            new = structs.replace(
                new, extension=with_properties(properties._replace(standard=standard), own)
            )
        return structs.replace(new, destination=",".join(destinations))

    # Administration.

    async def create(self, name: str, unmatched: str) -> dict[str, Any]:
        """Create a topic, or change the destination of its other messages.  Raises Refusal."""
        name = name[len(PREFIX) :] if is_topic(name) else name
        _check_name(name)
        key = name.casefold()
        if key not in self._topics and len(self._topics) >= TOPICS_MAX:
            raise Refusal(
                "too_many_topics", f"{TOPICS_MAX} topics are allowed", "Delete one that is unused."
            )
        before = self._topics.get(key)
        row = rows.TopicRow(name if before is None else before.row.name, key, unmatched)
        await self._services.storage.batch.run(partial(rows.store, row=row))
        topic = self._topics.setdefault(key, Topic(row))
        topic.row = row
        log.info("topic_created" if before is None else "topic_changed", topic=row.name)
        return topic.described()

    async def delete(self, name: str) -> dict[str, Any]:
        """Delete a topic with its subscriptions; their queues stay.  Raises Refusal."""
        topic = self._find(name)
        await self._services.storage.batch.run(partial(rows.delete, key=topic.row.key))
        self._topics.pop(topic.row.key, None)
        log.info("topic_deleted", topic=topic.row.name)
        return topic.described()

    async def subscribe(
        self, topic: str, name: str, destination: str, where: str
    ) -> dict[str, Any]:
        """Add a subscription, or change its destination and selector.  Raises Refusal."""
        found = self._find(topic)
        _check_name(name)
        selector, key = _selector(where), name.casefold()
        if key not in found.subscriptions and len(found.subscriptions) >= SUBSCRIPTIONS_MAX:
            raise Refusal(
                "too_many_topics",
                f"{SUBSCRIPTIONS_MAX} subscriptions of one topic are allowed",
                "Divide the topic.",
            )
        row = rows.SubscriptionRow(found.row.key, name, key, destination, where)

        def store(db: Any) -> bool:
            """Store the subscription, unless the topic was deleted meanwhile."""
            there = any(each.key == row.topic for each in rows.topics(db))
            if there:
                rows.subscribe(db, row)
            return there

        if not await self._services.storage.batch.run(store):
            raise _unknown(topic)
        found.subscriptions[key] = row, selector
        log.info("topic_subscribed", topic=found.row.name, subscription=name, queue=destination)
        return found.described()

    async def unsubscribe(self, topic: str, name: str) -> dict[str, Any]:
        """Remove a subscription; its queue stays.  Raises Refusal."""
        found, key = self._find(topic), name.casefold()
        if key not in found.subscriptions:
            raise Refusal(
                "no_such_subscription",
                f"topic {found.row.name} has no subscription {name}",
                f"See `qmd topic show {found.row.name}`.",
            )
        await self._services.storage.batch.run(
            partial(rows.unsubscribe, topic=found.row.key, key=key)
        )
        found.subscriptions.pop(key, None)
        log.info("topic_unsubscribed", topic=found.row.name, subscription=name)
        return found.described()

    def shown(self, name: str) -> dict[str, Any]:
        """Return a topic.  Raises Refusal."""
        return self._find(name).described()

    def listed(self) -> list[dict[str, Any]]:
        """Return all topics, by their names."""
        return [topic.described() for _, topic in sorted(self._topics.items())]

    def _find(self, name: str) -> Topic:
        topic = self._topics.get(topic_key(name))
        if topic is None:
            raise _unknown(name)
        return topic


def _unknown(name: str) -> Refusal:
    if "," in name:
        return Refusal(
            "no_such_topic",
            f"{name} is a list with a topic in it, and a topic is a destination alone",
            "Subscribe the other queues to the topic, or send the message twice.",
        )
    name = name if is_topic(name) else f"{PREFIX}{name}"
    if "@" in name:
        host = name.rpartition("@")[2]
        return Refusal(
            "no_such_topic",
            f"{name} is a topic of another host, and topics belong to one queue manager",
            f"Send to the topic through a door or the remote control of {host}.",
        )
    return Refusal(
        "no_such_topic",
        f"there is no topic {name[len(PREFIX) :]} here",
        "See `qmd topic list`; create it: qmd topic create NAME",
    )


def _selector(where: str) -> Selector | None:
    return selector_of(where) if where else None


def _check_name(name: str) -> None:
    if (
        not 0 < len(name) <= NAME_CHARACTERS_MAX
        or not name.isprintable()
        or any(each in ",;\\" for each in name)
        or name != name.strip()
    ):
        raise Refusal(
            "bad_topic_name",
            f"{name[:NAME_CHARACTERS_MAX]!r} is not the name of a topic or subscription",
            f"It has 1 to {NAME_CHARACTERS_MAX} characters, without commas, semicolons and"
            " backslashes.",
        )
