"""The types of the blocking client are those of the asynchronous client."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from tests.unit.client import blocking_types

PROGRAM = """
from qmd.client import Message, blocking

with blocking.connect("/run/qmd/qmd.sock") as qm:
    sent: str = qm.send("orders", b"x", priority=3)
    one: Message | None = qm.receive("orders", timeout_s=5)
    bodies: list[bytes] = [each.body for each in qm.receive_each("orders")]
    with qm.transaction() as transaction:
        name: bytes = transaction.id
        ids: list[str] = transaction.commit()
    with qm.open("orders") as orders:
        labels: list[str] = [each.label for each in orders]
        at_cursor: Message | None = orders.cursor().next()
    with qm.take("orders") as taken:
        count: int = len(taken)
    with qm.sender("orders") as sender:
        confirmed: str = sender.send(b"x").result()
    lists = qm.directory.lists()
"""
WRONG = {
    'qm.send("orders", object())': "arg-type",
    'qm.send("orders", b"x", prio=3)': "call-arg",
    "qm.snd()": "attr-defined",
    'qm.receive("orders").body': "union-attr",
    "qm.transaction().id + 1": "operator",
}


def statements(text: str) -> list[str]:
    return [
        ast.dump(node)
        for node in ast.parse(text).body
        if not isinstance(node, ast.Import | ast.ImportFrom)
    ]


def imported(text: str) -> set[tuple[str | None, str, str | None]]:
    """Return each import as (module, name, alias): tools may write them in another order."""
    return {
        (node.module if isinstance(node, ast.ImportFrom) else None, each.name, each.asname)
        for node in ast.parse(text).body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for each in node.names
    }


def test_the_types_are_those_of_the_source() -> None:
    assert statements(blocking_types.FILE.read_text()) == statements(blocking_types.stub()), (
        "write them anew: python -m tests.unit.client.blocking_types"
    )
    assert imported(blocking_types.FILE.read_text()) == imported(blocking_types.stub())


def test_a_program_is_checked_against_them(tmp_path: Path) -> None:
    lines = PROGRAM.splitlines() + [f"    {each}" for each in WRONG]
    program = tmp_path / "program.py"
    program.write_text("\n".join(lines) + "\n")

    told = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(program)],
        cwd=blocking_types.ROOT,
        capture_output=True,
        text=True,
    ).stdout

    errors = [line for line in told.splitlines() if ": error: " in line]
    assert [line.rpartition("[")[2].rstrip("]") for line in errors] == [*WRONG.values()], told
