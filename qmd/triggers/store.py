"""The file of triggers, which commands change and the process of the triggers follows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from qmd.runtime.definition_file import DefinitionFile
from qmd.triggers.definition import PEEK, Rule, Trigger, TriggerError, check

TRIGGERS_MAX = 1000


class TriggerFile:
    """The definitions of all triggers."""

    def __init__(self, path: Path, *, runs: bool = False) -> None:
        """`runs`: this process runs the programs of the definitions."""
        unreadable = partial(TriggerError, code="trigger_file")
        self._file = DefinitionFile(path, Trigger, unreadable, trusted=True, runs=runs)

    def read(self) -> dict[str, Trigger]:
        """Return the triggers by name; none if the file does not exist.  Raises TriggerError."""
        return self._file.read()

    def show(self, name: str) -> Trigger:
        """Return one trigger.  Raises TriggerError."""
        return _known(self.read(), name)

    def create(self, *triggers: Trigger) -> None:
        """Add all of the triggers or none, durably.  Raises TriggerError."""

        def add(found: dict[str, Trigger]) -> None:
            for trigger in triggers:
                check(trigger)
                if trigger.name in found:
                    text = f"there is a trigger {trigger.name} already"
                    raise TriggerError(text, code="trigger_exists")
                _check_company(trigger, found)
                found[trigger.name] = trigger
            if len(found) > TRIGGERS_MAX:
                raise TriggerError(f"there would be more than {TRIGGERS_MAX} triggers")

        self._file.change(add)

    def delete(self, name: str) -> None:
        """Remove a trigger, durably.  Raises TriggerError."""

        def remove(found: dict[str, Trigger]) -> None:
            del found[_known(found, name).name]

        self._file.change(remove)

    def enable(self, name: str, *, enabled: bool) -> None:
        """Enable or disable a trigger, durably.  Raises TriggerError."""
        self._replace(name, lambda it: msgspec.structs.replace(it, enabled=enabled))

    def add_rule(self, name: str, rule: Rule) -> None:
        """Add a rule behind the others, durably.  Raises TriggerError."""
        self._replace(name, lambda it: msgspec.structs.replace(it, rules=[*it.rules, rule]))

    def delete_rule(self, name: str, rule: str) -> None:
        """Remove a rule, durably.  Raises TriggerError."""

        def without(it: Trigger) -> Trigger:
            rest = [each for each in it.rules if each.name != rule]
            if len(rest) == len(it.rules):
                text = f"the trigger {name} has no rule {rule}"
                raise TriggerError(text, code="no_such_trigger")
            return msgspec.structs.replace(it, rules=rest)

        self._replace(name, without)

    def _replace(self, name: str, change: Callable[[Trigger], Trigger]) -> None:
        def replace(found: dict[str, Trigger]) -> None:
            changed = change(_known(found, name))
            check(changed)
            _check_company(changed, {each: it for each, it in found.items() if each != name})
            found[name] = changed

        self._file.change(replace)


def _known(found: dict[str, Trigger], name: str) -> Trigger:
    if name not in found:
        raise TriggerError(f"there is no trigger {name}", code="no_such_trigger")
    return found[name]


def _check_company(trigger: Trigger, others: dict[str, Trigger]) -> None:
    """Refuse a second trigger of a queue unless both only peek, as MSMQ does.

    Otherwise each message would start one of them, at random.
    """
    for other in others.values():
        is_same = trigger.enabled and other.enabled and _key(trigger.queue) == _key(other.queue)
        if is_same and (trigger.kind, other.kind) != (PEEK, PEEK):
            raise TriggerError(
                f"{other.name} is a trigger of {trigger.queue} too, and one of them receives;"
                " several triggers of a queue must all peek",
                code="trigger_exists",
            )


def _key(queue: str) -> str:
    name = queue.casefold()
    return name.removeprefix(".\\").removeprefix("private$\\")
