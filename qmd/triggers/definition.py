"""Definitions of triggers.

A trigger watches a queue and has rules, in order; a rule has conditions, which must all be true,
and one action.  Names of conditions and arguments are those of MSMQ's triggers.
"""

from __future__ import annotations

import re
import uuid
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct, field

from protocol.errors import InvalidName
from protocol.names.format_name import parse_destination
from qmd.core.selectors.parser import parse_selector
from qmd.core.selectors.tokens import BadSelector

PEEK: Final = "peek"
RECEIVE: Final = "receive"
TRANSACTIONAL: Final = "transactional"
Kind: TypeAlias = Literal["peek", "receive", "transactional"]

#: The arguments that a message gives, by the names of MSMQ's manual; `$QMD_...` are our own.
ARGUMENTS = (
    *("$MSG_ID", "$MSG_LABEL", "$MSG_BODY", "$MSG_BODY_AS_STRING", "$MSG_PRIORITY"),
    *("$MSG_ARRIVEDTIME", "$MSG_SENTTIME", "$MSG_CORRELATION_ID", "$MSG_APPSPECIFIC"),
    *("$MSG_QUEUE_PATHNAME", "$MSG_QUEUE_FORMATNAME", "$MSG_RESPONSE_QUEUE_FORMATNAME"),
    *("$MSG_ADMIN_QUEUE_FORMATNAME", "$QMD_DESTINATION", "$MSG_SRCMACHINEID"),
    *("$QMD_LOOKUP_ID", "$TRIGGER_NAME", "$TRIGGER_ID"),
)
#: Those that the sender of a message writes as it likes.
_TEXTS_OF_SENDERS = ("$MSG_LABEL", "$MSG_BODY", "$MSG_BODY_AS_STRING")
END_OF_OPTIONS = "--"
_NUMBER_TESTS = ("EQUALS", "NOT_EQUAL", "GREATER_THAN", "LESS_THAN")
_TEXT_TESTS = ("CONTAINS", "DOES_NOT_CONTAIN")
TESTS: dict[str, tuple[str, ...]] = {
    "LABEL": _TEXT_TESTS,
    "BODY": _TEXT_TESTS,
    "PRIORITY": _NUMBER_TESTS,
    "APPSPECIFIC": _NUMBER_TESTS,
    "SRCMACHINEID": ("EQUALS", "NOT_EQUAL"),
}
_SYNONYMS = {"DOES_NOT_EQUAL": "NOT_EQUAL"}
_CONDITION = re.compile(
    r"^\$MSG_(LABEL|BODY|PRIORITY|APPSPECIFIC|SRCMACHINEID)_([A-Z_]+)=(.*)$", re.S
)

Name: TypeAlias = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
Seconds: TypeAlias = Annotated[float, Meta(ge=0.1, le=86_400)]
Pause: TypeAlias = Annotated[float, Meta(ge=0.01, le=86_400)]
Texts: TypeAlias = Annotated[list[Annotated[str, Meta(max_length=100_000)]], Meta(max_length=256)]


class TriggerError(Exception):
    """A definition that is not valid; `code` is that of the catalogue."""

    def __init__(self, text: str, *, code: str = "trigger_not_valid") -> None:
        super().__init__(text)
        self.code = code


class Condition(Struct, frozen=True, forbid_unknown_fields=True):
    """One condition: `$MSG_LABEL_CONTAINS=order` is ("LABEL", "CONTAINS", "order")."""

    property: str
    test: str
    value: str

    def __str__(self) -> str:
        return f"$MSG_{self.property}_{self.test}={self.value}"


class Program(Struct, frozen=True, forbid_unknown_fields=True, tag="program", tag_field="action"):
    """A program that is run without a shell, with the body of the message as its input."""

    path: Annotated[str, Meta(min_length=1, max_length=4000)]
    arguments: Texts = []
    folder: str = "/"
    environment: Annotated[dict[str, str], Meta(max_length=100)] = {}
    body_as_input: bool = True
    #: Sends the output: "" nowhere, "response" to the response queue of the message, or a queue.
    answer_to: str = ""
    timeout_s: Seconds = 60.0
    output_bytes: Annotated[int, Meta(ge=0, le=64 * 1024 * 1024)] = 1024 * 1024
    memory_bytes: Annotated[int, Meta(ge=16 * 1024 * 1024)] = 1024 * 1024 * 1024


class Url(Struct, frozen=True, forbid_unknown_fields=True, tag="url", tag_field="action"):
    """A URL that gets the message by POST; the parameters are added to its query."""

    url: Annotated[str, Meta(min_length=8, max_length=2000)]
    secret: str
    parameters: Annotated[dict[str, str], Meta(max_length=100)] = {}
    timeout_s: Seconds = 30.0


class Foreign(Struct, frozen=True, forbid_unknown_fields=True, tag="foreign", tag_field="action"):
    """An action of Windows without a counterpart here; its trigger cannot be enabled."""

    text: str


Action: TypeAlias = Program | Url | Foreign


class Rule(Struct, frozen=True, forbid_unknown_fields=True):
    """The action for messages that meet all conditions."""

    name: Name
    action: Action
    conditions: Annotated[list[Condition], Meta(max_length=100)] = []
    where: str = ""
    description: Annotated[str, Meta(max_length=1000)] = ""


class Trigger(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A queue of which the messages start the actions of rules."""

    name: Name
    queue: Annotated[str, Meta(min_length=1, max_length=600)]
    kind: Kind = RECEIVE
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    enabled: bool = True
    serialized: bool = False
    concurrency: Annotated[int, Meta(ge=1, le=256)] = 4
    rules: Annotated[list[Rule], Meta(max_length=100)] = []
    attempts: Annotated[int, Meta(ge=1, le=1000)] = 10
    first_pause_s: Pause = 1.0
    last_pause_s: Pause = 300.0


def parse_condition(text: str) -> Condition:
    """Return the condition of a text such as `$MSG_LABEL_CONTAINS=order`.  Raises TriggerError."""
    found = _CONDITION.match(text)
    if found is None:
        raise TriggerError(
            f"{text!r} is no condition; write, for example, $MSG_LABEL_CONTAINS=order"
        )
    named, test, value = found.groups()
    condition = Condition(named, _SYNONYMS.get(test, test), value)
    _check_condition(condition)
    return condition


def is_argument(text: str) -> bool:
    """Return whether a text stands for a value of the message.  Raises TriggerError if it seems so.

    A text that begins with `$$` stands for itself, without the first of the two.
    """
    if text in ARGUMENTS:
        return True
    if text.startswith(("$MSG_", "$QMD_", "$TRIGGER_")):
        raise TriggerError(f"{text!r} is no argument; the arguments are {', '.join(ARGUMENTS)}")
    return False


def check(trigger: Trigger) -> None:
    """Check everything that the types do not.  Raises TriggerError."""
    try:
        parse_destination(trigger.queue, local_host="localhost")
    except InvalidName as error:
        raise TriggerError(f"{trigger.queue!r} is not the name of a queue: {error.rule}") from error
    names = [rule.name for rule in trigger.rules]
    if len(set(names)) < len(names):
        raise TriggerError("two of its rules have the same name")
    for rule in trigger.rules:
        for condition in rule.conditions:
            _check_condition(condition)
        if rule.where:
            try:
                parse_selector(rule.where)
            except BadSelector as error:
                raise TriggerError(f"the selector {rule.where!r} is not valid: {error}") from error
        _check_action(trigger, rule)
    if trigger.last_pause_s < trigger.first_pause_s:
        raise TriggerError("the last pause is shorter than the first")


def _check_condition(condition: Condition) -> None:
    tests = TESTS.get(condition.property, ())
    if condition.test not in tests:
        raise TriggerError(f"{condition} is no condition of MSMQ's triggers")
    if tests == _NUMBER_TESTS and not re.fullmatch(r"\d{1,10}", condition.value, re.ASCII):
        raise TriggerError(f"{condition.value!r} in {condition} is no number")
    if condition.property == "SRCMACHINEID":
        try:
            uuid.UUID(condition.value)
        except ValueError:
            raise TriggerError(f"{condition.value!r} in {condition} is no GUID") from None
    if not condition.value:
        raise TriggerError(f"{condition} has no value")


def _check_action(trigger: Trigger, rule: Rule) -> None:
    action = rule.action
    if isinstance(action, Foreign):
        if trigger.enabled:
            raise TriggerError(
                f"the action of its rule {rule.name} has no counterpart here: {action.text}",
                code="trigger_action_foreign",
            )
        return
    if isinstance(action, Url):
        from qmd.doors.http.pushes import PushError, check_url

        try:
            check_url(action.url)
        except PushError as error:
            raise TriggerError(str(error)) from error
        given = list(action.parameters.values())
    else:
        _check_program(action)
        given = action.arguments
    for text in given:
        is_argument(text)


def _check_program(program: Program) -> None:
    if not program.path.startswith("/"):
        raise TriggerError(f"the program {program.path!r} is not named by its full path")
    if not program.folder.startswith("/"):
        raise TriggerError(f"the folder {program.folder!r} is not named by its full path")
    texts = [program.path, program.folder, *program.arguments]
    for name, value in program.environment.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise TriggerError(f"{name!r} is no name of a variable")
        texts.append(value)
    if any("\0" in text for text in texts):
        raise TriggerError("an argument or a variable contains a character of value 0")


def remarks(trigger: Trigger) -> list[str]:
    """Return what its author should know about its programs: texts of senders as options."""
    return [
        f"rule {rule.name}: the program takes a {text} that begins with - for an option; write"
        f" --argument={END_OF_OPTIONS} in front of it, if the program knows that as the end of its"
        " options"
        for rule in trigger.rules
        if isinstance(rule.action, Program)
        for text in _before_end_of_options(rule.action.arguments)
        if text in _TEXTS_OF_SENDERS
    ]


def _before_end_of_options(arguments: list[str]) -> list[str]:
    ends_at = arguments.index(END_OF_OPTIONS) if END_OF_OPTIONS in arguments else len(arguments)
    return arguments[:ends_at]


def parse(given: dict[str, Any]) -> Trigger:
    """Return the checked trigger with these fields.  Raises TriggerError."""
    try:
        trigger = msgspec.convert(given, Trigger)
    except msgspec.ValidationError as error:
        raise TriggerError(str(error)) from error
    check(trigger)
    return trigger


def facts(trigger: Trigger) -> dict[str, Any]:
    """Return the fields of a trigger for people and programs, without keys of signatures."""
    found: dict[str, Any] = msgspec.to_builtins(trigger)
    for rule in found["rules"]:
        rule["conditions"] = [str(Condition(**each)) for each in rule["conditions"]]
        rule["action"].pop("secret", None)
    return found
