"""Two queue managers with one GUID, as a cloned image makes them."""

from __future__ import annotations

import shutil

from protocol import MessageClass
from qmd.control_protocol.messages import TRANSACTIONAL
from qmd.core.peer_instance import Instance, Lack, Verdict, from_padding, judge, to_padding
from tests.integration.managers import Host, Hosts, hosted, until
from tests.integration.remote import Remote, dial, guid, packet


async def clone(hosts: Hosts, original: Host, name: str) -> None:
    """Copy the data folder of a stopped queue manager to another computer."""
    to = original.folder.with_name(name)
    shutil.copytree(original.folder / "data", to / "data")


def reason_of(host: Host, guid: bytes) -> str:
    """Return the reason of the only conflict about a GUID."""
    (conflict,) = [each for each in host.identities.conflicts if each.queue_manager == guid]
    return conflict.reason


def test_an_instance_is_read_from_the_padding_and_foreign_padding_is_ignored() -> None:
    instance = Instance(7, bytes(range(16)))

    assert from_padding(to_padding(instance)) == instance
    assert to_padding(instance)[:100] == b"\x5a" * 100
    for lack in (None, *Lack):
        for port in (0, 1802):
            stated = instance._replace(lack=lack, tls_port=port)
            assert from_padding(to_padding(stated)) == stated
    later = to_padding(instance._replace(lack=Lack.OTHER)).replace(
        b"no-room\0\xff", b"no-room\0\x09"
    )
    assert from_padding(later) == instance._replace(lack=Lack.OTHER), "a kind of a later release"
    assert from_padding(b"\x5a" * 512) is None
    assert from_padding(bytes(512)) is None


def test_a_later_start_is_a_restart_and_any_other_run_is_another_machine() -> None:
    known = Instance(7, b"a" * 16)

    assert judge(None, known) is Verdict.NEWER
    assert judge(known, known) is Verdict.SAME
    assert judge(known, Instance(8, b"b" * 16)) is Verdict.NEWER
    assert judge(known, Instance(7, b"b" * 16)) is Verdict.ANOTHER
    assert judge(known, Instance(6, b"b" * 16)) is Verdict.ANOTHER


@hosted
async def test_either_the_clone_or_its_original_is_refused_and_both_are_named(hosts: Hosts) -> None:
    b = await hosts.start("b")
    await b.create("orders", transactional=True)
    destination = f"DIRECT=TCP:127.0.0.1:{b.port}\\private$\\orders"
    original = await hosts.start("original")
    await original.send(destination, b"1", delivery=TRANSACTIONAL)
    await until(lambda: original.sending_to(destination).messages == 0)
    await hosts.stop(original)
    await clone(hosts, original, "clone")

    original = await hosts.start("original")
    await original.send(destination, b"2", delivery=TRANSACTIONAL)
    await until(lambda: original.sending_to(destination).messages == 0)
    copy = await hosts.start("clone")
    assert copy.id == original.id
    await copy.send(destination, b"of the clone", delivery=TRANSACTIONAL)
    await until(lambda: b.identities.conflicts)
    await until(lambda: copy.identities.conflicts)

    assert b.queue("orders").messages == 2
    assert copy.sending_to(destination).messages == 1  # the message stays at the clone
    assert "has the GUID and the key of the one that was seen" in reason_of(b, copy.id)
    assert "our identity" in copy.sending_to(destination).link.retry.history[-1].result


@hosted
async def test_a_clone_with_more_starts_replaces_the_original_once_and_both_are_named(
    hosts: Hosts,
) -> None:
    b = await hosts.start("b")
    await b.create("orders", transactional=True)
    destination = f"DIRECT=TCP:127.0.0.1:{b.port}\\private$\\orders"
    original = await hosts.start("original")
    await hosts.stop(original)
    await clone(hosts, original, "clone")
    for _ in range(3):
        await hosts.stop(await hosts.start("clone"))
    original = await hosts.start("original")
    await original.send(destination, b"1", delivery=TRANSACTIONAL)
    await until(lambda: original.sending_to(destination).messages == 0)

    copy = await hosts.start("clone")
    # In the same second either of their sequences, which begin at random, could be the later one.
    copy.world.ahead_s += 1
    await copy.send(destination, b"2", delivery=TRANSACTIONAL)
    await until(lambda: not original.sending_to(destination).link.connection, "the session's end")
    await original.send(destination, b"3", delivery=TRANSACTIONAL)
    await until(lambda: b.identities.conflicts)

    assert original.sending_to(destination).messages == 1
    await until(lambda: copy.sending_to(destination).messages == 0, "what is under way")


@hosted
async def test_a_known_peer_survives_a_restart_and_is_forgotten_on_request(
    hosts: Hosts,
) -> None:
    b = await hosts.start("b")
    await b.create("orders")
    destination = f"DIRECT=TCP:127.0.0.1:{b.port}\\private$\\orders"
    original = await hosts.start("original")
    await hosts.stop(original)
    await clone(hosts, original, "clone")
    original = await hosts.start("original")
    await original.send(destination, b"1")
    await until(lambda: b.queue("orders").messages == 1)
    await hosts.stop(original)
    b = await hosts.restart(b)

    copy = await hosts.start("clone")
    await copy.send(destination, b"2")
    await until(lambda: b.identities.conflicts)
    assert b.identities.forget(copy.id)
    # Its message is rejected as a duplicate: the original has used the message number.
    await until(lambda: copy.sending_to(destination).messages == 0, "a session")

    assert not b.identities.conflicts


@hosted
async def test_a_restarted_queue_manager_is_not_taken_for_a_clone(hosts: Hosts) -> None:
    b = await hosts.start("b")
    orders = await b.create("orders")
    destination = f"DIRECT=TCP:127.0.0.1:{b.port}\\private$\\orders"
    a = await hosts.start("a")
    for number in range(1, 4):
        await a.send(destination, b"1")
        await until(lambda: orders.messages == number)  # noqa: B023
        a = await hosts.restart(a)
    await until(lambda: not a.sending_to(destination).messages, "the acknowledgment")

    assert not b.identities.conflicts


@hosted
async def test_a_peer_with_the_local_guid_gets_no_session(hosts: Hosts) -> None:
    a = await hosts.start("a")

    _, remote = await a.loop.create_connection(
        lambda: Remote(a.id, initiator=True), "127.0.0.1", a.port
    )
    await until(lambda: remote.closed.is_set())

    assert not remote.opened.is_set()
    assert "has the GUID of this one" in reason_of(a, a.id)


@hosted
async def test_two_messages_at_one_position_of_a_sequence_are_not_mixed(hosts: Hosts) -> None:
    """This is the only sign of a clone among senders that are not qmd."""
    a = await hosts.start("a")
    orders = await a.create("orders", transactional=True)
    source = guid(9)
    one, other = await dial(a, source), await dial(a, source)
    one.send(packet(b"1", source=source, number=71, position=(9 << 32 | 1, 1, 0)))
    await until(lambda: orders.messages == 1)
    one.send(packet(b"1", source=source, number=71, position=(9 << 32 | 1, 1, 0)))
    await a.settled()
    assert not a.identities.conflicts  # a normal retransmission

    other.send(packet(b"another", source=source, number=72, position=(9 << 32 | 1, 1, 0)))
    await until(lambda: (one.classes + other.classes)[MessageClass.NACK_DELETED])

    assert orders.messages == 1
    assert not other.closed.is_set()
    assert "one position in its sequence" in reason_of(a, source)
    one.close()
