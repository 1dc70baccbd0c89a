"""Rights on all queues of another computer, and of all other computers."""

from __future__ import annotations

from typing import Any

import pytest

from qmd.access.demands import TO_SEND, WRITE
from qmd.access.elsewhere import computer_of
from qmd.access.rights import Rights, rights_of
from qmd.access.tokens import Grant
from qmd.control_protocol import access
from qmd.control_protocol import messages as frames
from qmd.control_protocol.access import ImportedEntry
from qmd.control_protocol.messages import NewMessage, Refused
from qmd.core.access import Caller
from qmd.core.principals import parse_principal
from qmd.errors import Refusal
from tests.integration.control.test_local_users import ANN, BOB, user
from tests.integration.managers import Host, Hosts, hosted
from tests.users import needs_root

HERE = "DIRECT=OS:hostb\\private$\\orders"
ALSO = "DIRECT=HTTP://HostB/msmq/private$/other"
THERE = "DIRECT=OS:hostc\\private$\\orders"
ADDRESS = "DIRECT=TCP:10.0.0.5\\private$\\orders"
PUBLIC = "PUBLIC=0f8fad5b-d9cb-469f-a165-70867728950e"
ALL = (HERE, ALSO, THERE, ADDRESS, PUBLIC)


def token(host: Host, name: str) -> Rights:
    """Return the rights of a token that may write to all queues."""
    caller = Caller(f"token:{name}", frozenset({parse_principal(f"token:{name}")}), is_limited=True)
    grant = Grant(name, frozenset({WRITE}), ("*",), "", "")
    return rights_of(grant, host.access_checks, caller)


def reached(host: Host, rights: Rights) -> set[str]:
    """Return the queues to which a client may send."""
    found = set()
    for each in ALL:
        try:
            rights.require(TO_SEND, tuple(host.things.named(each)), "send")
        except Refusal:
            continue
        found.add(each)
    return found


async def change(host: Host, action: str, who: str, what: str, rights: str = "send") -> Any:
    return await host.components.access_administration.change(action, who, rights, what)


async def verdict(host: Host, who: str, what: str) -> dict[str, Any]:
    administration = host.components.access_administration
    return await administration.test(who, "send", what, Rights())


@pytest.mark.parametrize(
    ("name", "computer"),
    [
        (HERE, "*@hostb"),
        (ALSO, "*@hostb"),
        ("DIRECT=HTTPS://hostb:443/msmq/orders", "*@hostb"),
        ("DIRECT=HTTP://hostb:8080/msmq/orders", "*@hostb:8080"),
        (ADDRESS, "*@10.0.0.5"),
        ("DIRECT=TCP:10.0.0.5:1802\\private$\\orders", "*@10.0.0.5:1802"),
        ("DIRECT=TCP:[fe80::1]:1802\\private$\\orders", "*@[fe80::1]:1802"),
        (PUBLIC, None),
    ],
)
def test_a_computer_is_the_stated_host_and_port(name: str, computer: str | None) -> None:
    assert computer_of(name.casefold()) == computer


@hosted
async def test_a_token_may_send_to_one_computer_only(hosts: Hosts) -> None:
    host = await hosts.start()
    app = token(host, "app")
    assert reached(host, app) == set(ALL)
    await change(host, "deny", "token:app", "*@*")
    assert reached(host, app) == set()
    await change(host, "grant", "token:app", "*@HOSTB")
    assert reached(host, app) == {HERE, ALSO}
    assert reached(host, token(host, "other")) == set(ALL)
    await change(host, "deny", "token:app", HERE)
    assert reached(host, app) == {ALSO}
    answer = await verdict(host, "token:app", HERE)
    assert (answer["allowed"], answer["entry_of"]) == (False, HERE.casefold())
    answer = await verdict(host, "token:app", ALSO)
    assert (answer["allowed"], answer["entry_of"]) == (True, "all queues of hostb")
    answer = await verdict(host, "token:app", PUBLIC)
    assert answer["entry_of"] == "all queues of other computers"
    answer = await verdict(host, "token:app", "*@hostb")
    assert answer["allowed"]
    await change(host, "revoke", "token:app", "*@*")
    await change(host, "revoke", "token:app", "*@hostb")
    assert reached(host, app) == {*ALL} - {HERE}


@needs_root
@hosted
async def test_other_computers_are_closed_to_local_users(hosts: Hosts) -> None:
    host = await hosts.start()
    ann, bob = await user(host, ANN), await user(host, BOB)
    for each in (ann, bob):
        await each.done(frames.Send, [NewMessage(THERE, b"open")])
    answer = await change(host, "revoke", "everyone", "*@*")
    assert answer["kind"] == "queues of other computers"
    for name in ALL:
        refused = await ann.ask(frames.Send, [NewMessage(name, b"closed")])
        assert isinstance(refused, Refused)
        assert (refused.code, THERE in name) == ("right_missing", name == THERE)
    await change(host, "grant", f"user:{ANN}", "*@hostb")
    await ann.done(frames.Send, [NewMessage(HERE, b"granted")])
    for who, name in ((ann, THERE), (bob, HERE)):
        assert isinstance(await who.ask(frames.Send, [NewMessage(name, b"closed")]), Refused)
    # A user without `administer-access` changes no such entry.
    mine = (access.ChangeAccess, "grant", f"user:{BOB}", "send", "*@hostb")
    assert isinstance(await bob.ask(*mine), Refused)
    ann.close()
    bob.close()


@hosted
async def test_entries_of_computers_are_exported_imported_and_kept(hosts: Hosts) -> None:
    host, other = await hosts.start("a"), await hosts.start("b")
    await change(host, "deny", "token:app", "*@*")
    await change(host, "grant", "token:app", "*@10.0.0.5:1802")
    exported = host.components.access_administration.export()["entries"]
    assert {each["object"] for each in exported} == {"*@*", "*@10.0.0.5:1802"}
    entries = [
        ImportedEntry(*(each[key] for key in ("object", "principal", "number", "effect", "rights")))
        for each in exported
    ]
    await other.components.access_administration.take_in(entries, [], replace=True)
    other = await hosts.restart(other)
    assert other.components.access_administration.export()["entries"] == exported
    assert reached(other, token(other, "app")) == set()


@hosted
async def test_odd_names_of_computers_are_refused(hosts: Hosts) -> None:
    host = await hosts.start()
    for name in ("*@", "*@*b", "*@a b", "*@host\\x", "*@.", "*@host,other"):
        with pytest.raises(Refusal) as caught:
            await change(host, "deny", "token:app", name)
        assert caught.value.code == "name_not_understood"
    with pytest.raises(Refusal):
        await change(host, "deny", "token:app", "*@*", "create-queue")
