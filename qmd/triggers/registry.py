r"""Triggers of Windows, read from an export of the registry (`reg export`, a .reg file).

    HKEY_LOCAL_MACHINE\SOFTWARE\Microsoft\MSMQ\Triggers\Data\Triggers\{id}               a trigger
    HKEY_LOCAL_MACHINE\SOFTWARE\Microsoft\MSMQ\Triggers\Data\Triggers\{id}\AttachedRules  its rules
    HKEY_LOCAL_MACHINE\SOFTWARE\Microsoft\MSMQ\Triggers\Data\Rules\{id}                   a rule

Microsoft documents the properties of triggers and rules and the texts of `trigadm`, but not these
keys; they are read by the text that is public, until an export of a Windows host was seen.  Names
of keys and values are compared without regard to case, and everything unknown is reported.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from qmd.triggers.definition import (
    PEEK,
    RECEIVE,
    TRANSACTIONAL,
    Condition,
    Foreign,
    Kind,
    Program,
    Rule,
    Trigger,
    TriggerError,
    check,
    is_argument,
    parse_condition,
    remarks,
)

BYTES_MAX = 64 * 1024 * 1024
_ROOT = re.compile(
    r"\\msmq\\triggers(?:\\clustered)?\\(?:.*\\)?data\\(triggers|rules)\\(.+)$", re.I
)
# Each match ends where it cannot go on, and tries nothing again: a file may consist of quotes.
_NAME = re.compile(r'[ \t]*+(?:"((?:[^"\\]|\\.)*+)"|@)=[ \t]*+', re.DOTALL)
_TEXT = re.compile(r'"((?:[^"\\]|\\.)*+)"[ \t]*+(?=\n|\Z)', re.DOTALL)
_DATA = re.compile(r"(?:[^\n]*+(?<=\\)\n)*+[^\n]*+")  # a backslash ends a line that goes on
_KINDS: dict[int, Kind] = {0: PEEK, 1: RECEIVE, 2: TRANSACTIONAL}
_SYSTEM_QUEUES = {1: "journal", 2: "dead-letter", 3: "transactional-dead-letter"}
_SEPARATORS = re.compile(r"[\t;]")

Values = dict[str, str | int]


class Imported(NamedTuple):
    """The triggers of an export, and remarks for people on everything that differs."""

    triggers: list[Trigger]
    remarks: list[str]


@dataclass
class _Found:
    """One trigger or rule of the export."""

    values: Values = field(default_factory=dict)
    attached: Values = field(default_factory=dict)

    def text(self, *names: str) -> str:
        return next((str(self.values[name]) for name in names if name in self.values), "")

    def number(self, name: str, default: int = 0) -> int:
        value = self.values.get(name, default)
        return value if isinstance(value, int) else default


def read_registry(data: bytes, programs: Mapping[str, str]) -> Imported:
    """Return the triggers of a .reg file.

    `programs` maps paths of Windows to programs here.  A trigger with an action that has no
    counterpart is disabled.  Raises TriggerError for a file that is no such export.
    """
    triggers, rules = _objects(data)
    if not triggers and not rules:
        raise TriggerError(
            "the file has no triggers; export HKLM\\SOFTWARE\\Microsoft\\MSMQ\\Triggers"
        )
    reading = _Reading({path.casefold(): here for path, here in programs.items()}, rules)
    found = [_valid(reading.trigger(guid, each)) for guid, each in triggers.items()]
    unused = [each.text("name") for guid, each in rules.items() if guid not in reading.used]
    reading.remarks += [f"the rule {name!r} belongs to no trigger; left out" for name in unused]
    reading.remarks += [f"{each.name}: {remark}" for each in found for remark in remarks(each)]
    return Imported(found, reading.remarks)


def _valid(trigger: Trigger) -> Trigger:
    """Return the trigger if its texts are valid here.  Raises TriggerError."""
    try:
        check(msgspec.structs.replace(trigger, enabled=False))
        return msgspec.convert(msgspec.to_builtins(trigger), Trigger)
    except (TriggerError, msgspec.ValidationError) as error:
        raise TriggerError(f"the trigger {trigger.name} cannot be taken over: {error}") from error


class _Reading:
    """One import."""

    def __init__(self, programs: Mapping[str, str], rules: Mapping[str, _Found]) -> None:
        self._programs = programs
        self._rules = rules
        self._names: set[str] = set()
        self.used: set[str] = set()
        self.remarks: list[str] = []

    def trigger(self, guid: str, found: _Found) -> Trigger:
        name = _free_name(found.text("name") or guid, self._names)
        rules = self._attached(name, found)
        kind = _KINDS.get(found.number("msgprocessingtype"))
        if kind is None:
            self.remarks.append(f"{name}: its message processing type is unknown; it peeks")
        is_foreign = any(isinstance(rule.action, Foreign) for rule in rules)
        is_enabled = bool(found.number("enabled", 1)) and not is_foreign and bool(rules)
        if is_foreign:
            self.remarks.append(f"{name}: disabled, because an action has no counterpart here")
        return Trigger(
            name=name,
            id=guid.strip("{}").lower(),
            queue=self._queue(name, found),
            kind=kind or PEEK,
            enabled=is_enabled,
            serialized=bool(found.number("serialized")),
            rules=rules,
        )

    def _queue(self, name: str, found: _Found) -> str:
        system = _SYSTEM_QUEUES.get(found.number("systemqueue"))
        if system is not None:
            return system
        path = found.text("queue", "queuename", "queuepathname")
        host, _, rest = path.partition("\\")
        if not rest:
            self.remarks.append(f"{name}: its queue {path!r} is no path name")
            return path or "unknown"
        if host != ".":
            self.remarks.append(f"{name}: {path} is taken for the queue {rest} of this computer")
        return rest

    def _attached(self, name: str, found: _Found) -> list[Rule]:
        names: set[str] = set()
        rules = []
        for _, guid in sorted(found.attached.items(), key=lambda item: _order(item[0])):
            key = str(guid).casefold()
            if key not in self._rules:
                self.remarks.append(f"{name}: its rule {guid} is not in the export; left out")
                continue
            self.used.add(key)
            rules.append(self._rule(name, self._rules[key], names))
        return rules

    def _rule(self, trigger: str, found: _Found, names: set[str]) -> Rule:
        name = _free_name(found.text("name") or "rule", names)
        conditions: list[Condition] = []
        action = self._action(f"{trigger}, rule {name}", found.text("action"))
        for text in filter(None, found.text("condition").split("\t")):
            try:
                conditions.append(parse_condition(text))
            except TriggerError as error:
                self.remarks.append(f"{trigger}, rule {name}: {error}")
                action = Foreign(f"a condition is not understood: {text}")
        description = found.text("description")[:1000]
        return Rule(name=name, action=action, conditions=conditions, description=description)

    def _action(self, where: str, text: str) -> Program | Foreign:
        kind, *rest = _SEPARATORS.split(text)
        if kind.upper() != "EXE" or not rest:
            self.remarks.append(f"{where}: it calls a COM component ({text!r}); qmd runs none")
            return Foreign(text or "there is no action")
        program = self._programs.get(rest[0].strip().casefold())
        if program is None:
            self.remarks.append(f"{where}: no program here is named for {rest[0]}: use --program")
            return Foreign(text)
        arguments = [_argument(each) for each in rest[1:] if each.strip()]
        try:
            for each in arguments:
                is_argument(each)
        except TriggerError as error:
            self.remarks.append(f"{where}: {error}")
            return Foreign(text)
        return Program(path=program, arguments=arguments)


def _argument(text: str) -> str:
    """Return an argument as it is written here: a literal of Windows stands in double quotes."""
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] == '"':
        literal = text[1:-1]
        return f"${literal}" if literal.startswith("$") else literal
    return text


def _order(name: str) -> tuple[int, str]:
    digits = re.search(r"\d+$", name)
    return (int(digits[0]) if digits else 0), name


def _free_name(name: str, taken: set[str]) -> str:
    """Return a name in the characters that names have here, and different from all others."""
    base = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-")[:56] or "trigger"
    free, number = base, 2
    while free in taken:
        free, number = f"{base}-{number}", number + 1
    taken.add(free)
    return free


def _objects(data: bytes) -> tuple[dict[str, _Found], dict[str, _Found]]:
    """Return triggers and rules by their ids, in lower case."""
    found: dict[str, dict[str, _Found]] = {"triggers": {}, "rules": {}}
    for key, values in _keys(_text(data)):
        match = _ROOT.search(key)
        if match is None:
            continue
        guid, _, below = match[2].partition("\\")
        it = found[match[1].lower()].setdefault(guid.casefold(), _Found())
        if not below:
            it.values.update(values)
        elif below.casefold() == "attachedrules":
            it.attached.update(values)
    return found["triggers"], found["rules"]


def _text(data: bytes) -> str:
    if len(data) > BYTES_MAX:
        raise TriggerError(f"the file has more than {BYTES_MAX} bytes")
    try:
        if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
            return data.decode("utf-16")
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("cp1252", "replace")  # REGEDIT4: the code page of the computer


def _keys(text: str) -> list[tuple[str, Values]]:
    """Return the keys of a .reg file with their values."""
    text = text.replace("\r\n", "\n")
    if not text.startswith(("Windows Registry Editor", "REGEDIT4")):
        raise TriggerError("the file is no export of a registry: its first line says otherwise")
    encoding = "cp1252" if text.startswith("REGEDIT4") else "utf-16-le"  # of texts as numbers
    keys: list[tuple[str, Values]] = []
    at = text.find("\n") + 1
    while 0 < at < len(text):
        value = _NAME.match(text, at) if keys else None
        if value is not None:
            name, found, at = _value(text, value, encoding)
            if found is not None:
                keys[-1][1][name.casefold()] = found
        else:
            end = text.find("\n", at)
            line = text[at : end if end >= 0 else len(text)].strip()
            if line.startswith("[") and line.endswith("]"):
                keys.append((line[1:-1], {}))
            elif keys and line.startswith(('"', "@")):
                raise _damaged(text, at)
            at = end
        at = text.find("\n", at) + 1 if at >= 0 else 0
    return keys


def _value(text: str, named: re.Match[str], encoding: str) -> tuple[str, str | int | None, int]:
    """Return a name, its value or None, and the place after it.  Raises TriggerError."""
    name, at = _unescaped(named[1] or ""), named.end()
    if text[at : at + 1] == '"':
        quoted = _TEXT.match(text, at)
        if quoted is None:
            raise _damaged(text, named.start())
        return name, _unescaped(quoted[1]), quoted.end()
    data = _DATA.match(text, at)
    assert data is not None  # it matches an empty text
    kind, _, digits = data[0].replace("\\\n", "").strip().partition(":")
    try:
        if kind == "dword":
            return name, int(digits, 16), data.end()
        if kind in ("hex(1)", "hex(2)"):  # REG_SZ and REG_EXPAND_SZ
            raw = bytes.fromhex("".join(digits.split()).replace(",", ""))
            return name, raw.decode(encoding, "replace").rstrip("\0"), data.end()
    except ValueError:
        pass
    return name, None, data.end()


def _damaged(text: str, at: int) -> TriggerError:
    line = text.count("\n", 0, at) + 1
    return TriggerError(f"the file is damaged: in line {line} begins a value that has no end")


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)
