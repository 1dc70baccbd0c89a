"""Handlers of the verbs about the directory: look-ups and changes, as plain values for JSON."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from protocol.errors import InvalidName
from protocol.identifiers import NULL_GUID, guid_text
from protocol.names.direct_name import PORT, DirectName
from protocol.names.format_name import (
    DistributionListName,
    MachineName,
    MulticastName,
    PrivateName,
    PublicName,
    SingleName,
)
from qmd.control.handler import Handler, change, look
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
from qmd.directory.targets import no_multicast
from qmd.errors import Refusal
from qmd.history.event_query import time_text

if TYPE_CHECKING:
    from qmd.control.components import Components

Value = dict[str, Any]


async def status(components: Components, request: frames.DirectoryStatus) -> Value:
    return _status(components)


async def reload(components: Components, request: frames.DirectoryReload) -> Value:
    await components.reload_directory()
    return _status(components)


async def lookup(components: Components, request: frames.DirectoryLookup) -> Value:
    if request.fresh:
        components.resolver.forget()
    text = request.name
    if not any(mark in text for mark in "\\=:"):
        machine = await in_time(
            components.services, components.directory, components.directory.machine_by_name(text)
        )
        return await _machine(components, machine)
    (spelled, *more) = components.resolver.parse(text)
    if more:
        raise _not_one(text)
    resolver = components.resolver
    match spelled:
        case PublicName():
            entry, _ = await in_time(
                components.services, components.directory, resolver.entries.queue(spelled.queue)
            )
            return _queue(entry)
        case QueuePath():
            entry, _ = await in_time(
                components.services,
                components.directory,
                resolver.entries.queue_by_path(spelled.path),
            )
            return _queue(entry)
        case DistributionListName() | ListPath():
            return await _list(components, await _find_list(components, text))
        case AliasPath():
            return _alias(
                await in_time(
                    components.services,
                    components.directory,
                    components.directory.alias(spelled.name),
                )
            )
        case MachineName(queue_manager=guid) | PrivateName(queue_manager=guid):
            machine, _ = await in_time(
                components.services, components.directory, resolver.entries.machine(guid)
            )
            return await _machine(components, machine)
        case DirectName(private=False, suffix=None, subqueue=None) if spelled.queue:
            host = components.services.name if spelled.host == "." else spelled.host
            path = f"{host}\\{spelled.queue}"
            entry, _ = await in_time(
                components.services, components.directory, resolver.entries.queue_by_path(path)
            )
            return _queue(entry)
    raise Refusal(
        "name_needs_no_directory",
        f"{text} is not an entry of a directory",
        "Look up PUBLIC=guid, DL=guid, MACHINE=guid, host\\queue, list:NAME, alias:NAME or a"
        " computer's name; `qmd name explain` explains any name.",
    )


async def create_list(components: Components, request: frames.CreateList) -> Value:
    name = _entry_name(request.name, LIST_PREFIX)
    members = await _members(components, request.members)
    entry = await in_time(
        components.services,
        components.directory,
        components.directory.changes.create_list(name, members),
    )
    components.resolver.forget()
    return await _list(components, entry)


async def delete_list(components: Components, request: frames.DeleteList) -> Value:
    entry = await _find_list(components, request.name)
    await in_time(
        components.services,
        components.directory,
        components.directory.changes.delete_list(entry.guid),
    )
    components.resolver.forget()
    return {"name": entry.name, "deleted": True}


async def add_members(components: Components, request: frames.AddMembers) -> Value:
    entry = await _find_list(components, request.name)
    members = await _members(components, request.members)
    entry = await in_time(
        components.services,
        components.directory,
        components.directory.changes.add_members(entry.guid, members),
    )
    components.resolver.forget()
    return await _list(components, entry)


async def remove_members(components: Components, request: frames.RemoveMembers) -> Value:
    entry = await _find_list(components, request.name)
    members = await _members(components, request.members, to_add=False)
    entry = await in_time(
        components.services,
        components.directory,
        components.directory.changes.remove_members(entry.guid, members),
    )
    components.resolver.forget()
    return await _list(components, entry)


async def show_list(components: Components, request: frames.ShowList) -> Value:
    return await _list(components, await _find_list(components, request.name))


async def expand_list(components: Components, request: frames.ExpandList) -> list[Value]:
    entry = await _find_list(components, request.name)
    rows: list[Value] = []
    try:
        found = await components.resolver.resolve(DistributionListName(entry.guid))
    except Refusal as refusal:
        if refusal.code == "list_is_empty":
            return rows
        raise
    for target in found.targets:
        path = None
        if isinstance(target.name, PublicName):
            path = components.destinations.path_of_guid(target.name.queue)
            if path is None:
                public, _ = await components.resolver.entries.queue(target.name.queue)
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


async def list_lists(components: Components, request: frames.ListLists) -> list[Value]:
    entries = await in_time(components.services, components.directory, components.directory.lists())
    return [
        {
            "name": entry.name,
            "format_name": str(DistributionListName(entry.guid)),
            "members": len(entry.members),
        }
        for entry in entries
    ]


async def list_aliases(components: Components, request: frames.ListAliases) -> list[Value]:
    return [
        _alias(entry)
        for entry in await in_time(
            components.services, components.directory, components.directory.aliases()
        )
    ]


async def create_alias(components: Components, request: frames.CreateAlias) -> Value:
    name = _entry_name(request.name, ALIAS_PREFIX)
    (target,) = await _members(components, [request.stands_for])
    if isinstance(target, DistributionListName):
        raise Refusal(
            "name_not_single",
            f"{request.stands_for} is a list, and an alias stands for one queue",
            "Put the list into a list: qmd dl create NAME list:OTHER",
        )
    entry = await in_time(
        components.services,
        components.directory,
        components.directory.changes.create_alias(name, target),
    )
    components.resolver.forget()
    return _alias(entry)


async def delete_alias(components: Components, request: frames.DeleteAlias) -> Value:
    name = _entry_name(request.name, ALIAS_PREFIX)
    await in_time(
        components.services, components.directory, components.directory.changes.delete_alias(name)
    )
    components.resolver.forget()
    return {"name": name, "deleted": True}


async def publish_keys(components: Components, request: frames.PublishKeys) -> Value:
    services, directory = components.services, components.directory
    keys = components.message_protection.own_keys()
    work = directory.changes.publish_keys(services.id, services.name, keys)
    await in_time(services, directory, work)
    components.resolver.forget()
    return {"queue_manager": guid_text(services.id), "fingerprint": _keys_fingerprint(keys)}


HANDLERS: dict[type, Handler] = {
    frames.DirectoryStatus: look(status),
    frames.DirectoryLookup: look(lookup),
    frames.ShowList: look(show_list),
    frames.ExpandList: look(expand_list),
    frames.ListLists: look(list_lists),
    frames.ListAliases: look(list_aliases),
    frames.DirectoryReload: change(reload),
    frames.CreateList: change(create_list),
    frames.DeleteList: change(delete_list),
    frames.AddMembers: change(add_members),
    frames.RemoveMembers: change(remove_members),
    frames.CreateAlias: change(create_alias),
    frames.DeleteAlias: change(delete_alias),
    frames.PublishKeys: change(publish_keys),
}


def address_of(name: DirectName) -> str:
    return f"[{name.host}]:{name.port}" if ":" in name.host else f"{name.host}:{name.port}"


def _status(components: Components) -> Value:
    found = components.directory.status()
    settings = components.services.settings.directory
    return {
        "kind": found.kind,
        "state": found.state,
        "where": found.where,
        "problem": found.problem,
        "since": time_text(found.since_s * 1000) if found.since_s else None,
        "writable": found.writable,
        **dict(found.counts),
        "kept": len(components.resolver.entries),
        "kept_s": settings.age_s,
        "asked": components.resolver.entries.asked_count,
        "answered_from_kept": components.resolver.entries.kept_count,
        "has_yet_to_hear": [
            f"{each.path} {'was deleted' if each.deleted else 'has changed'}"
            for each in components.registration.waiting
        ],
        "acknowledgments_waiting": components.deferred_acknowledgments.count,
    }


def _keys_fingerprint(keys: bytes) -> str | None:
    """Return the fingerprint of the key that is used for AES, as `qmd key list`, or None."""
    from qmd.message_security.keyring import BadKey, key_fingerprint, load_receiver_key

    try:
        return key_fingerprint(load_receiver_key(keys)) if keys else None
    except BadKey:
        return None


def _queue(entry: QueueEntry) -> Value:
    return {
        "entry": "queue",
        "path": entry.path,
        "format_name": str(PublicName(entry.guid)),
        "label": entry.label,
        "transactional": entry.transactional,
        "type": None if entry.type == NULL_GUID else guid_text(entry.type),
        "authenticate": entry.authenticate,
        "privacy": entry.privacy,
        "machine": entry.machine.name,
        "queue_manager": guid_text(entry.machine.guid),
        "addresses": list(entry.machine.addresses),
    }


async def _machine(components: Components, entry: MachineEntry) -> Value:
    sites: dict[bytes, SiteEntry] = {}
    if entry.sites:
        sites = {
            each.guid: each
            for each in await in_time(
                components.services, components.directory, components.directory.sites()
            )
        }
    return {
        "entry": "machine",
        "name": entry.name,
        "queue_manager": guid_text(entry.guid),
        "addresses": list(entry.addresses),
        "sites": [sites[each].name if each in sites else guid_text(each) for each in entry.sites],
        "in_routers": [await _machine_name(components, each) for each in entry.in_routers],
        "out_routers": [await _machine_name(components, each) for each in entry.out_routers],
        "routes": entry.routes,
        "foreign": entry.foreign,
        "encryption_key": _keys_fingerprint(entry.encryption_keys),
    }


async def _machine_name(components: Components, guid: bytes) -> str:
    try:
        machine, _ = await components.resolver.entries.machine(guid)
    except NotInDirectory:
        return guid_text(guid)
    return machine.name


async def _list(components: Components, entry: ListEntry) -> Value:
    return {
        "entry": "list",
        "name": entry.name,
        "format_name": str(DistributionListName(entry.guid)),
        "members": [await _member(components, each) for each in entry.members],
    }


async def _member(components: Components, member: SingleName) -> Value:
    path = None
    try:
        if isinstance(member, PublicName):
            queue, _ = await components.resolver.entries.queue(member.queue)
            path = queue.path
        elif isinstance(member, DistributionListName):
            inner, _ = await components.resolver.entries.distribution_list(member)
            path = f"{LIST_PREFIX}{inner.name}"
    except NotInDirectory:
        path = "(not in the directory)"
    kind = "list" if isinstance(member, DistributionListName) else "queue"
    return {"name": str(member), "kind": kind, "path": path}


def _entry_name(text: str, prefix: str) -> str:
    """Return the name of a list or an alias without its prefix.  Raises Refusal."""
    name = text[len(prefix) :] if text.lower().startswith(prefix) else text
    kind = prefix[:-1]
    try:
        return ENTRY_NAME.check(name, kind, 0)
    except InvalidName as error:
        what = f"{text!r} cannot be the name of a {kind}: {error}"
        raise Refusal("name_not_understood", what) from error


def _alias(entry: AliasEntry) -> Value:
    return {
        "entry": "alias",
        "name": entry.name,
        "guid": guid_text(entry.guid),
        "stands_for": str(entry.target),
    }


async def _find_list(components: Components, text: str) -> ListEntry:
    if text.lower().startswith("dl="):
        (name,) = components.resolver.parse(text)
        assert isinstance(name, DistributionListName)
        entry = components.directory.distribution_list(name.distribution_list, name.domain)
    else:
        entry = components.directory.list_by_name(_entry_name(text, LIST_PREFIX))
    # The cache is not used: an operator displays or changes the list.
    return await in_time(components.services, components.directory, entry)


async def _members(
    components: Components, texts: list[str], *, to_add: bool = True
) -> list[SingleName]:
    """Return the names of members to add to a list or to remove from it.  Raises Refusal."""
    found: list[SingleName] = []
    for text in texts:
        name, _ = await in_time(
            components.services, components.directory, components.resolver.understand(text)
        )
        if not isinstance(name, SingleName):
            raise _not_one(text)
        if name.read_only:
            raise Refusal(
                "queue_read_only", f"{name} cannot be sent to, so it cannot be a member of a list"
            )
        if isinstance(name, MulticastName) and to_add:
            raise no_multicast(str(name))
        here = components.destinations.find_here(name)
        if here is not None and here.is_public:
            name = PublicName(here.guid)
        elif isinstance(name, DirectName) and name.host == ".":
            # A list is read on other computers too: the member must name this computer.
            port = components.services.listening[0][1] if components.services.listening else PORT
            name = replace(name, host=components.services.name, port=port)
        found.append(name)
    return found


def _not_one(text: str) -> Refusal:
    return Refusal(
        "name_not_single", f"{text} contains several names", "Give each name separately."
    )
