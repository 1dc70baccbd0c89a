"""The plan: the steps from the present state of a queue manager to a collection of Windows.

A plan is made anew before each run.  It has only what differs, so that a second run has no steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from qmd.control_protocol.messages import UNLIMITED
from qmd.core.access import rights_text
from qmd.migration.collection import UNLIMITED_KB, Collection, WindowsQueue
from qmd.migration.lists import plan_lists
from qmd.migration.rights import Accounts, Gap, WantedRights, differences, wanted_rights
from qmd.migration.security_descriptor import parse_descriptor
from qmd.migration.steps import Plan, Step
from qmd.migration.targets import target_of

if TYPE_CHECKING:
    from qmd.client import QueueManager

Facts = Mapping[str, Any]
_QUOTA = "quota_bytes"  # the end of the names of quotas
_NO_TYPE = "00000000-0000-0000-0000-000000000000"


@dataclass(frozen=True, slots=True)
class Options:
    """Choices of the administrator."""

    accounts: Accounts = field(default_factory=lambda: Accounts({}))
    public_as_private: bool = False
    prune: bool = False
    #: Only these queues, by their names in lower case; empty: all.
    queues: frozenset[str] = frozenset()


async def make_plan(qm: QueueManager, collection: Collection, options: Options) -> Plan:
    """Compare a collection with a queue manager.  Raises BadSource and ClientError."""
    present = {str(each["name"]).casefold(): each for each in await qm.list_queues()}
    directory = str((await qm.directory.status()).get("kind", "none"))
    private = {queue.name.lower() for queue in collection.queues if not queue.public}
    plan = Plan([], [], 0)
    unchanged = 0
    for queue in collection.queues:
        if options.queues and queue.name.casefold() not in options.queues:
            continue
        target = target_of(queue, directory, as_private=options.public_as_private, private=private)
        if isinstance(target, Gap):
            plan.gaps.append(target)
            continue
        before = len(plan.steps)
        facts = present.get(target.casefold())
        if facts is None:
            plan.steps.append(_creation(queue, target))
        else:
            _compare(plan, queue, target, facts)
        await _compare_rights(qm, plan, queue, target, options, is_new=facts is None)
        unchanged += len(plan.steps) == before
        plan.gaps.extend(_gaps_of(queue))
    await plan_lists(qm, plan, collection, directory)
    plan.gaps.extend(_gaps_of_collection(collection))
    return plan._replace(unchanged=unchanged)


def _creation(queue: WindowsQueue, target: str) -> Step:
    is_public = queue.public and not target.startswith("private$")
    wishes = {
        "transactional": bool(queue.transactional),
        "label": queue.label,
        "journal": bool(queue.journal),
        "quota_bytes": _bytes(queue.quota_kb),
        "journal_quota_bytes": _bytes(queue.journal_quota_kb),
        "public": is_public,
        "authenticate": bool(queue.authenticate),
        "privacy": queue.privacy or "optional",
    }
    shown = ", ".join(
        name if value is True else f"{_property(name)} {_shown(name, value)}"
        for name, value in wishes.items()
        if value not in (None, False, "")
    )
    return Step("create", target, shown, lambda qm: qm.create_queue(target, **wishes))  # type: ignore[arg-type]


def _compare(plan: Plan, queue: WindowsQueue, target: str, facts: Facts) -> None:
    if queue.transactional is not None and queue.transactional != facts["transactional"]:
        kinds = ("transactional", "not transactional")
        plan.gaps.append(
            Gap(
                target,
                f"it is {kinds[not queue.transactional]} on Windows,"
                f" and {kinds[not facts['transactional']]} here",
                "this property of a queue cannot be changed",
                f"If it is empty: qmd queue delete '{target}', and repeat the import.",
            )
        )
    wanted = {
        "label": queue.label,
        "journal": queue.journal,
        "quota_bytes": _bytes(queue.quota_kb),
        "journal_quota_bytes": _bytes(queue.journal_quota_kb),
        "authenticate": queue.authenticate,
        "privacy": queue.privacy,
    }
    changes = {
        name: value
        for name, value in wanted.items()
        if value is not None and value != _present_value(facts, name)
    }
    if changes:
        shown = ", ".join(
            f"{_property(name)} {_shown(name, _present_value(facts, name))}"
            f" -> {_shown(name, value)}"
            for name, value in changes.items()
        )
        plan.steps.append(
            Step("set", target, shown, lambda qm: qm.set_queue(target, **changes))  # type: ignore[arg-type]
        )


def _present_value(facts: Facts, name: str) -> Any:
    value = facts[name]
    return UNLIMITED if value is None and name.endswith(_QUOTA) else value


def _property(name: str) -> str:
    """Return the name of a property for people: `journal quota` for `journal_quota_bytes`."""
    return name.removesuffix("_bytes").replace("_", " ")


def _shown(name: str, value: object) -> str:
    """Return the value of a property for people."""
    if name.endswith(_QUOTA):
        return "none" if value == UNLIMITED else f"{value} bytes"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return repr(value) if name == "label" else str(value)


def _bytes(kilobytes: int | None) -> int | None:
    if kilobytes is None:
        return None
    return UNLIMITED if kilobytes == UNLIMITED_KB else kilobytes * 1024


async def _compare_rights(
    qm: QueueManager,
    plan: Plan,
    queue: WindowsQueue,
    target: str,
    options: Options,
    *,
    is_new: bool,
) -> None:
    raw = queue.security
    if not raw:
        plan.gaps.append(
            Gap(
                target,
                "its rights",
                "they are not in the collection",
                "Run the script as an administrator; until then the defaults apply.",
            )
        )
        return
    wanted = wanted_rights(target, parse_descriptor(raw), queue.accounts, options.accounts)
    plan.gaps.extend(wanted.gaps)
    shown = _shown_of_new() if is_new else await qm.access.show(target)
    for action, principal, rights in differences(wanted.entries, shown, prune=options.prune):
        plan.steps.append(
            Step(
                action,
                target,
                f"{principal} {rights_text(rights)}",
                partial(_change_rights, action, principal, rights_text(rights), target),
            )
        )
    _compare_owner(plan, wanted, shown, target)


def _compare_owner(plan: Plan, wanted: WantedRights, shown: Facts, target: str) -> None:
    owner = wanted.owner
    if owner is not None and owner != shown["owner"]:
        plan.steps.append(
            Step("owner", target, owner, lambda qm: qm.access.set_owner(target, owner))
        )


def _shown_of_new() -> dict[str, Any]:
    """Return the rights of a queue that is about to be created."""
    from qmd.core.access import DEFAULTS, Kind

    return {"entries": [], "default": rights_text(DEFAULTS[Kind.ORDINARY]), "owner": None}


async def _change_rights(
    action: str, principal: str, rights: str, target: str, qm: QueueManager
) -> object:
    change = {"grant": qm.access.grant, "deny": qm.access.deny, "revoke": qm.access.revoke}[action]
    return await change(principal, rights, target)


def _gaps_of(queue: WindowsQueue) -> list[Gap]:
    """Return the properties of a queue that have no counterpart."""
    gaps: list[Gap] = []
    if queue.base_priority:
        gaps.append(
            Gap(
                queue.name,
                f"base priority {queue.base_priority}",
                "outgoing queues share a connection by turns, without priorities of queues",
                "Use priorities of messages, or a queue of its own.",
            )
        )
    if queue.type and queue.type != _NO_TYPE:
        gaps.append(
            Gap(
                queue.name,
                f"type {queue.type}",
                "queues here have no type",
                "Programs that look for queues by type need the name.",
            )
        )
    if queue.multicast:
        gaps.append(
            Gap(
                queue.name,
                f"multicast address {queue.multicast}",
                "messages by multicast (PGM) are not supported (docs/srmp.md#multicast)",
                "Use a topic or a distribution list: docs/many-destinations.md.",
            )
        )
    return gaps


def _gaps_of_collection(collection: Collection) -> list[Gap]:
    gaps = [Gap(note.about, "not collected", note.text) for note in collection.notes]
    for row in collection.outgoing:
        values = {name.casefold(): value for name, value in row.items()}
        waiting = _first(values, "messagecount", "messages")
        name = _first(values, "formatname", "queuename", "name", "path") or "an outgoing queue"
        if waiting not in ("", "0"):
            gaps.append(
                Gap(
                    name,
                    f"{waiting} messages wait on {collection.computer} for this destination",
                    "messages under way belong to the sequences of their sender",
                    "Let it send them before you cut over.",
                )
            )
    gaps.extend(
        Gap(
            trigger.values.get("Name", trigger.id),
            f"a trigger on {trigger.values.get('Queue', 'a queue')}",
            "its program of Windows does not run here",
            "reg export HKLM\\SOFTWARE\\Microsoft\\MSMQ\\Triggers, and qmd trigger import with the"
            " program of this computer.",
        )
        for trigger in collection.triggers
    )
    return gaps


def _first(values: Mapping[str, str], *names: str) -> str:
    return next((values[name] for name in names if values.get(name)), "")
