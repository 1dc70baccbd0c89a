"""Tables `topic` and `subscription`: names of which messages go to several queues by selectors."""

import sqlite3
from typing import NamedTuple

from storage.tables import access


class TopicRow(NamedTuple):
    name: str
    key: str  # casefolded
    unmatched: str  # destination of messages that no subscription takes; '': they are refused


class SubscriptionRow(NamedTuple):
    topic: str  # the key of its topic
    name: str
    key: str
    destination: str
    selector: str  # '': all messages


def topics(db: sqlite3.Connection) -> list[TopicRow]:
    rows = db.execute("SELECT name, key, unmatched FROM topic ORDER BY key")
    return list(map(TopicRow._make, rows))


def subscriptions(db: sqlite3.Connection) -> list[SubscriptionRow]:
    """Return the subscriptions of all topics, each topic's in the order of their names."""
    rows = db.execute(
        "SELECT topic, name, key, destination, selector FROM subscription ORDER BY topic, key"
    )
    return list(map(SubscriptionRow._make, rows))


def store(db: sqlite3.Connection, row: TopicRow) -> None:
    """Store a topic, or replace its properties."""
    db.execute(
        "INSERT INTO topic (name, key, unmatched) VALUES (?, ?, ?)"
        " ON CONFLICT (key) DO UPDATE SET unmatched = excluded.unmatched",
        row,
    )


def delete(db: sqlite3.Connection, key: str) -> None:
    """Delete a topic with its subscriptions and the rights on it."""
    access.forget(db, f"topic:{key}")
    db.execute("DELETE FROM subscription WHERE topic = ?", (key,))
    db.execute("DELETE FROM topic WHERE key = ?", (key,))


def subscribe(db: sqlite3.Connection, row: SubscriptionRow) -> None:
    """Store a subscription, or replace its destination and its selector."""
    db.execute(
        "INSERT INTO subscription (topic, name, key, destination, selector) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (topic, key) DO UPDATE SET destination = excluded.destination,"
        " selector = excluded.selector",
        row,
    )


def unsubscribe(db: sqlite3.Connection, topic: str, key: str) -> None:
    db.execute("DELETE FROM subscription WHERE topic = ? AND key = ?", (topic, key))
