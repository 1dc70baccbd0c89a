"""Conditions and arguments of triggers, on real packets."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from protocol.names.format_name import parse_format_name
from qmd.client.message import Message
from qmd.control_protocol import messages as frames
from qmd.message.addresses import NO_ADDRESS, queue_address, reply_address
from qmd.message.build import compose
from qmd.triggers.arguments import value_of, values_of
from qmd.triggers.conditions import is_met, matching_rules
from qmd.triggers.definition import (
    Condition,
    Program,
    Rule,
    Trigger,
    TriggerError,
    check,
    facts,
    parse,
    parse_condition,
)

SOURCE = bytes(range(16))
SOURCE_TEXT = "03020100-0504-0706-0809-0a0b0c0d0e0f"
ORDERS = r"DIRECT=OS:hosta\private$\orders"
ANSWERS = r"DIRECT=OS:hostb\private$\answers"
TRIGGER = Trigger(name="bill", queue="orders")
PROGRAM = {"action": "program", "path": "/bin/true"}


def message(body: bytes = b"ten screws", *, response: str = "", **fields: Any) -> Message:
    new = frames.NewMessage(ORDERS, body, **fields)
    packet = compose(
        new,
        source=SOURCE,
        destination=queue_address(parse_format_name(ORDERS)),
        admin=NO_ADDRESS,
        response=reply_address(parse_format_name(response)) if response else NO_ADDRESS,
        message_number=42,
        sent_time_s=1_700_000_000,
        delivery=frames.RECOVERABLE,
        position=None,
    )
    return Message(frames.StoredMessage(9, 1_700_000_001_250, packet))


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("$MSG_LABEL_CONTAINS=order", True),
        ("$MSG_LABEL_CONTAINS=Order", False),
        ("$MSG_LABEL_DOES_NOT_CONTAIN=Order", True),
        ("$MSG_LABEL_DOES_NOT_CONTAIN=my", False),
        ("$MSG_BODY_CONTAINS=screws", True),
        ("$MSG_BODY_DOES_NOT_CONTAIN=screws", False),
        ("$MSG_PRIORITY_EQUALS=5", True),
        ("$MSG_PRIORITY_NOT_EQUAL=5", False),
        ("$MSG_PRIORITY_DOES_NOT_EQUAL=4", True),
        ("$MSG_PRIORITY_GREATER_THAN=4", True),
        ("$MSG_PRIORITY_GREATER_THAN=5", False),
        ("$MSG_PRIORITY_LESS_THAN=6", True),
        ("$MSG_PRIORITY_LESS_THAN=5", False),
        ("$MSG_APPSPECIFIC_EQUALS=4294967295", True),
        ("$MSG_APPSPECIFIC_LESS_THAN=4294967295", False),
        (f"$MSG_SRCMACHINEID_EQUALS={{{SOURCE_TEXT.upper()}}}", True),
        (f"$MSG_SRCMACHINEID_NOT_EQUAL={SOURCE_TEXT}", False),
    ],
)
def test_a_condition_is_that_of_msmq(condition: str, expected: bool) -> None:
    it = message(label="my order=1", priority=5, application_tag=2**32 - 1)

    assert is_met(parse_condition(condition), it) is expected


@pytest.mark.parametrize(
    ("body", "body_type", "is_text"),
    [
        ("größer".encode("utf-16-le"), 8, True),
        ("größer".encode("utf-16-le"), 31, True),
        ("größer".encode(), 0, True),
        (b'{"a": "gr\xc3\xb6\xc3\x9fer"}', 0, True),
        ("<a>größer</a>".encode(), 0, True),
        (b"\x00\xff\xfe\x81", 0, False),
        ("größer".encode(), 0x1011, False),
        (b"\1\0\0\0", 3, False),
    ],
)
def test_both_conditions_on_a_body_that_is_no_text_are_false(
    body: bytes, body_type: int, is_text: bool
) -> None:
    it = message(body, body_type=body_type)

    assert is_met(Condition("BODY", "CONTAINS", "größer"), it) is is_text
    assert is_met(Condition("BODY", "DOES_NOT_CONTAIN", "kleiner"), it) is is_text


def test_rules_apply_in_their_order_if_all_of_their_conditions_are_met() -> None:
    action = Program("/bin/true")
    met, not_met = Condition("LABEL", "CONTAINS", "a"), Condition("LABEL", "CONTAINS", "z")
    rules = [
        Rule("both", action, [met, not_met]),
        Rule("one", action, [met]),
        Rule("selector", action, [], "priority = 3 AND label = 'abc'"),
        Rule("other", action, [met], "priority = 4"),
        Rule("all", action),
    ]
    trigger = Trigger(name="t", queue="q", rules=rules)

    found = matching_rules(trigger, message(label="abc", priority=3))
    assert [rule.name for rule in found] == ["one", "selector", "all"]


def test_arguments_are_values_or_literals() -> None:
    it = message(label="a b", priority=6, application_tag=7, response=ANSWERS)
    values = {
        "$MSG_ID": f"{SOURCE_TEXT}\\42",
        "$MSG_LABEL": "a b",
        "$MSG_BODY": "ten screws",
        "$MSG_BODY_AS_STRING": "ten screws",
        "$MSG_PRIORITY": "6",
        "$MSG_ARRIVEDTIME": "2023-11-14T22:13:21.250Z",
        "$MSG_SENTTIME": "2023-11-14T22:13:20.000Z",
        "$MSG_CORRELATION_ID": "",
        "$MSG_APPSPECIFIC": "7",
        "$MSG_QUEUE_PATHNAME": "orders",
        "$MSG_QUEUE_FORMATNAME": ORDERS,
        "$QMD_DESTINATION": ORDERS,
        "$MSG_RESPONSE_QUEUE_FORMATNAME": ANSWERS,
        "$MSG_ADMIN_QUEUE_FORMATNAME": "",
        "$MSG_SRCMACHINEID": SOURCE_TEXT,
        "$QMD_LOOKUP_ID": "9",
        "$TRIGGER_NAME": "bill",
        "$TRIGGER_ID": TRIGGER.id,
        "$$MSG_ID": "$MSG_ID",
        "$HOME; `x` $(y)": "$HOME; `x` $(y)",
        "": "",
    }

    found = dict(zip(values, values_of(list(values), TRIGGER, it), strict=True))
    assert found == values
    assert value_of("$MSG_BODY", TRIGGER, message(b"\xff\xfe\x81")) == "//6B"


@pytest.mark.parametrize(
    "text",
    [
        *("$MSG_LABEL_EQUALS=a", "$MSG_PRIORITY_EQUALS=high", "$MSG_SRCMACHINEID_EQUALS=a"),
        *("$MSG_LABEL_CONTAINS", "$MSG_LABEL_CONTAINS=", "$MSG_PRIORITY_EQUALS=٣", "priority=3"),
    ],
)
def test_a_text_that_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(TriggerError):
        parse_condition(text)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"name": "a b"}, "name"),
        ({"kind": "steal"}, "kind"),
        ({"first_pause_s": 9, "last_pause_s": 1}, "shorter"),
        ({"action": {"action": "program", "path": "bin/x"}}, "full path"),
        (
            {"action": {"action": "program", "path": "/x", "arguments": ["$MSG_NONE"]}},
            "no argument",
        ),
        ({"action": {"action": "program", "path": "/x", "arguments": ["a\0"]}}, "value 0"),
        ({"action": {"action": "program", "path": "/x", "environment": {"A=": ""}}}, "variable"),
        ({"action": {"action": "url", "url": "ftp://host/x", "secret": ""}}, "https"),
        ({"action": {"action": "foreign", "text": "COM x"}}, "no counterpart"),
        ({"where": "priority ="}, "selector"),
    ],
)
def test_a_wrong_definition_is_refused(changes: dict[str, Any], problem: str) -> None:
    rule = {"name": "r", "action": {"action": "program", "path": "/bin/true"}}
    given: dict[str, Any] = {"name": "t", "queue": "q", "rules": [rule]}
    for key, value in changes.items():
        (rule if key in ("action", "where") else given)[key] = value

    with pytest.raises(TriggerError, match=problem):
        parse(given)


def test_the_key_of_signatures_is_not_shown() -> None:
    action = {"action": "url", "url": "https://host/x", "secret": "whsec_eA=="}
    given = {"name": "t", "queue": "q", "rules": [{"name": "r", "action": action}]}
    trigger = parse(given)

    check(trigger)
    assert "eA==" not in str(facts(trigger))
    assert "eA==" in str(msgspec.to_builtins(trigger))
