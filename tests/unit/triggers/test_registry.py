"""Triggers of Windows in exports of the registry, made to the published properties."""

from __future__ import annotations

from pathlib import Path

import pytest

from qmd.triggers.definition import Condition, Foreign, Program, TriggerError
from qmd.triggers.registry import read_registry
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


def test_an_import_is_complete_or_nothing(tmp_path: Path) -> None:
    file = TriggerFile(tmp_path / "triggers")
    billing, old = read_registry(EXPORT.encode(), PROGRAMS).triggers
    file.create(old)

    with pytest.raises(TriggerError, match="already"):
        file.create(billing, old)
    assert list(file.read()) == ["Old-one"]
    with pytest.raises(TriggerError, match="no counterpart"):
        file.enable("Old-one", enabled=True)
