"""The decision about a right: the order of its steps, over every combination of small cases."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from qmd.core.access import (
    CHANGE_PERMISSIONS,
    DEFAULTS,
    GET_PERMISSIONS,
    HOST_RIGHTS,
    PEEK,
    PURGE,
    QUEUE_RIGHTS,
    RECEIVE,
    RECEIVE_JOURNAL,
    RIGHTS,
    SEND,
    BadRight,
    Caller,
    Entry,
    Kind,
    Level,
    Subject,
    decide,
    granted,
    parse_rights,
    rights_text,
)
from qmd.core.principals import ALL, UNPROVEN, BadPrincipal, Principal, parse_principal

ANN = Principal("user", "ann", 1000)
STAFF = Principal("group", "staff", 50)
PROVEN = frozenset({ANN, Principal("user", "", 1000), STAFF, Principal("group", "", 50)})
CALLER = Caller("user:ann", PROVEN)
TOKEN = Caller("token:t", frozenset({Principal("token", "t")}), is_limited=True)


def subject(*levels: tuple[Entry, ...], kind: Kind = Kind.ORDINARY, owner: Principal | None = None):
    named = tuple(Level(f"level {at}", entries) for at, entries in enumerate(levels))
    return Subject(kind, "orders", owner, named)


def entry(principal: Principal, *rights: str, allows: bool = True) -> Entry:
    return Entry(principal, allows, frozenset(rights))


def levels() -> Iterator[tuple[Entry, ...]]:
    """Yield every set of up to two entries about the right to receive, in every order."""
    single = [
        entry(principal, right, allows=allows)
        for principal in (ANN, STAFF, ALL, Principal("user", "bob", 1001))
        for right in (RECEIVE, SEND)
        for allows in (True, False)
    ]
    yield ()
    yield from ((one,) for one in single)
    yield from itertools.permutations(single, 2)


def test_the_decision_over_all_small_lists_is_that_of_the_specification() -> None:
    fits = {ANN, STAFF, ALL}
    count = 0
    for own, inherited in itertools.product(levels(), [(), *[(each,) for each, *_ in levels2()]]):
        expected: bool | None = None
        for level in (own, inherited):
            about = [e for e in level if RECEIVE in e.rights and e.principal in fits]
            if expected is None and about:
                expected = all(each.allows for each in about)
        verdict = decide(CALLER, RECEIVE, subject(own, inherited))
        assert verdict.allowed == bool(expected), (own, inherited)
        assert (verdict.entry is not None) == (expected is not None)
        count += 1
    assert count > 2000


def levels2() -> Iterator[tuple[Entry, ...]]:
    return (each for each in levels() if len(each) == 1)


@pytest.mark.parametrize("kind", Kind)
def test_without_entries_the_defaults_of_the_kind_decide(kind: Kind) -> None:
    others = {
        (Kind.SUBQUEUE, SEND): RECEIVE,
        (Kind.JOURNAL, RECEIVE): RECEIVE_JOURNAL,
        (Kind.JOURNAL, PURGE): RECEIVE_JOURNAL,
    }
    for right in RIGHTS:
        verdict = decide(CALLER, right, subject((), kind=kind))

        wanted = others.get((kind, right), right)
        assert verdict.allowed == (wanted in DEFAULTS[kind]), right
        assert verdict.reason, right


@pytest.mark.parametrize("kind", Kind)
def test_an_administrator_may_do_everything_even_what_is_denied(kind: Kind) -> None:
    caller = CALLER._replace(is_administrator=True)

    for right in RIGHTS:
        denied = subject((entry(ALL, right, allows=False),), kind=kind)
        assert decide(caller, right, denied).allowed, right


def test_an_owner_may_do_everything_on_its_queue_until_an_entry_denies_it() -> None:
    own = subject((), owner=ANN)

    assert all(decide(CALLER, right, own).allowed for right in QUEUE_RIGHTS)
    denied = subject((entry(ALL, *QUEUE_RIGHTS, allows=False),), owner=ANN)
    left = {right for right in QUEUE_RIGHTS if decide(CALLER, right, denied).allowed}
    assert left == {GET_PERMISSIONS, CHANGE_PERMISSIONS}


@pytest.mark.parametrize("kind", [Kind.DEAD_LETTER, Kind.JOURNAL, Kind.INTERNAL, Kind.SUBQUEUE])
def test_queues_of_the_system_are_closed_to_others(kind: Kind) -> None:
    for right in (SEND, RECEIVE, PEEK, PURGE):
        assert not decide(CALLER, right, subject((), kind=kind)).allowed


def test_a_grant_to_everyone_replaces_the_default() -> None:
    assert decide(CALLER, SEND, subject(())).allowed
    assert not decide(CALLER, SEND, subject((entry(ALL),))).allowed
    assert not decide(CALLER, SEND, subject((entry(ALL, PEEK),))).allowed
    assert decide(CALLER, SEND, subject((entry(ALL), entry(STAFF, SEND)))).allowed


def test_a_token_has_only_rights_that_name_it() -> None:
    token = Principal("token", "t")

    assert not decide(TOKEN, SEND, subject(())).allowed
    assert not decide(TOKEN, RECEIVE, subject((entry(ALL, RECEIVE),))).allowed
    assert decide(TOKEN, RECEIVE, subject((entry(token, RECEIVE),))).allowed
    assert not decide(
        TOKEN, RECEIVE, subject((entry(token, RECEIVE), entry(ALL, RECEIVE, allows=False)))
    ).allowed


def test_an_id_that_was_given_to_another_account_gets_no_grant_of_the_old_one() -> None:
    old, queue = Principal("user", "old", 1000), subject((entry(ANN, RECEIVE),), owner=ANN)
    reused = Caller("user:bob", frozenset({Principal("user", "bob", 1000)}))
    renewed = Caller("user:ann", frozenset({Principal("user", "ann", 2000)}))

    assert not decide(reused, RECEIVE, queue).allowed
    assert not decide(renewed, RECEIVE, queue).allowed
    # A denial counts for whichever of both is the same.
    denied = subject((entry(ALL, RECEIVE), entry(old, RECEIVE, allows=False)))
    assert not decide(reused, RECEIVE, denied).allowed
    denied = subject((entry(ALL, RECEIVE), entry(ANN, RECEIVE, allows=False)))
    assert not decide(renewed, RECEIVE, denied).allowed


def test_a_principal_that_is_only_stated_is_denied_but_not_granted() -> None:
    peer = parse_principal("peer:11111111-2222-3333-4444-555555555555")
    stated = Caller("a peer", frozenset({UNPROVEN}), frozenset({peer}))
    proven = Caller("a peer", frozenset({UNPROVEN, peer}))
    allowed = subject((entry(ALL), entry(peer, SEND)))

    assert not decide(stated, SEND, allowed).allowed
    assert decide(proven, SEND, allowed).allowed
    for caller in (stated, proven):
        assert not decide(caller, SEND, subject((entry(peer, SEND, allows=False),))).allowed


def test_hosts_are_granted_by_network() -> None:
    caller = Caller("10.1.2.3", frozenset({parse_principal("host:10.1.2.3")}))
    near, far = parse_principal("host:10.0.0.0/8"), parse_principal("host:192.168.0.0/16")
    six = parse_principal("host:fe80::/10")

    assert decide(caller, RECEIVE, subject((entry(near, RECEIVE),))).allowed
    assert not decide(caller, RECEIVE, subject((entry(far, RECEIVE), entry(six, RECEIVE)))).allowed
    assert not decide(
        caller, SEND, subject((entry(near, SEND, allows=False), entry(caller_host(), SEND)))
    ).allowed


def caller_host() -> Principal:
    return parse_principal("host:10.1.2.3")


def test_rights_are_read_and_written_as_words() -> None:
    assert parse_rights("full", of_host=False) == frozenset(QUEUE_RIGHTS)
    assert parse_rights("full", of_host=True) == frozenset(HOST_RIGHTS)
    assert parse_rights("send, Get_Properties", of_host=False) == {SEND, "get-properties"}
    assert rights_text(parse_rights("peek,send", of_host=False)) == "send,peek"
    assert granted(frozenset({RECEIVE})) == {RECEIVE, PEEK}
    for text, of_host in (("", False), ("sned", False), ("create-queue", False), ("send", True)):
        with pytest.raises(BadRight):
            parse_rights(text, of_host=of_host)


@pytest.mark.parametrize(
    "text",
    [
        *("user:ann", "group:staff", "user:1000", "token:archive", "everyone", "anonymous"),
        *("local", "sasl:ann@EXAMPLE.COM", "service:billing.service", "host:10.0.0.0/8"),
        *("sid:S-1-5-21-1-2-3-1001", "cert:sha256:00ff", "cert:hostb"),
        "peer:11111111-2222-3333-4444-555555555555",
    ],
)
def test_a_principal_has_one_spelling(text: str) -> None:
    assert str(parse_principal(text)) == text
    assert parse_principal(str(parse_principal(text))) == parse_principal(text)


@pytest.mark.parametrize(
    "text",
    [
        *("", "ann", "user:", "user: ann", "peer:hostb", "host:hostb", "sid:ann", "everyone:x"),
        *("user:4294967295", "user:a\nb", "usr:ann", "user:" + "a" * 257),
    ],
)
def test_another_text_is_no_principal(text: str) -> None:
    with pytest.raises(BadPrincipal):
        parse_principal(text)


def test_a_remote_user_has_no_right_on_the_host_by_default() -> None:
    remote = Caller("sasl:ann", frozenset({Principal("sasl", "ann")}), is_remote=True)
    host = subject((), kind=Kind.HOST)
    queue = subject((), kind=Kind.ORDINARY)

    assert decide(CALLER, "create-queue", host).allowed
    assert not decide(remote, "create-queue", host).allowed
    assert decide(remote, SEND, queue).allowed
    granted_to_all = subject((entry(ALL, "create-queue"),), kind=Kind.HOST)
    assert decide(remote, "create-queue", granted_to_all).allowed
