"""The scripts for Windows: complete, unchanged, valid PowerShell, and read only."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest

from qmd.migration import scripts
from qmd.migration.scripts import FOLDER, ScriptChanged, all_scripts, content

NAMES = [script.name for script in all_scripts()]
#: Commands that a script may run.  None changes Windows or a queue; `Add-Type` loads a class.
COMMANDS = {
    *("Add-Type", "ConvertTo-Json", "ForEach-Object", "New-Object", "Set-StrictMode", "Test-Path"),
    *("Where-Object", "Write-Output"),
    *("Get-ChildItem", "Get-CimInstance", "Get-Date", "Get-Item"),
    *("Get-MsmqOutgoingQueue", "Get-MsmqQueueManager"),
}
#: Methods that a script may call: of .NET, of queues opened for peeking, and of the output file.
METHODS = {
    *("Add", "Ceiling", "Close", "FindAll", "FromBase64String", "GetValue"),
    "GetUnresolvedProviderPathFromPSPath",
    *("GetValueNames", "MoveNext", "Read", "ToBase64String", "ToLowerInvariant", "ToString"),
    *("ToUniversalTime", "Translate", "WriteAllText", "WriteLine"),
    *("GetMessageEnumerator2", "GetPrivateQueuesByMachine", "GetPublicQueuesByMachine", "SetAll"),
    "MQGetQueueSecurity",
}


def test_every_script_is_listed_with_its_sum():
    assert set(NAMES) == {path.name for path in FOLDER.iterdir() if path.suffix == ".ps1"}
    for script in all_scripts():
        assert hashlib.sha256(content(script)).hexdigest() == script.sha256


def test_a_changed_script_is_not_given_away(tmp_path, monkeypatch):
    script = all_scripts()[0]
    changed = tmp_path / script.name
    changed.write_bytes(content(script) + b"#")

    with pytest.raises(ScriptChanged, match=script.name):
        content(script._replace(path=changed))
    monkeypatch.undo()
    assert scripts.SUMS.exists()


@pytest.mark.parametrize("name", NAMES)
def test_a_script_is_ascii_with_short_lines(name):
    """Windows PowerShell takes files without a byte order mark for its code page."""
    text = (FOLDER / name).read_bytes()

    assert text.isascii()
    assert max(len(line) for line in text.splitlines()) <= 120


@pytest.mark.parametrize("name", NAMES)
def test_a_script_is_valid_and_reads_only(name):
    root = tree_of(name)
    assert not root.has_error
    own = {text(node.child(1)) for node in nodes(root, "function_statement")}

    commands = {text(node) for node in nodes(root, "command_name")}
    methods = {text(node).rpartition(".")[2] for node in called(root)}

    assert own
    assert "ToBase64String" in methods
    assert commands - own <= COMMANDS
    assert methods <= METHODS


@pytest.mark.parametrize("name", NAMES)
def test_the_output_is_in_the_folder_of_powershell(name):
    """That of .NET is another one: a relative name would be in the folder of the system."""
    methods = {text(node).rpartition(".")[2] for node in called(tree_of(name))}

    assert "GetUnresolvedProviderPathFromPSPath" in methods


def test_queues_are_opened_for_peeking_only():
    root = tree_of("Export-MsmqMessage.ps1")
    opened = [
        text(node)
        for node in nodes(root, "command")
        if "System.Messaging.MessageQueue" in text(node)
    ]

    assert len(opened) == 1
    assert "QueueAccessMode]::Peek" in opened[0]


@pytest.mark.parametrize("breakage", ["function {", "if ($x { }", "'open"])
def test_the_grammar_refuses_broken_text(breakage):
    assert parsed(b"$a = 1\n" + breakage.encode() + b"\n").has_error


def tree_of(name: str) -> Any:
    return parsed((FOLDER / name).read_bytes())


def parsed(source: bytes) -> Any:
    tree_sitter = pytest.importorskip("tree_sitter")
    grammar = pytest.importorskip("tree_sitter_powershell")
    parser = tree_sitter.Parser(tree_sitter.Language(grammar.language()))
    return parser.parse(source).root_node


def nodes(node: Any, kind: str) -> Iterator[Any]:
    if node.type == kind:
        yield node
    for child in node.children:
        yield from nodes(child, kind)


def called(root: Any) -> Iterator[Any]:
    """Yield the names of called methods."""
    for node in nodes(root, "invokation_expression"):
        yield from (child for child in node.children if child.type == "member_name")


def text(node: Any) -> str:
    return str(node.text.decode())
