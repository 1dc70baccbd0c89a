"""What the control socket speaks about the directory, and about what names mean.

The verbs that `qmd/control_protocol/messages.py` has no room for.  A distribution list is named by
`list:NAME`, `NAME`
or `DL=guid`; a member by any spelling of one queue, or as another list or alias.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from qmd.control_protocol.messages import Request, add_verbs

MEMBERS_MAX = 10_000  # in one request

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=70_000)]
Members = Annotated[list[Name], msgspec.Meta(max_length=MEMBERS_MAX)]


class DirectoryStatus(Request, tag="directory_status", frozen=True):
    """-> {kind, state, where, problem, since, writable, queues, lists, ..., kept, asked}"""


class DirectoryReload(Request, tag="directory_reload", frozen=True):
    """Forget what the directory said, and read its file anew.  -> as `DirectoryStatus`"""


class DirectoryLookup(Request, tag="directory_lookup", frozen=True):
    r"""One entry: `PUBLIC=guid`, `DL=guid`, `MACHINE=guid`, `host\queue`, `list:NAME`,
    `alias:NAME`, or a computer's name.

    -> what the directory has of it; `entry` says what kind it is.

    `fresh`: asked anew, whatever is kept.
    """

    name: Name
    fresh: bool = False


class CreateList(Request, tag="create_list", frozen=True):
    """-> the list, as `ShowList` gives it"""

    name: Name
    members: Members


class DeleteList(Request, tag="delete_list", frozen=True):
    """-> {name, deleted}; it goes out of the lists that it is in."""

    name: Name


class AddMembers(Request, tag="add_members", frozen=True):
    """All or none; what is there already stays.  -> the list, as `ShowList` gives it"""

    name: Name
    members: Members


class RemoveMembers(Request, tag="remove_members", frozen=True):
    """All or none.  -> the list, as `ShowList` gives it"""

    name: Name
    members: Members


class ShowList(Request, tag="show_list", frozen=True):
    """-> {name, format_name, members: [{name, kind, path}, ...]}"""

    name: Name


class ExpandList(Request, tag="expand_list", frozen=True):
    """-> [{name, path, machine, address, transactional}, ...]: each queue, once."""

    name: Name


class ListLists(Request, tag="list_lists", frozen=True):
    """-> [{name, format_name, members: how many}, ...]"""


class ListAliases(Request, tag="list_aliases", frozen=True):
    """-> [{entry, name, guid, stands_for}, ...]"""


class CreateAlias(Request, tag="create_alias", frozen=True):
    """Another name for one queue.  -> it, as `ListAliases` gives it"""

    name: Name
    stands_for: Name


class DeleteAlias(Request, tag="delete_alias", frozen=True):
    """-> {name, deleted}"""

    name: Name


class ExplainName(Request, tag="explain_name", frozen=True):
    """How a destination is understood, and where a message to it would go; nothing is sent.

    -> {text, format_name, sendable, refusal, elements: [{text, format_name, kind, ..., targets: [{
    name, queue: one of ours, address, machine, transactional, next_hop, refusal}, ...], refusal},
    ...]}
    A refusal is {id, code, text, remedy}.
    """

    name: Name


DirectoryRequest = (
    DirectoryStatus
    | DirectoryReload
    | DirectoryLookup
    | CreateList
    | DeleteList
    | AddMembers
    | RemoveMembers
    | ShowList
    | ExpandList
    | ListLists
    | ListAliases
    | CreateAlias
    | DeleteAlias
    | ExplainName
)
add_verbs(DirectoryRequest)
