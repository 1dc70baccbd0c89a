"""What operators ask and change of the directory, answered as plain values for JSON."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from protocol.errors import InvalidName
from protocol.identifiers import NULL_GUID, guid_text
from protocol.names.direct_name import PORT, DirectName
from protocol.names.format_name import (
    DistributionListName,
    MachineName,
    PrivateName,
    PublicName,
    SingleName,
)
from qmd.control_protocol import directory as frames
from qmd.directory.interface import (
    AliasEntry,
    ListEntry,
    MachineEntry,
    NotInDirectory,
    QueueEntry,
    SiteEntry,
)
from qmd.directory.registration import in_time
from qmd.directory.spelling import (
    ALIAS_PREFIX,
    ENTRY_NAME,
    LIST_PREFIX,
    AliasPath,
    ListPath,
    QueuePath,
)
from qmd.errors import Refusal
from qmd.history.event_query import time_text

if TYPE_CHECKING:
    from qmd.manager import QueueManager

Value = dict[str, Any]


async def status(manager: QueueManager, request: frames.DirectoryStatus) -> Value:
    return _status(manager)


async def reload(manager: QueueManager, request: frames.DirectoryReload) -> Value:
    await manager.reload_directory()
    return _status(manager)


async def lookup(manager: QueueManager, request: frames.DirectoryLookup) -> Value:
    if request.fresh:
        manager.resolver.forget()
    text = request.name
    if not any(mark in text for mark in "\\=:"):
        machine = await in_time(manager, manager.directory.machine_by_name(text))
        return await _machine(manager, machine)
    (spelled, *more) = manager.resolver.parse(text)
    if more:
        raise _not_one(text)
    resolver = manager.resolver
    match spelled:
        case PublicName():
            entry, _ = await in_time(manager, resolver.entries.queue(spelled.queue))
            return _queue(entry)
        case QueuePath():
            entry, _ = await in_time(manager, resolver.entries.queue_by_path(spelled.path))
            return _queue(entry)
        case DistributionListName() | ListPath():
            return await _list(manager, await _find_list(manager, text))
        case AliasPath():
            return _alias(await in_time(manager, manager.directory.alias(spelled.name)))
        case MachineName(queue_manager=guid) | PrivateName(queue_manager=guid):
            machine, _ = await in_time(manager, resolver.entries.machine(guid))
            return await _machine(manager, machine)
        case DirectName(private=False, suffix=None, subqueue=None) if spelled.queue:
            path = f"{manager.name if spelled.host == '.' else spelled.host}\\{spelled.queue}"
            entry, _ = await in_time(manager, resolver.entries.queue_by_path(path))
            return _queue(entry)
    raise Refusal(
        "name_needs_no_directory",
        f"{text} is no entry of a directory",
        "Look up PUBLIC=guid, DL=guid, MACHINE=guid, host\\queue, list:NAME, alias:NAME or a"
        " computer's name; `qmd name explain` tells of any name.",
    )


async def create_list(manager: QueueManager, request: frames.CreateList) -> Value:
    name = _entry_name(request.name, LIST_PREFIX)
    members = await _members(manager, request.members)
    entry = await in_time(manager, manager.directory.create_list(name, members))
    manager.resolver.forget()
    return await _list(manager, entry)


async def delete_list(manager: QueueManager, request: frames.DeleteList) -> Value:
    entry = await _find_list(manager, request.name)
    await in_time(manager, manager.directory.delete_list(entry.guid))
    manager.resolver.forget()
    return {"name": entry.name, "deleted": True}


async def add_members(manager: QueueManager, request: frames.AddMembers) -> Value:
    entry = await _find_list(manager, request.name)
    members = await _members(manager, request.members)
    entry = await in_time(manager, manager.directory.add_members(entry.guid, members))
    manager.resolver.forget()
    return await _list(manager, entry)


async def remove_members(manager: QueueManager, request: frames.RemoveMembers) -> Value:
    entry = await _find_list(manager, request.name)
    members = await _members(manager, request.members)
    entry = await in_time(manager, manager.directory.remove_members(entry.guid, members))
    manager.resolver.forget()
    return await _list(manager, entry)


async def show_list(manager: QueueManager, request: frames.ShowList) -> Value:
    return await _list(manager, await _find_list(manager, request.name))


async def expand_list(manager: QueueManager, request: frames.ExpandList) -> list[Value]:
    entry = await _find_list(manager, request.name)
    rows: list[Value] = []
    try:
        found = await manager.resolver.resolve(DistributionListName(entry.guid))
    except Refusal as refusal:
        if refusal.code == "list_is_empty":
            return rows
        raise
    for target in found.targets:
        path = None
        if isinstance(target.name, PublicName):
            path = manager.routes.path_of_guid(target.name.queue)
            if path is None:
                public, _ = await manager.resolver.entries.queue(target.name.queue)
                path = public.path
        rows.append(
            {
                "name": str(target.name),
                "path": path,
                "machine": None if target.machine is None else target.machine.name,
                "address": None if target.direct is None else address_of(target.direct),
                "transactional": target.transactional,
            }
        )
    return rows


async def list_lists(manager: QueueManager, request: frames.ListLists) -> list[Value]:
    entries = await in_time(manager, manager.directory.lists())
    return [
        {
            "name": entry.name,
            "format_name": str(DistributionListName(entry.guid)),
            "members": len(entry.members),
        }
        for entry in entries
    ]


async def list_aliases(manager: QueueManager, request: frames.ListAliases) -> list[Value]:
    return [_alias(entry) for entry in await in_time(manager, manager.directory.aliases())]


async def create_alias(manager: QueueManager, request: frames.CreateAlias) -> Value:
    name = _entry_name(request.name, ALIAS_PREFIX)
    (target,) = await _members(manager, [request.stands_for])
    if isinstance(target, DistributionListName):
        raise Refusal(
            "name_not_single",
            f"{request.stands_for} is a list, and an alias stands for one queue",
            "Put the list into a list: qmd dl create NAME list:OTHER",
        )
    entry = await in_time(manager, manager.directory.create_alias(name, target))
    manager.resolver.forget()
    return _alias(entry)


async def delete_alias(manager: QueueManager, request: frames.DeleteAlias) -> Value:
    name = _entry_name(request.name, ALIAS_PREFIX)
    await in_time(manager, manager.directory.delete_alias(name))
    manager.resolver.forget()
    return {"name": name, "deleted": True}


#: Verbs that change nothing, and those that do.
LOOKS: dict[type, Callable[[QueueManager, Any], Coroutine[Any, Any, object]]] = {
    frames.DirectoryStatus: status,
    frames.DirectoryLookup: lookup,
    frames.ShowList: show_list,
    frames.ExpandList: expand_list,
    frames.ListLists: list_lists,
    frames.ListAliases: list_aliases,
}
CHANGES: dict[type, Callable[[QueueManager, Any], Coroutine[Any, Any, object]]] = {
    frames.DirectoryReload: reload,
    frames.CreateList: create_list,
    frames.DeleteList: delete_list,
    frames.AddMembers: add_members,
    frames.RemoveMembers: remove_members,
    frames.CreateAlias: create_alias,
    frames.DeleteAlias: delete_alias,
}


def address_of(name: DirectName) -> str:
    return f"[{name.host}]:{name.port}" if ":" in name.host else f"{name.host}:{name.port}"


def _status(manager: QueueManager) -> Value:
    found = manager.directory.status()
    settings = manager.settings.directory
    return {
        "kind": found.kind,
        "state": found.state,
        "where": found.where,
        "problem": found.problem,
        "since": time_text(found.since_s * 1000) if found.since_s else None,
        "writable": found.writable,
        **dict(found.counts),
        "kept": len(manager.resolver.entries),
        "kept_s": settings.age_s,
        "asked": manager.resolver.entries.asked_count,
        "answered_from_kept": manager.resolver.entries.kept_count,
        "has_yet_to_hear": [
            f"{each.path} {'was deleted' if each.deleted else 'has changed'}"
            for each in manager.publishing.waiting
        ],
        "acknowledgments_waiting": manager.acknowledging.addressing.count,
    }


def _queue(entry: QueueEntry) -> Value:
    return {
        "entry": "queue",
        "path": entry.path,
        "format_name": str(PublicName(entry.guid)),
        "label": entry.label,
        "transactional": entry.transactional,
        "type": None if entry.type == NULL_GUID else guid_text(entry.type),
        "machine": entry.machine.name,
        "queue_manager": guid_text(entry.machine.guid),
        "addresses": list(entry.machine.addresses),
    }


async def _machine(manager: QueueManager, entry: MachineEntry) -> Value:
    sites: dict[bytes, SiteEntry] = {}
    if entry.sites:
        sites = {each.guid: each for each in await in_time(manager, manager.directory.sites())}
    return {
        "entry": "machine",
        "name": entry.name,
        "queue_manager": guid_text(entry.guid),
        "addresses": list(entry.addresses),
        "sites": [sites[each].name if each in sites else guid_text(each) for each in entry.sites],
        "in_routers": [await _machine_name(manager, each) for each in entry.in_routers],
        "out_routers": [await _machine_name(manager, each) for each in entry.out_routers],
        "routes": entry.routes,
        "foreign": entry.foreign,
    }


async def _machine_name(manager: QueueManager, guid: bytes) -> str:
    try:
        machine, _ = await manager.resolver.entries.machine(guid)
    except NotInDirectory:
        return guid_text(guid)
    return machine.name


async def _list(manager: QueueManager, entry: ListEntry) -> Value:
    return {
        "entry": "list",
        "name": entry.name,
        "format_name": str(DistributionListName(entry.guid)),
        "members": [await _member(manager, each) for each in entry.members],
    }


async def _member(manager: QueueManager, member: SingleName) -> Value:
    path = None
    try:
        if isinstance(member, PublicName):
            queue, _ = await manager.resolver.entries.queue(member.queue)
            path = queue.path
        elif isinstance(member, DistributionListName):
            inner, _ = await manager.resolver.entries.distribution_list(member)
            path = f"{LIST_PREFIX}{inner.name}"
    except NotInDirectory:
        path = "(not in the directory)"
    kind = "list" if isinstance(member, DistributionListName) else "queue"
    return {"name": str(member), "kind": kind, "path": path}


def _entry_name(text: str, prefix: str) -> str:
    """The name of a list or an alias, with or without its prefix.  Raises Refusal."""
    name = text[len(prefix) :] if text.lower().startswith(prefix) else text
    kind = prefix[:-1]
    try:
        return ENTRY_NAME.check(name, kind, 0)
    except InvalidName as error:
        what = f"{text!r} can be no name of a {kind}: {error}"
        raise Refusal("name_not_understood", what) from error


def _alias(entry: AliasEntry) -> Value:
    return {
        "entry": "alias",
        "name": entry.name,
        "guid": guid_text(entry.guid),
        "stands_for": str(entry.target),
    }


async def _find_list(manager: QueueManager, text: str) -> ListEntry:
    if text.lower().startswith("dl="):
        (name,) = manager.resolver.parse(text)
        assert isinstance(name, DistributionListName)
        entry = manager.directory.distribution_list(name.distribution_list, name.domain)
    else:
        entry = manager.directory.list_by_name(_entry_name(text, LIST_PREFIX))
    return await in_time(manager, entry)  # always anew: somebody looks at it, or changes it


async def _members(manager: QueueManager, texts: list[str]) -> list[SingleName]:
    """What is to be in a list, or out of it.  Raises Refusal."""
    found: list[SingleName] = []
    for text in texts:
        name, _ = await in_time(manager, manager.resolver.understand(text))
        if not isinstance(name, SingleName):
            raise _not_one(text)
        if name.read_only:
            raise Refusal("queue_read_only", f"{name} cannot be sent to, and so is in no list")
        here = manager.routes.find_here(name)
        if here is not None and here.is_public:
            name = PublicName(here.guid)
        elif isinstance(name, DirectName) and name.host == ".":
            # In a list it has to mean this computer wherever it is read.
            port = manager.listening[0][1] if manager.listening else PORT
            name = replace(name, host=manager.name, port=port)
        found.append(name)
    return found


def _not_one(text: str) -> Refusal:
    return Refusal("name_not_single", f"{text} is several names", "Give them one by one.")
