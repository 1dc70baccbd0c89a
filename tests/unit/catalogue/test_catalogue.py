"""The catalogue of errors: it has each error of the source, and no others."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from protocol.message_class import MessageClass
from qmd.catalogue import (
    AREAS,
    ENTRIES,
    RETIRED,
    find,
    find_by_code,
    hresult,
    id_of,
    numbers_text,
    reference,
)
from qmd.cli import main
from qmd.client import errors
from qmd.core.disposition import _REASONS
from qmd.runtime.log import set_up_logging

ROOT = Path(__file__).parents[3]
CODES = {entry.code for entry in ENTRIES}
# Families of errors: exceptions of the client and exit codes use these codes; no cause does.
FAMILIES = {
    *(kind.code for kind in errors.QueueManagerError.__subclasses__()),
    *("configuration", "not_connected", "not_found", "usage"),
}
# Calls that make an error, and the argument that is its code: (position, keyword).
MAKERS: dict[str, tuple[int | None, str]] = {
    "Refusal": (0, "code"),
    "Failure": (2, "error"),
    "Misuse": (0, "error"),
    "BadValue": (0, "error"),
    "ConfigError": (None, "code"),
    "NotConnected": (None, "code"),
    "TooLarge": (None, "code"),
    "CannotServe": (None, "code"),
    "Misconfigured": (None, "code"),
}
# Log events that use `log_limited` or the level warning, but report no error.
NO_ERRORS = {"session_opened", "session_closed"}


class Use(NamedTuple):
    """A place where the source names a code.

    The code is None where it is missing, and where it is not a constant text.
    """

    place: str
    code: str | None


@cache
def sources() -> list[tuple[Path, ast.Module]]:
    return [
        (file.relative_to(ROOT), ast.parse(file.read_text()))
        for package in ("protocol", "storage", "qmd", "pipeline")
        for file in sorted((ROOT / package).rglob("*.py"))
        if ROOT / "qmd" / "catalogue" not in file.parents
    ]


def uses(file: Path, tree: ast.Module) -> Iterator[Use]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from (Use(f"{file}:{node.lineno}", code) for code in codes_of_call(node))
        elif isinstance(node, ast.ClassDef):
            for code in class_codes(node):
                yield Use(f"{file}:{node.lineno}", code)


def codes_of_call(call: ast.Call) -> Iterator[str | None]:
    name = called(call)
    keywords = {each.arg: each.value for each in call.keywords}
    if name in MAKERS:
        place, keyword = MAKERS[name]
        value = keywords.get(keyword)
        if value is None and place is not None and place < len(call.args):
            value = call.args[place]
        if value is not None or "id" not in keywords:
            yield from constants(value)
    elif tells_of_an_error(call) and "code" not in keywords:
        yield from (code for code in constants(call.args[0]) if code)
    if name not in MAKERS and "code" in keywords:
        yield from (code for code in constants(keywords["code"]) if code)


def called(call: ast.Call) -> str:
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def tells_of_an_error(call: ast.Call) -> bool:
    """Return whether a call logs a warning, an error, or an event with a rate limit.

    Nearly all such events report faults.
    """
    if called(call) == "log_limited":
        return bool(call.args)
    function = call.func
    return (
        isinstance(function, ast.Attribute)
        and function.attr in ("warning", "error", "critical")
        and isinstance(function.value, ast.Name)
        and function.value.id == "log"
    )


def constants(value: ast.expr | None) -> list[str | None]:
    """Return the constant text of an argument, or None for another value.

    Values that are passed on (the `code` of another error, names, calls) give an empty list: their
    codes are checked where they are made.
    """
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        return [value.value]
    is_passed_on = isinstance(value, ast.Attribute) and value.attr in ("code", "id")
    is_looked_up = isinstance(value, ast.Call | ast.Name)
    return [] if is_passed_on or is_looked_up else [None]


def class_codes(node: ast.ClassDef) -> Iterator[str]:
    for each in node.body:
        if isinstance(each, ast.Assign) and isinstance(each.value, ast.Constant):
            names = [target.id for target in each.targets if isinstance(target, ast.Name)]
            if names == ["code"] and each.value.value not in ("", "refused", *FAMILIES):
                yield str(each.value.value)


def how_to_add() -> str:
    nexts = "\n".join(
        f"    {max(entry.number for entry in area.entries) + 1}"
        f"  {area.entries[0].code!r} and others: {area.name}"
        for area in AREAS
    )
    return (
        "\nGive each an `Entry(number, code, what, cause, remedy, family, microsoft)` at the end of"
        " its area's module\nin qmd/catalogue/, then run `python -m qmd.catalogue`. A code stands"
        " for one cause: a family\n(bad_request, over_quota, ...) is none, but its entries name it."
        f" Next numbers:\n{nexts}"
    )


def test_the_numbers_are_those_of_the_entries():
    written = (ROOT / "qmd" / "catalogue" / "numbers.py").read_text()
    assert written == numbers_text(), "run `python -m qmd.catalogue`"
    assert all(id_of(entry.code) == entry.id for entry in ENTRIES)
    assert all(find_by_code(entry.code) is entry for entry in ENTRIES)
    assert id_of("of_another_release") == ""
    assert find_by_code("of_another_release") is None


def test_ids_are_known_without_the_entries():
    program = (
        "import sys, qmd.errors, qmd.catalogue as c; c.id_of('no_such_queue'); c.find_by_code('');"
        "sys.exit('qmd.catalogue.areas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_every_error_of_the_source_has_an_entry():
    found = [use for file, tree in sources() for use in uses(file, tree)]
    known = CODES | NO_ERRORS

    missing = [
        f"{use.place}: " + (f"{use.code!r} has no entry" if use.code else "an error without a code")
        for use in found
        if use.code not in known
    ]

    assert len(found) > 100, "the scan sees nothing"
    assert not missing, "\n".join(missing) + how_to_add()


def test_every_entry_belongs_to_an_existing_error():
    words = {
        node.value
        for _, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }

    idle = [
        f"{entry.id} {entry.code}"
        for entry in ENTRIES
        if entry.code not in words and not entry.microsoft.startswith("MQMSG_CLASS_")
    ]

    assert not idle, "remove these, and put their numbers into RETIRED: " + ", ".join(idle)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('raise Refusal("new_code", "text")', ["new_code"]),
        ('raise Refusal(f"new_{code}", "text")', [None]),
        ('Failure(ExitCode.FAILED, "text")', [None]),
        ('Failure(ExitCode.FAILED, "text", "new_code")', ["new_code"]),
        ("Failure(ExitCode.FAILED, str(error), id=error.id)", []),
        ("Failure(ExitCode.FAILED, str(error), error.code)", []),
        ('NotConnected("text", "remedy")', [None]),
        ('CannotStart("text", code="new_code")', ["new_code"]),
        ('log.warning("new_event", key=1)', ["new_event"]),
        ('manager.log_limited("new_event", "key")', ["new_event"]),
        ('log.info("new_event")', []),
        ('class New(CannotStart):\n    code = "new_code"', ["new_code"]),
    ],
)
def test_the_scan_finds_codes_in_every_form(source, expected):
    assert [use.code for use in uses(Path("x.py"), ast.parse(source))] == expected


def test_ids_and_codes_are_unique_and_in_their_area():
    numbers = [entry.number for entry in ENTRIES]

    assert len(set(numbers)) == len(numbers)
    assert len(CODES) == len(ENTRIES)
    assert not RETIRED & set(numbers)
    for area in AREAS:
        own = [entry.number for entry in area.entries]
        assert own == sorted(own)
        assert all(area.first <= number <= area.last for number in own)


def test_each_entry_is_complete():
    assert [entry.code for entry in ENTRIES if not is_complete(entry)] == []


def is_complete(entry):
    texts = (entry.what, entry.cause, entry.remedy)
    return (
        all(len(text) > len("See it.") for text in texts)
        and all(text.endswith((".", "?")) for text in texts)
        and not any("  " in text for text in texts)
        and (not entry.family or entry.family in FAMILIES | CODES)
        and (not entry.microsoft or hresult(entry) is not None)
    )


def test_the_code_of_a_family_is_not_the_code_of_a_cause():
    exceptions = {kind.code for kind in errors.QueueManagerError.__subclasses__()}
    shared = {entry.family for entry in ENTRIES if entry.family}

    assert not shared & CODES - exceptions


@pytest.mark.parametrize("message_class", list(MessageClass), ids=lambda each: each.name)
def test_every_message_class_has_its_entry(message_class):
    if message_class == MessageClass.NORMAL:
        return

    entry = find_by_code(MessageClass.name_of(message_class))

    assert entry is not None
    assert entry.value == message_class
    assert entry.what == MessageClass.describe(message_class), "one class, one sentence"
    _, remedy = _REASONS.get(message_class, ("", ""))
    assert remedy in entry.remedy, "what a dead letter advises, the catalogue does too"


def test_the_manual_has_every_entry():
    manual = (ROOT / "docs" / "errors.md").read_text()

    assert manual.endswith(reference()), "run python -m qmd.catalogue"


@pytest.mark.parametrize(
    "text",
    [
        *("QM-1201", "qm-1201", "1201", "no_such_queue", "no-such-queue"),
        *("MQ_ERROR_QUEUE_NOT_FOUND", "queue_not_found"),
        *("0xC00E0003", "c00e0003", "-1072824317", "3222142979"),
    ],
)
def test_an_error_is_found_by_its_id_code_name_or_number(text):
    assert "no_such_queue" in [entry.code for entry in find(text).entries]


@pytest.mark.parametrize("text", ["0x8000", "8000", "MQMSG_CLASS_NACK_BAD_DST_Q", "QM-2101"])
def test_a_message_class_is_found_as_well(text):
    assert [entry.code for entry in find(text).entries] == ["nack_bad_destination_queue"]


def test_explain_prints_the_remedy():
    shown = CliRunner().invoke(main, ["explain", "qm-1406"])

    assert shown.exit_code == 0
    assert "Cause: " in shown.stdout
    assert "MQ_ERROR_MESSAGE_STORAGE_FAILED, 0xC00E002A" in shown.stdout


def test_a_number_with_a_sign_is_not_taken_for_an_option():
    shown = CliRunner().invoke(main, ["explain", "-1072824317"])

    assert shown.exit_code == 0
    assert "QM-1201" in shown.stdout


def test_explain_in_json_has_stable_names():
    (line,) = CliRunner().invoke(main, ["explain", "bad_priority", "--json"]).stdout.splitlines()

    facts = json.loads(line)
    assert facts["id"] == "QM-1304"
    assert facts["family"] == "bad_request"
    assert facts["hresult"] == "0xC00E0018"


def test_explain_all_lists_every_entry():
    shown = CliRunner().invoke(main, ["explain", "--all", "--json"]).stdout.splitlines()

    assert [json.loads(line)["code"] for line in shown] == [entry.code for entry in ENTRIES]


def test_a_name_of_microsoft_that_qmd_does_not_use_is_explained_as_well():
    shown = CliRunner().invoke(main, ["explain", "0xC00E0084"])

    assert shown.exit_code == 0
    assert "MQ_ERROR_NO_MQUSER_OU" in shown.stdout


def test_for_an_unknown_error_the_most_similar_ones_are_named():
    shown = CliRunner().invoke(main, ["explain", "no_such_queu"])

    assert shown.exit_code == 3
    assert shown.stderr.startswith("qmd: error QM-5013: ")
    assert "no_such_queue" in shown.stderr


def test_a_log_event_has_the_id_of_its_error(tmp_path):
    import structlog

    path = tmp_path / "log"
    with path.open("wb") as stream:
        set_up_logging("info", "json", stream)
        try:
            structlog.get_logger().critical("start_failed", code="port_in_use")
            structlog.get_logger().warning("journal_full")
            structlog.get_logger().info("started")
        finally:
            structlog.reset_defaults()

    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line.get("id") for line in lines] == ["QM-3102", "QM-1702", None]
    for line in lines[:2]:
        entry = find(line["id"]).entries[0]
        assert line["cause"] == entry.cause
        assert line["remedy"] == entry.remedy
    assert lines[2].keys() == {"time", "level", "event"}


@cache
def faults() -> list[tuple[str, str]]:
    """Return the level and the event or code of each log call that reports a fault."""
    return [
        (called(node), code)
        for file, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and tells_of_an_error(node) and called(node) != "log_limited"
        for code in codes_of_line(node)
    ]


def codes_of_line(call: ast.Call) -> list[str]:
    code = next((each.value for each in call.keywords if each.arg == "code"), None)
    named = constants(code) if code is not None else constants(call.args[0])
    return [each for each in named if each]


def test_a_log_event_about_a_fault_gives_its_cause_and_remedy(tmp_path):
    """All of them in one test: to read all sources takes seconds, in each process of the tests."""
    import structlog

    path = tmp_path / "log"
    found = sorted(set(faults()))
    with path.open("wb") as stream:
        set_up_logging("info", "json", stream)
        try:
            for level, code in found:
                getattr(structlog.get_logger(), level)("something", code=code)
                getattr(structlog.get_logger(), level)(code, reason="a reason", remedy="a remedy")
        finally:
            structlog.reset_defaults()

    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for (_, code), bare, full in zip(found, lines[::2], lines[1::2], strict=True):
        entry = find_by_code(code)
        assert entry is not None, code
        assert (bare["cause"], bare["remedy"]) == (entry.cause, entry.remedy), code
        assert (full["reason"], full["remedy"]) == ("a reason", "a remedy"), code
        assert "cause" not in full, code


def test_the_scan_finds_log_events_about_faults():
    levels = {level for level, _ in faults()}

    assert levels == {"warning", "error", "critical"}
    assert len(faults()) > 20
