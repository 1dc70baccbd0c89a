"""Requests about the directory and about the meaning of names.

These verbs supplement `qmd/control_protocol/messages.py`. A distribution list is named by
`list:NAME`, `NAME` or `DL=guid`; a member is named by any spelling of one queue, or as another list
or alias.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from qmd.control_protocol.messages import Request, add_verbs

MEMBERS_MAX = 10_000  # in one request
CERTIFICATE_BYTES_MAX = 0xFFFF  # of one certificate in DER

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=70_000)]
Members = Annotated[list[Name], msgspec.Meta(max_length=MEMBERS_MAX)]


class DirectoryStatus(Request, tag="directory_status", frozen=True):
    """Return the state of the directory.

    -> {kind, state, where, problem, since, writable, queues, lists, ..., kept, asked}
    """


class DirectoryReload(Request, tag="directory_reload", frozen=True):
    """Clear the cache of the directory, and read its file again. -> as `DirectoryStatus`"""


class DirectoryLookup(Request, tag="directory_lookup", frozen=True):
    r"""Look up one entry: `PUBLIC=guid`, `DL=guid`, `MACHINE=guid`, `host\queue`, `list:NAME`,
    `alias:NAME`, or a computer's name.

    -> the data of the entry; `entry` is its kind

    `fresh`: query the directory even if the entry is cached.
    """

    name: Name
    fresh: bool = False


class CreateList(Request, tag="create_list", frozen=True):
    """Create a distribution list. -> the list, as in `ShowList`"""

    name: Name
    members: Members


class DeleteList(Request, tag="delete_list", frozen=True):
    """Delete a list, and remove it from all lists that contain it. -> {name, deleted}"""

    name: Name


class AddMembers(Request, tag="add_members", frozen=True):
    """Add all members or none; existing members stay. -> the list, as in `ShowList`"""

    name: Name
    members: Members


class RemoveMembers(Request, tag="remove_members", frozen=True):
    """Remove all members or none. -> the list, as in `ShowList`"""

    name: Name
    members: Members


class ShowList(Request, tag="show_list", frozen=True):
    """Show a list. -> {name, format_name, members: [{name, kind, path}, ...]}"""

    name: Name


class ExpandList(Request, tag="expand_list", frozen=True):
    """Expand a list to its queues, each once.

    -> [{name, path, machine, address, transactional}, ...]
    """

    name: Name


class ListLists(Request, tag="list_lists", frozen=True):
    """List the distribution lists. -> [{name, format_name, members: how many}, ...]"""


class ListAliases(Request, tag="list_aliases", frozen=True):
    """List the aliases. -> [{entry, name, guid, stands_for}, ...]"""


class CreateAlias(Request, tag="create_alias", frozen=True):
    """Create an alias, another name for one queue. -> the alias, as in `ListAliases`"""

    name: Name
    stands_for: Name


class DeleteAlias(Request, tag="delete_alias", frozen=True):
    """Delete an alias. -> {name, deleted}"""

    name: Name


class PublishKeys(Request, tag="publish_keys", frozen=True):
    """Publish the public key of this queue manager, for encrypted messages to it.

    -> {queue_manager, fingerprint}
    """


class RegisterCertificate(Request, tag="register_certificate", frozen=True):
    """Register a certificate (DER) for a sender in the directory: a SID, or a GUID.

    -> {sender, fingerprint, registered: whether it is new}
    """

    sender: Name
    certificate: Annotated[bytes, msgspec.Meta(max_length=CERTIFICATE_BYTES_MAX)]


class RemoveCertificate(Request, tag="remove_certificate", frozen=True):
    """Remove a certificate of a sender from the directory by its SHA-256.

    -> {sender, fingerprint, removed: whether it was there}
    """

    sender: Name
    fingerprint: Name


class ListCertificates(Request, tag="list_certificates", frozen=True):
    """List the certificates that the directory has for a sender: a SID, or a GUID.

    -> [{sender, subject, issuer, serial, fingerprint, expires, key_bits}, ...]
    """

    sender: Name


class ExplainName(Request, tag="explain_name", frozen=True):
    """Explain the interpretation of a destination and the route of a message; nothing is sent.

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
    | PublishKeys
    | RegisterCertificate
    | RemoveCertificate
    | ListCertificates
    | ExplainName
)
add_verbs(DirectoryRequest)
