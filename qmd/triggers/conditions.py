"""The rules that a message matches."""

from __future__ import annotations

import uuid
from functools import lru_cache

from qmd.bodies.content import ACTIVE_X, BYTES, TEXT
from qmd.bodies.errors import UnreadableBody
from qmd.client.message import Message
from qmd.core.selectors.parser import Selector, parse_selector
from qmd.queues.message_values import StoredValues
from qmd.triggers.definition import Condition, Rule, Trigger


def matching_rules(trigger: Trigger, message: Message) -> list[Rule]:
    """Return the rules of which a message meets all conditions, in their order."""
    return [rule for rule in trigger.rules if matches(rule, message)]


def matches(rule: Rule, message: Message) -> bool:
    """Return whether a message meets all conditions of a rule, and its selector."""
    return all(is_met(each, message) for each in rule.conditions) and selected(rule.where, message)


def selected(where: str, message: Message) -> bool:
    """Return whether a message matches a selector; an empty one matches every message."""
    return not where or _selector(where).matches(StoredValues(message.stored))


def is_met(condition: Condition, message: Message) -> bool:
    """Return whether a message meets a condition.

    A condition on the body is false for a body that is no text, also the negative one.  Texts are
    compared with regard to upper and lower case.
    """
    value, test = condition.value, condition.test
    match condition.property:
        case "LABEL":
            return (value in message.label) is (test == "CONTAINS")
        case "BODY":
            text = body_text(message)
            return text is not None and (value in text) is (test == "CONTAINS")
        case "SRCMACHINEID":
            return (uuid.UUID(value) == uuid.UUID(message.source)) is (test == "EQUALS")
        case "PRIORITY":
            return _compare(message.priority, test, int(value))
        case _:
            return _compare(message.application_tag, test, int(value))


def body_text(message: Message) -> str | None:
    """Return the body as text; None if it is none.

    MSMQ's triggers regard only bodies with a type of texts.  Senders on Linux mostly state no type;
    here a body without one is a text if its bytes are.
    """
    try:
        content = message.content
    except UnreadableBody:
        return None
    if content.format in (ACTIVE_X, TEXT):
        return content.value if isinstance(content.value, str) else None
    if message.body_type or content.format == BYTES:
        return None
    try:
        return message.body.decode()  # XML or JSON: the conditions are about its text
    except UnicodeDecodeError:
        return None


def _compare(number: int, test: str, other: int) -> bool:
    match test:
        case "EQUALS":
            return number == other
        case "NOT_EQUAL":
            return number != other
        case "GREATER_THAN":
            return number > other
        case _:
            return number < other


@lru_cache(1000)
def _selector(text: str) -> Selector:
    return parse_selector(text)
