"""Distribution lists of a collection, compared with the directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qmd.migration.collection import Collection, DistributionList, Member
from qmd.migration.rights import Gap
from qmd.migration.steps import Plan, Step

if TYPE_CHECKING:
    from qmd.client import QueueManager


async def plan_lists(qm: QueueManager, plan: Plan, collection: Collection, directory: str) -> None:
    """Add the steps and the gaps for distribution lists."""
    if not collection.lists:
        return
    if directory == "active-directory":
        return  # they are there already
    if directory == "none":
        plan.gaps.append(
            Gap(
                "distribution lists",
                ", ".join(each.name for each in collection.lists),
                "this queue manager has no directory",
                "Configure a file or the Active Directory: docs/directory.md.",
            )
        )
        return
    present = {str(each["name"]).casefold() for each in await qm.directory.lists()}
    names = {each.guid: each.name for each in collection.lists}
    for each in _members_first(collection.lists):
        members = _spelled(each, names, collection.computer, plan.gaps)
        if each.name.casefold() not in present:
            plan.steps.append(_step("create-list", each.name, members))
            continue
        shown = await qm.directory.show_list(each.name)
        there = {
            str(text).casefold()
            for one in shown["members"]
            for text in (one["name"], one["path"])
            if text
        }
        own = (await qm.status())["name"]
        missing = [
            one
            for one in members
            if one.casefold() not in there
            and f"{own}{one.removeprefix('.')}".casefold() not in there
        ]
        if missing:
            plan.steps.append(_step("add-members", each.name, missing))


def _step(action: str, name: str, members: list[str]) -> Step:
    async def do(qm: QueueManager) -> object:
        if action == "create-list":
            return await qm.directory.create_list(name, members)
        return await qm.directory.add_members(name, members)

    return Step(action, name, ", ".join(members), do)


def _members_first(lists: list[DistributionList]) -> list[DistributionList]:
    """Return nested lists before those that contain them; cycles in any order."""
    by_guid = {each.guid: each for each in lists}
    found: dict[str, DistributionList] = {}
    open_: set[str] = set()

    def visit(each: DistributionList) -> None:
        if each.guid in found or each.guid in open_:
            return
        open_.add(each.guid)
        for member in each.members:
            if member.guid in by_guid:
                visit(by_guid[member.guid])
        found[each.guid] = each

    for each in lists:
        visit(each)
    return list(found.values())


def _spelled(
    each: DistributionList, names: dict[str, str], computer: str, gaps: list[Gap]
) -> list[str]:
    found: list[str] = []
    for member in each.members:
        name = _name(member, names, computer)
        if name:
            found.append(name)
        else:
            gaps.append(
                Gap(
                    each.name,
                    f"the member {member.dn or member.guid} ({member.class_})",
                    "it is neither a queue nor an alias nor a collected list",
                )
            )
    return found


def _name(member: Member, names: dict[str, str], computer: str) -> str:
    """Return the name of a member; queues of the collected computer are on this one now."""
    if member.guid in names:
        return f"list:{names[member.guid]}"
    if member.format_name:
        return member.format_name
    host, _, queue = member.path.partition("\\")
    return f".\\{queue}" if host.casefold() == computer.casefold() else member.path
