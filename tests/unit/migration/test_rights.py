"""Security descriptors of Windows, and the entries that they become."""

from __future__ import annotations

import pytest

from qmd.core.access import SETS
from qmd.migration.errors import BadSource
from qmd.migration.rights import Accounts, differences, wanted_rights
from qmd.migration.security_descriptor import AccessEntry, parse_descriptor
from tests.windows_files import (
    ADMINISTRATORS,
    ANN,
    ANONYMOUS,
    AUTHENTICATED,
    DEFAULT,
    EVERYONE,
    FULL,
    PEEK,
    RECEIVE,
    RECEIVE_JOURNAL,
    USUAL,
    WRITE,
    descriptor,
)

USUAL_RIGHTS = {"send", "get-properties", "get-permissions"}
NEW = {"entries": [], "default": "send,get-properties,get-permissions", "owner": None}


def wanted(entries, owner=ADMINISTRATORS, accounts=None, names=None):
    return wanted_rights(
        "private$\\orders",
        parse_descriptor(descriptor(entries, owner)),
        names or {},
        Accounts(accounts or {}),
    )


def test_a_descriptor_is_parsed():
    found = parse_descriptor(descriptor([(ANN, False, RECEIVE), (EVERYONE, True, WRITE)], ANN))

    assert found.owner == ANN
    assert found.entries == (AccessEntry(ANN, False, RECEIVE), AccessEntry(EVERYONE, True, WRITE))


@pytest.mark.parametrize("cut", [0, 10, 19, 21, 40, 55])
def test_a_cut_descriptor_is_refused(cut):
    with pytest.raises(BadSource):
        parse_descriptor(descriptor(DEFAULT)[:cut])


def test_a_descriptor_with_a_size_beyond_its_end_is_refused():
    raw = bytearray(descriptor(DEFAULT))
    at = int.from_bytes(raw[16:20], "little")
    raw[at + 2 : at + 4] = b"\xff\xff"

    with pytest.raises(BadSource):
        parse_descriptor(bytes(raw))


def test_the_usual_rights_are_the_default_here():
    found = wanted(DEFAULT)

    assert found.gaps == []
    assert found.owner is None
    assert found.entries["everyone", "allow"] == USUAL_RIGHTS
    assert found.entries["anonymous", "allow"] == {"send"}


def test_without_an_entry_for_anonymous_senders_they_are_denied():
    """Everyone includes them here, and does not on Windows."""
    found = wanted([(EVERYONE, True, USUAL)])

    assert found.entries["anonymous", "deny"] == USUAL_RIGHTS


def test_without_an_access_list_everyone_has_all_rights():
    found = wanted(None)

    assert found.entries["everyone", "allow"] == SETS["full"]
    assert [gap.what for gap in found.gaps] == ["no access list"]


def test_an_account_becomes_the_principal_that_the_administrator_names():
    entries = [(ANN, True, RECEIVE | RECEIVE_JOURNAL | WRITE)]
    for key in ("contoso\\ANN", ANN):
        found = wanted(entries, ANN, {key: "user:ann"}, {ANN: "CONTOSO\\ann"})

        assert found.gaps == []
        assert found.owner == "user:ann"
        assert found.entries["user:ann", "allow"] == {
            *("send", "receive", "purge", "peek", "receive-journal"),
        }


def test_an_unknown_account_may_only_send_signed_messages():
    found = wanted([(ANN, True, RECEIVE | WRITE)], names={ANN: "CONTOSO\\ann"})

    assert found.entries[f"sid:{ANN}", "allow"] == {"send"}
    (gap,) = found.gaps
    assert "CONTOSO\\ann" in gap.what
    assert gap.remedy == "Name one: --account 'CONTOSO\\ann=user:NAME'."


def test_half_of_a_right_is_not_granted_and_half_of_a_denial_denies():
    found = wanted([(EVERYONE, True, 0x1), (ANONYMOUS, False, 0x1)])

    assert found.entries["everyone", "allow"] == set()
    assert found.entries["anonymous", "deny"] == {"receive", "purge"}


def test_generic_rights():
    found = wanted([(EVERYONE, True, 0x10000000), (ANONYMOUS, True, 0x40000000)])

    assert found.entries["everyone", "allow"] == SETS["full"]
    assert found.entries["anonymous", "allow"] == USUAL_RIGHTS


def test_authenticated_users_become_local_programs():
    found = wanted([(AUTHENTICATED, True, PEEK)])

    assert found.entries["local", "allow"] == {"peek"}
    assert [gap.what for gap in found.gaps] == ["Authenticated Users"]


def test_only_differences_are_changed():
    found = wanted(
        [(EVERYONE, True, USUAL), (ANONYMOUS, True, USUAL), (ANN, False, RECEIVE)],
        accounts={ANN: "user:ann"},
    )

    assert differences(found.entries, NEW) == [
        ("grant", "anonymous", frozenset(USUAL_RIGHTS)),
        ("deny", "user:ann", frozenset({"receive", "purge", "peek", "receive-journal"})),
    ]


def test_a_queue_closed_on_windows_is_closed_here():
    found = wanted([(ADMINISTRATORS, True, FULL)])

    assert differences(found.entries, NEW) == [("revoke", "everyone", frozenset(USUAL_RIGHTS))]


def test_other_principals_stay_unless_they_are_pruned():
    shown = {
        "entries": [{"principal": "user:bob", "effect": "allow", "rights": "receive,peek"}],
        "default": NEW["default"],
    }
    entries = wanted([(EVERYONE, True, USUAL), (ANONYMOUS, True, USUAL)]).entries

    assert [each[1] for each in differences(entries, shown)] == ["anonymous"]
    assert ("revoke", "user:bob", frozenset({"receive", "peek"})) in differences(
        entries, shown, prune=True
    )


def test_a_bad_principal_is_refused():
    with pytest.raises(BadSource, match="ann"):
        Accounts({"CONTOSO\\ann": "nobody:ann"})
