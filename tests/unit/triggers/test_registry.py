"""Triggers of Windows in exports of the registry, made to the published properties."""

from __future__ import annotations

from pathlib import Path

import pytest

from qmd.triggers.definition import ARGUMENTS, Condition, Foreign, Program, TriggerError
from qmd.triggers.registry import _keys, read_registry
from qmd.triggers.store import TriggerFile

EXPORT = (Path(__file__).parents[2] / "data" / "triggers.reg").read_text()
PROGRAMS = {r"c:\TOOLS\bill.exe": "/usr/local/bin/bill"}


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8", "utf-8-sig"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_triggers_and_their_rules_are_read(encoding: str, line_end: str) -> None:
    data = EXPORT.replace("\n", line_end).encode(encoding)

    (billing, old), remarks = read_registry(data, PROGRAMS)

    assert (billing.name, billing.queue, billing.kind) == (
        "Billing",
        r"private$\orders",
        "transactional",
    )
    assert (billing.enabled, billing.serialized) == (True, True)
    (rule,) = billing.rules
    assert rule.name == "Order-rule"
    assert rule.description == 'Bills "orders"\nin two lines'
    assert rule.conditions == [
        Condition("LABEL", "CONTAINS", "order"),
        Condition("PRIORITY", "LESS_THAN", "8"),
    ]
    assert rule.action == Program("/usr/local/bin/bill", ["$MSG_LABEL", "a b", "3"])
    assert (old.name, old.queue, old.kind, old.enabled) == (
        "Old-one",
        r"private$\other",
        "peek",
        False,
    )
    assert old.rules[0].name == "Com-rule"
    assert old.rules[0].action == Foreign("COM\tShop.Orders\tPlace\t$MSG_BODY\t")
    assert any("HOSTA" in remark for remark in remarks)
    assert any("COM component" in remark for remark in remarks)


def test_a_program_without_a_counterpart_disables_its_trigger() -> None:
    (billing, _), remarks = read_registry(EXPORT.encode(), {})

    assert not billing.enabled
    assert isinstance(billing.rules[0].action, Foreign)
    assert any("--program" in remark for remark in remarks)


@pytest.mark.parametrize(
    "data", [b"", b"[HKEY]", b"REGEDIT4\n[HKEY_LOCAL_MACHINE\\X]\n", b"\xff\xfe\0"]
)
def test_another_file_is_refused(data: bytes) -> None:
    with pytest.raises(TriggerError):
        read_registry(data, {})


@pytest.mark.parametrize("value", ['"Name"="Bills', '"Name"="Bills" 7', '"Name', '@="Bills'])
def test_a_damaged_value_is_refused_with_its_line(value: str) -> None:
    key = r"[HKEY_LOCAL_MACHINE\SOFTWARE\Microsoft\MSMQ\Triggers\Data\Rules\{1}]"
    data = f'REGEDIT4\n{key}\n"Description"="x"\n{value}\n'
    with pytest.raises(TriggerError, match="in line 4 begins a value that has no end"):
        read_registry(data.encode(), {})


def test_a_value_of_many_lines_is_read() -> None:
    key = r"[HKEY_LOCAL_MACHINE\SOFTWARE\Microsoft\MSMQ\Triggers\Data\Rules\{1}]"
    lines = ",\\\n  ".join(["42,00,69,00", "6c,00", "6c,00,00,00"])
    text = f'Windows Registry Editor Version 5.00\n{key}\n"Name"=hex(2):{lines}\n"Text"="a\nb"\n'
    assert _keys(text) == [(key[1:-1], {"name": "Bill", "text": "a\nb"})]


@pytest.mark.parametrize(
    ("first", "encoding"),
    [("REGEDIT4", "cp1252"), ("Windows Registry Editor Version 5.00", "utf-16-le")],
)
def test_a_text_as_numbers_has_the_encoding_of_the_version(first: str, encoding: str) -> None:
    numbers = ",".join(f"{byte:02x}" for byte in "Aufträge\0".encode(encoding))

    found = _keys(f'{first}\n[HKEY_LOCAL_MACHINE\\X]\n"Name"=hex(2):{numbers}\n')

    assert found == [("HKEY_LOCAL_MACHINE\\X", {"name": "Aufträge"})]


def test_an_import_is_complete_or_nothing(tmp_path: Path) -> None:
    file = TriggerFile(tmp_path / "triggers")
    billing, old = read_registry(EXPORT.encode(), PROGRAMS).triggers
    file.create(old)

    with pytest.raises(TriggerError, match="already"):
        file.create(billing, old)
    assert list(file.read()) == ["Old-one"]
    with pytest.raises(TriggerError, match="no counterpart"):
        file.enable("Old-one", enabled=True)


def windows(**values: str) -> bytes:
    """Return an export with one trigger of one rule, with these values of the rule."""
    root = r"HKEY_LOCAL_MACHINE\SOFTWARE\Microsoft\MSMQ\Triggers\Data"
    lines = ["Windows Registry Editor Version 5.00", "", rf"[{root}\Rules\{{1}}]"]
    for name, value in {"Name": "r", **values}.items():
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        lines.append(f'"{name}"="{escaped}"')
    lines += ["", rf"[{root}\Triggers\{{2}}]", '"Name"="t"', r'"Queue"=".\\private$\\q"']
    lines += ['"Enabled"=dword:00000001', '"MsgProcessingType"=dword:00000001']
    lines += ["", rf"[{root}\Triggers\{{2}}\AttachedRules]", '"Rule1"="{1}"', ""]
    return "\r\n".join(lines).encode("utf-16")


def test_all_conditions_and_arguments_of_windows_are_imported() -> None:
    guid = "6b7d7cf2-64a5-4f1b-9e5d-0f6c0d0f1c11"
    numbers = ("EQUALS", "NOT_EQUAL", "GREATER_THAN", "LESS_THAN")
    conditions = [
        *(f"$MSG_{name}_{test}=3" for name in ("PRIORITY", "APPSPECIFIC") for test in numbers),
        *(f"$MSG_{name}_CONTAINS=a=b;c \\" for name in ("LABEL", "BODY")),
        *(f"$MSG_{name}_DOES_NOT_CONTAIN=ä" for name in ("LABEL", "BODY")),
        *(f"$MSG_SRCMACHINEID_{test}={guid}" for test in numbers[:2]),
    ]
    arguments = [each for each in ARGUMENTS if not each.startswith("$QMD_")]
    literals = ['"a b"', '"$MSG_ID"', '"c:\\x"', "7"]
    action = "\t".join(["EXE", r"c:\tools\bill.exe", *arguments, *literals, ""])

    imported = read_registry(
        windows(Condition="\t".join([*conditions, ""]), Action=action), PROGRAMS
    )
    (trigger,) = imported.triggers
    assert [each.partition(" that begins with -")[0] for each in imported.remarks] == [
        f"t: rule r: the program takes a {each}"
        for each in ("$MSG_LABEL", "$MSG_BODY", "$MSG_BODY_AS_STRING")
    ]
    assert trigger.enabled
    (rule,) = trigger.rules
    assert [str(each) for each in rule.conditions] == conditions
    assert isinstance(rule.action, Program)
    assert rule.action.arguments == [*arguments, "a b", "$$MSG_ID", "c:\\x", "7"]


@pytest.mark.parametrize(
    "condition",
    [
        "$MSG_LABEL_LIKE=a", "$MSG_PRIORITY_EQUALS=high", "$MSG_SRCMACHINEID_EQUALS=host",
        "$MSG_LABEL_CONTAINS=", "order", "$MSG_PRIORITY_EQUALS=3;$MSG_LABEL_CONTAINS=x",
    ],
)  # fmt: skip
def test_a_condition_that_is_not_understood_disables_its_trigger(condition: str) -> None:
    """An import without it would run the program for messages that Windows passed over."""
    (trigger,), remarks = read_registry(
        windows(Condition=f"{condition}\t", Action=r"EXE" "\t" r"c:\tools\bill.exe"), PROGRAMS
    )

    assert not trigger.enabled
    assert isinstance(trigger.rules[0].action, Foreign)
    assert remarks
