"""Redirecting messages from a dead address to a new one."""

from __future__ import annotations

import pytest

from qmd.control_protocol.messages import TRANSACTIONAL
from qmd.errors import Refusal
from tests.integration.managers import Hosts, hosted, until
from tests.integration.remote import guid, listening

DEAD = "DIRECT=TCP:127.0.0.1:1\\private$\\orders"


@hosted
async def test_waiting_and_later_messages_arrive_at_the_new_address_in_order(
    hosts: Hosts,
) -> None:
    a, b = await hosts.start("a"), await hosts.start("b")
    orders = await b.create("orders", transactional=True)
    await a.send(DEAD, *(b"%d" % n for n in range(10)), delivery=TRANSACTIONAL)

    await a.redirection.redirect(DEAD, f"127.0.0.1:{b.port}")
    await a.send(DEAD, b"10", delivery=TRANSACTIONAL)
    await until(lambda: orders.messages == 11)
    await until(lambda: a.sending_to(DEAD).messages == 0)

    assert await b.receive("orders") == [b"%d" % n for n in range(11)]


@hosted
async def test_a_redirect_survives_a_restart_and_can_be_undone(hosts: Hosts) -> None:
    a, b = await hosts.start("a"), await hosts.start("b")
    orders = await b.create("orders")
    await a.send(DEAD, b"1")
    await a.redirection.redirect("127.0.0.1:1", f"127.0.0.1:{b.port}")
    a = await hosts.restart(a)
    await a.send(DEAD, b"2")
    await until(lambda: orders.messages == 2)

    await a.redirection.redirect(DEAD, "")
    await a.send(DEAD, b"3")
    await until(lambda: a.sending_to(DEAD).link.retry.failures)

    assert a.sending_to(DEAD).link.name == "127.0.0.1:1"
    assert a.sending_to(DEAD).redirect is None
    assert orders.messages == 2


@hosted
async def test_a_moved_host_accepts_only_messages_that_it_does_not_have(hosts: Hosts) -> None:
    a, b = await hosts.start("a"), await hosts.start("b")
    await b.create("orders", transactional=True)
    old = f"DIRECT=TCP:127.0.0.1:{b.port}\\private$\\orders"
    await a.send(old, b"1", b"2", delivery=TRANSACTIONAL)
    queue = a.sending_to(old)
    await until(lambda: queue.messages == 0)
    await hosts.stop(b)
    await a.send(old, b"3", b"4", delivery=TRANSACTIONAL)
    b = await hosts.start("b")  # at another port
    await a.redirection.redirect(old, f"127.0.0.1:{b.port}")

    await until(lambda: b.queue("orders").messages == 4)
    await until(lambda: queue.messages == 0)
    assert await b.receive("orders") == [b"1", b"2", b"3", b"4"]


@hosted
async def test_messages_that_could_arrive_at_both_hosts_stay_until_the_operator_confirms(
    hosts: Hosts,
) -> None:
    a, b = await hosts.start("a"), await hosts.start("b")
    orders = await b.create("orders", transactional=True)
    async with listening(guid(5)) as dead:  # it receives messages, but acknowledges none
        old = dead.name("orders")
        await a.send(old, b"1", b"2", delivery=TRANSACTIONAL)
        remote = await dead.session()
        await until(lambda: len(remote.messages) == 2)
    queue = a.sending_to(old)
    await until(lambda: queue.link.connection is None)
    await a.redirection.redirect(old, f"127.0.0.1:{b.port}")
    await until(lambda: queue.hindrance)

    assert "could arrive at both" in queue.hindrance
    assert orders.messages == 0
    a = await hosts.restart(a)
    queue = a.sending_to(old)
    await until(lambda: queue.hindrance)
    assert orders.messages == 0

    await a.redirection.redirect(old, f"127.0.0.1:{b.port}", to_another=True)
    await until(lambda: orders.messages == 2)
    await until(lambda: queue.messages == 0)


@hosted
async def test_a_new_name_of_a_redirected_queue_is_the_same_queue_and_sequence(
    hosts: Hosts,
) -> None:
    a, b = await hosts.start("a"), await hosts.start("b")
    orders = await b.create("orders", transactional=True)
    await a.send(DEAD, b"1", delivery=TRANSACTIONAL)
    await a.redirection.redirect(DEAD, f"127.0.0.1:{b.port}")

    await a.send(f"DIRECT=TCP:127.0.0.1:{b.port}\\private$\\orders", b"2", delivery=TRANSACTIONAL)
    await until(lambda: orders.messages == 2)
    await until(lambda: a.sending_to(DEAD).messages == 0)

    assert len(a.outgoing.queues) == 1
    assert await b.receive("orders") == [b"1", b"2"]


@hosted
async def test_two_sequences_of_one_name_are_never_merged(hosts: Hosts) -> None:
    a, b = await hosts.start("a"), await hosts.start("b")
    orders = await b.create("orders", transactional=True)
    new = f"DIRECT=TCP:127.0.0.1:{b.port}\\private$\\orders"
    await a.send(DEAD, b"1", delivery=TRANSACTIONAL)
    await a.send(new, b"2", delivery=TRANSACTIONAL)
    await until(lambda: orders.messages == 1)

    with pytest.raises(Refusal, match="a sequence of its own"):
        await a.redirection.redirect(DEAD, f"127.0.0.1:{b.port}")

    assert a.sending_to(DEAD).redirect is None
    await until(lambda: a.sending_to(new).messages == 0)


@hosted
async def test_two_sequences_with_two_names_share_an_address_if_the_peer_is_qmd(
    hosts: Hosts,
) -> None:
    a, b = await hosts.start("a"), await hosts.start("b")
    orders = await b.create("orders", transactional=True)
    old = "DIRECT=OS:no-such-host.invalid\\private$\\orders"
    new = f"DIRECT=TCP:127.0.0.1:{b.port}\\private$\\orders"
    await a.send(old, b"1", b"2", delivery=TRANSACTIONAL)
    await a.send(new, b"3", delivery=TRANSACTIONAL)
    await until(lambda: orders.messages == 1)

    await a.redirection.redirect(old, f"127.0.0.1:{b.port}")
    for number in range(4, 14):
        await a.send(old if number % 2 else new, b"%d" % number, delivery=TRANSACTIONAL)
    await until(lambda: orders.messages == 13)
    await until(lambda: not a.sending_to(old).messages and not a.sending_to(new).messages)

    arrived = [int(body) for body in await b.receive("orders")]
    by_old = [1, 2, *range(5, 14, 2)]
    assert [each for each in arrived if each in by_old] == by_old
    assert [each for each in arrived if each not in by_old] == [3, *range(4, 14, 2)]


@hosted
async def test_two_sequences_do_not_share_an_address_if_the_peer_is_not_known_as_qmd(
    hosts: Hosts,
) -> None:
    a = await hosts.start("a")
    old = "DIRECT=OS:no-such-host.invalid\\private$\\orders"
    async with listening(guid(5)) as other:
        new = other.name("orders")
        await a.send(new, b"1", delivery=TRANSACTIONAL)
        await a.send(old, b"2", delivery=TRANSACTIONAL)
        remote = await other.session()
        await until(lambda: remote.messages)

        with pytest.raises(Refusal, match="a sequence of its own"):
            await a.redirection.redirect(old, f"127.0.0.1:{other.port}")


@hosted
async def test_an_invalid_address_is_refused(hosts: Hosts) -> None:
    a = await hosts.start("a")
    await a.send(DEAD, b"1")

    for address in ("a b", "host:0", "direct", "host:99999"):
        with pytest.raises(Refusal, match="is not an address"):
            await a.redirection.redirect(DEAD, address)
    with pytest.raises(Refusal, match="no outgoing queue"):
        await a.redirection.redirect("nowhere", "host")
