"""The effect that a trigger would have on a message, without any effect."""

from __future__ import annotations

from typing import Any

from qmd.client.message import Message
from qmd.triggers.arguments import values_of
from qmd.triggers.conditions import is_met, matches, selected
from qmd.triggers.definition import Program, Rule, Trigger, Url


def rehearse(trigger: Trigger, message: Message) -> dict[str, Any]:
    """Return which conditions of each rule a message meets, and what the rule would do."""
    return {
        "trigger": trigger.name,
        "message_id": message.id,
        "lookup_id": message.lookup_id,
        "label": message.label,
        "rules": [_rule(each, trigger, message) for each in trigger.rules],
    }


def _rule(rule: Rule, trigger: Trigger, message: Message) -> dict[str, Any]:
    found: dict[str, Any] = {
        "rule": rule.name,
        "matches": matches(rule, message),
        "met": [str(each) for each in rule.conditions if is_met(each, message)],
        "not_met": [str(each) for each in rule.conditions if not is_met(each, message)],
    }
    if rule.where:
        found["met" if selected(rule.where, message) else "not_met"].append(rule.where)
    action = rule.action
    if isinstance(action, Program):
        found["command"] = [action.path, *values_of(action.arguments, trigger, message)]
    elif isinstance(action, Url):
        from qmd.triggers.calls import full_url

        found["url"] = full_url(action, trigger, message)
    else:
        found["without_counterpart"] = action.text
    return found
