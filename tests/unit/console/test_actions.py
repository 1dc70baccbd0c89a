"""Actions: the command that each shows is one that the command line takes."""

import click
import pytest

from qmd.cli import main
from qmd.console.actions import ACTIONS
from qmd.console.choices import BadForm, chosen_by
from qmd.console.roles import Role

FORMS = {
    "resend": [
        {"queue": "orders", "id": "7", "to": "bills", "keep": "1", "change_label": "1",
         "label_new": "x", "change_body": "1", "body": "y"},
        {"queue": "orders", "id": ["7", "8"]},
        {"queue": "orders", "class": "nack_access_denied", "reason": "it's gone", "newer": "2d"},
        {"queue": "orders", "since": "2026-11-25T00:00", "until": "2026-11-26T08:30:00Z"},
        {"queue": "orders", "class": "nack_access_denied", "day": "yesterday"},
    ],
    "move": [
        {"queue": "orders", "target": "bills", "all": "1"},
        {"queue": "orders", "target": "bills", "id": ["7", "8"]},
        {"queue": "orders", "target": "bills", "label": "a", "older": "12h", "where": "x = 1"},
    ],
    "purge": [
        {"queue": "orders", "all": "1"},
        {"queue": "orders", "destination": "b", "class": "nack_purged"},
    ],
    "create-queue": [{"queue": "orders", "label": "l", "transactional": "1", "journal": "1"}],
    "delete-queue": [{"queue": "orders"}],
    "cancel-delayed": [{"message": "x\\1"}],
    "redirect": [
        {"destination": "d", "address": "hostb:1801", "to_another": "1"},
        {"destination": "d", "address": ""},
    ],
    "create-list": [{"list": "all", "members": "a@b, c d@e"}],
    "delete-list": [{"list": "all"}],
    "add-members": [{"list": "all", "members": "a@b, c@d"}],
    "reload-settings": [{}],
    "remove-members": [{"list": "all", "members": "a@b"}],
}  # fmt: skip
DESTINATION = {"destination": "DIRECT=OS:b\\private$\\x"}


def form(fields: dict) -> dict[str, list[str]]:
    return {key: value if isinstance(value, list) else [value] for key, value in fields.items()}


def cases():
    for name in ACTIONS:
        for fields in FORMS.get(name, [DESTINATION]):
            yield pytest.param(name, form(fields), id=f"{name} {sorted(fields)}")


def parsed(words: list[str]) -> click.Context:
    """Parse a command line without running it; fail as the command line would."""
    context = main.make_context("qmd", list(words))
    while isinstance(context.command, click.Group):
        name, command, rest = context.command.resolve_command(
            context, [*context._protected_args, *context.args]
        )
        assert command is not None
        context = command.make_context(name, rest, parent=context)
    return context


@pytest.mark.parametrize(("name", "fields"), list(cases()))
def test_the_command_of_an_action_is_understood(name, fields):
    plan = ACTIONS[name].plan(fields)

    parsed(plan.command)


@pytest.mark.parametrize(("name", "fields"), list(cases()))
def test_the_fields_of_the_confirmation_make_the_same_plan(name, fields):
    plan = ACTIONS[name].plan(fields)
    again: dict[str, list[str]] = {}
    for key, value in plan.fields:
        again.setdefault(key, []).append(value)

    repeated = ACTIONS[name].plan(again)

    assert repeated.command == plan.command
    assert repeated.sentence == plan.sentence
    assert sorted(repeated.fields) == sorted(plan.fields)


def test_actions_that_remove_messages_are_for_administrators():
    for name in ("purge", "delete-queue", "purge-outgoing", "restart-outgoing", "give-up"):
        assert ACTIONS[name].role is Role.ADMINISTRATOR
    assert all(action.role > Role.VIEWER for action in ACTIONS.values())


@pytest.mark.parametrize("name", sorted(ACTIONS.keys() - {"reload-settings"}))
def test_an_empty_form_is_refused(name):
    with pytest.raises(BadForm):
        ACTIONS[name].plan({})


@pytest.mark.parametrize(
    "fields",
    [{"id": "x"}, {"id": "-1"}, {"newer": "soon"}, {"since": "soon"}, {"id": ["1"] * 10_001}, {}],
)
def test_a_form_without_a_usable_choice_is_refused(fields):
    with pytest.raises(BadForm):
        chosen_by(form(fields))


def test_a_duration_becomes_a_time_that_does_not_move():
    first = chosen_by(form({"newer": "1h"}), now=10_000.0)
    fields = {key: [value] for key, value in first.fields}

    second = chosen_by(fields, now=20_000.0)

    assert first.choice.arrived_after_ms == second.choice.arrived_after_ms == 6_400_000


NOON_S = 1_764_158_400.0  # 2025-11-26T12:00Z
DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("given", "after_ms", "before_ms", "options"),
    [
        ({"day": "yesterday"}, -DAY_MS, 0, ["2025-11-25T00:00Z", "2025-11-26T00:00Z"]),
        ({"day": "today", "since": "2020-01-01"}, 0, None, ["2025-11-26T00:00Z"]),
        ({"day": "any", "since": "2020-01-01", "all": "1"}, None, None, []),
        (
            {"since": "2025-11-25T10:00", "until": "2025-11-25T13:00+02:00"},
            -14 * 3_600_000,
            -13 * 3_600_000,
            ["2025-11-25T10:00Z", "2025-11-25T11:00Z"],
        ),
    ],
)
def test_days_of_the_calendar_are_exact_in_utc(given, after_ms, before_ms, options):
    found = chosen_by(form({"class": "x", **given}), NOON_S)

    midnight = 1_764_115_200_000
    choice = found.choice
    assert choice.arrived_after_ms == (None if after_ms is None else midnight + after_ms - 1)
    assert choice.arrived_before_ms == (None if before_ms is None else midnight + before_ms)
    assert [word for word in found.options if word[:2] == "20"] == options
    # The fields that confirm it mean the same days at another time.
    again = chosen_by({key: [value] for key, value in found.fields}, NOON_S + 3e6)
    assert again.choice == choice


@pytest.mark.parametrize(
    ("queue", "can_be_undone"),
    [("orders", True), ("DIRECT=OS:.\\SYSTEM$;DEADXACT", False), ("orders;journal", False)],
)
def test_a_move_can_be_undone_where_messages_can_be_moved_to(queue, can_be_undone):
    plan = ACTIONS["move"].plan(form({"queue": queue, "target": "bills", "all": "1"}))

    assert (plan.undo is not None) is can_be_undone
