"""Transactions inside one queue manager: one commit for all acts, or no effect."""

import asyncio
import os

import pytest

from protocol import parse_user_message
from protocol.errors import InvalidName
from qmd.control_protocol.messages import (
    EXPRESS,
    NO_WAIT,
    RECOVERABLE,
    Choice,
    NewMessage,
    StoredMessage,
)
from qmd.errors import Refusal
from tests.integration.disk import held_disk
from tests.integration.managers import Host, Hosts, bodies, hosted, until
from tests.integration.remote import listening

PEER = bytes(range(16))


class Application:
    """A connection that uses transactions."""

    def __init__(self, host: Host) -> None:
        self.host = host

    def begin(self, idle_s: float = 0.0) -> bytes:
        transaction = os.urandom(16)
        self.host.transactions.begin(transaction, self, idle_s)
        return transaction

    def send(self, transaction: bytes, destination: str, *bodies: bytes) -> list[str]:
        messages = [NewMessage(destination, body) for body in bodies]
        return self.host.transactions.send(transaction, self, messages)

    async def take(
        self, transaction: bytes, queue: str, limit: int = 1, wait_s: float = NO_WAIT
    ) -> list[StoredMessage]:
        done: asyncio.Future[list[StoredMessage]] = self.host.loop.create_future()
        self.host.transactions.take(
            transaction, self, self.host.queue(queue), limit, wait_s, done.set_result
        )
        return await done

    async def move(
        self, transaction: bytes, queue: str, messages: list[StoredMessage], target: str
    ) -> int:
        return await self.host.transactions.settle(
            transaction,
            self,
            self.host.queue(queue),
            [message.lookup_id for message in messages],
            target=target,
            reason="",
        )

    def committing(self, transaction: bytes) -> "asyncio.Future[list[str]]":
        done: asyncio.Future[list[str]] = self.host.loop.create_future()
        self.host.transactions.commit(transaction, self, done.set_result)
        return done

    def abort(self, transaction: bytes) -> int:
        return self.host.transactions.abort(transaction, self, "")


async def orders(host: Host, *bodies: bytes) -> Application:
    await host.create("orders", transactional=True)
    await host.create("invoices", transactional=True)
    if bodies:
        await host.send("orders", *bodies)
    return Application(host)


@hosted
async def test_sends_and_receives_take_effect_in_one_commit(hosts: Hosts) -> None:
    a = await hosts.start()
    application = await orders(a, b"one", b"two")
    transaction = application.begin()
    assert bodies(await application.take(transaction, "orders")) == [b"one"]
    ids = application.send(transaction, "invoices", b"1", b"2")
    assert await a.peek("invoices") == [], "not before the commit"
    assert bodies(await a.peek("orders")) == [b"two"], "nobody else sees what it has"

    with held_disk(a):
        committed = application.committing(transaction)
        await asyncio.sleep(0.02)
        assert not committed.done()
        assert await a.peek("invoices") == []
    assert await committed == ids
    assert bodies(await a.peek("invoices")) == [b"1", b"2"]
    assert await a.request_outcomes.outcome(transaction) == ids

    a = await hosts.restart(a)
    assert bodies(await a.peek("orders")) == [b"two"]
    assert bodies(await a.peek("invoices")) == [b"1", b"2"]
    assert await a.request_outcomes.outcome(transaction) == ids


@hosted
async def test_an_abort_returns_messages_to_their_places_and_is_counted(hosts: Hosts) -> None:
    a = await hosts.start()
    application = await orders(a, b"one", b"two", b"three")
    transaction = application.begin()
    assert bodies(await application.take(transaction, "orders", 2)) == [b"one", b"two"]
    application.send(transaction, "invoices", b"never")
    assert application.abort(transaction) == 2

    found = await a.peek("orders")
    assert bodies(found) == [b"one", b"two", b"three"]
    await a.settled()
    a = await hosts.restart(a)
    found = await a.peek("orders")
    assert [message.abort_count for message in found] == [1, 1, 0]
    assert await a.peek("invoices") == []
    with pytest.raises(Refusal, match="there is no transaction"):
        Application(a).committing(transaction)


@hosted
async def test_an_unread_message_goes_back_without_an_abort_count(hosts: Hosts) -> None:
    """A service does this when it is stopped while it waits for its next call."""
    a = await hosts.start()
    application = await orders(a, b"one", b"two")
    transaction = application.begin()
    await application.take(transaction, "orders")
    assert a.transactions.abort(transaction, application, "it stops", unread=True) == 1

    (again,) = await application.take(application.begin(), "orders")
    assert (again.abort_count, bodies([again])) == (0, [b"one"])
    await a.settled()
    a = await hosts.restart(a)
    assert [message.abort_count for message in await a.peek("orders")] == [0, 0]


@hosted
async def test_the_next_reader_sees_the_abort_count(hosts: Hosts) -> None:
    a = await hosts.start()
    application = await orders(a, b"poison")
    for expected in range(3):
        transaction = application.begin()
        (message,) = await application.take(transaction, "orders")
        assert message.abort_count == expected
        application.abort(transaction)


@hosted
async def test_the_end_of_a_connection_aborts_only_its_own_transactions(hosts: Hosts) -> None:
    a = await hosts.start()
    application, other = await orders(a, b"one", b"two"), Application(a)
    first, second = application.begin(), other.begin()
    await application.take(first, "orders")
    await other.take(second, "orders")
    a.transactions.leave(application)
    assert bodies(await a.peek("orders")) == [b"one"]
    await other.committing(second)
    assert a.queue("orders").messages == 1


@hosted
async def test_the_order_of_commits_is_the_order_of_delivery(hosts: Hosts) -> None:
    a = await hosts.start()
    application = await orders(a)
    async with listening(PEER) as there:
        name = f"DIRECT=TCP:127.0.0.1:{there.port}\\private$\\q"
        early, late = application.begin(), application.begin()
        application.send(early, name, b"3", b"4")
        application.send(late, name, b"1")
        application.send(late, name, b"2")
        await application.committing(late)
        await application.committing(early)
        await until(lambda: there.remotes and len(there.remotes[0].messages) == 4, "all of them")
        messages = [each.message for each in there.remotes[0].messages]
    assert [each.properties.body for each in messages] == [b"1", b"2", b"3", b"4"]
    headers = [each.transaction for each in messages]
    assert [header.sequence_number for header in headers if header] == [1, 2, 3, 4]
    bounds = [(h.flags.first, h.flags.last) for h in headers if h]
    assert bounds == [(1, 0), (0, 1), (1, 0), (0, 1)]
    indexes = [header.flags.index for header in headers if header]
    assert indexes[0] == indexes[1] != indexes[2] == indexes[3]


@hosted
async def test_an_idle_transaction_is_aborted_with_an_error(hosts: Hosts) -> None:
    a = await hosts.start()
    application = await orders(a, b"one")
    transaction = application.begin(idle_s=0.1)
    await application.take(transaction, "orders")
    await until(lambda: not a.transactions.live, "its end")
    assert bodies(await a.peek("orders")) == [b"one"]
    with pytest.raises(Refusal, match="idle for") as refused:
        application.committing(transaction)
    assert refused.value.code == "transaction_aborted"


@hosted
async def test_a_transaction_that_waits_for_a_message_is_not_idle(hosts: Hosts) -> None:
    a = await hosts.start()
    application = await orders(a)
    transaction = application.begin(idle_s=1.0)
    taking = asyncio.ensure_future(application.take(transaction, "orders", wait_s=-1.0))
    await asyncio.sleep(1.5)
    await a.send("orders", b"at last")
    assert bodies(await taking) == [b"at last"]
    await application.committing(transaction)


@hosted
async def test_a_transaction_that_waits_for_a_selected_message_is_not_idle(hosts: Hosts) -> None:
    a = await hosts.start()
    application = await orders(a)
    transaction = application.begin(idle_s=1.0)
    waiting = a.transactions.take_chosen(
        transaction, application, a.queue("orders"), Choice(label="urgent"), 1, -1.0
    )
    taking = asyncio.ensure_future(waiting)
    await asyncio.sleep(1.5)
    await a.send("orders", b"not this one")
    await a.send("orders", b"at last", label="urgent")
    assert bodies(await taking) == [b"at last"]
    await application.committing(transaction)
    assert bodies(await a.peek("orders")) == [b"not this one"]


@hosted
async def test_a_sealed_request_is_never_done_later(hosts: Hosts) -> None:
    a = await hosts.start()
    application = await orders(a, b"one")
    transaction = application.begin()
    await application.take(transaction, "orders")
    assert await a.request_outcomes.outcome(transaction, 7) is None
    with pytest.raises(Refusal, match="another connection asked"):
        application.committing(transaction)
    assert bodies(await a.peek("orders")) == [b"one"]

    token = b"a request that was still on its way"
    assert await a.request_outcomes.outcome(token, 7) is None
    with pytest.raises(Refusal, match="nothing of this request was done"):
        a.sealed_tokens.check(token, 6)
    a.sealed_tokens.check(token, 7)  # the connection that asked may do it now


@hosted
async def test_a_commit_in_progress_has_an_outcome(hosts: Hosts) -> None:
    a = await hosts.start()
    application = await orders(a, b"one")
    transaction = application.begin()
    await application.take(transaction, "orders")
    ids = application.send(transaction, "invoices", b"1")
    with held_disk(a):
        committed = application.committing(transaction)
        a.transactions.leave(application)
        asked = asyncio.ensure_future(a.request_outcomes.outcome(transaction, 7))
        await asyncio.sleep(0.02)
        assert not asked.done()
    assert await asked == await committed == ids


@hosted
async def test_a_refused_commit_has_no_effect(hosts: Hosts) -> None:
    a = await hosts.start()
    application = await orders(a, b"one")
    await a.create("small", transactional=True, quota_bytes=400)
    transaction = application.begin()
    await application.take(transaction, "orders")
    application.send(transaction, "invoices", b"never")
    application.send(transaction, "small", bytes(100))
    application.send(transaction, "small", bytes(100))
    with pytest.raises(Refusal, match="is full"):
        application.committing(transaction)
    assert bodies(await a.peek("orders")) == [b"one"]
    assert await a.peek("invoices") == await a.peek("small") == []
    assert await a.request_outcomes.outcome(transaction) is None


@hosted
async def test_an_act_that_a_transaction_cannot_contain_is_refused_at_once(hosts: Hosts) -> None:
    a = await hosts.start()
    application = await orders(a)
    await a.create("plain")
    transaction = application.begin()
    with pytest.raises(Refusal, match="is not transactional") as refused:
        application.send(transaction, "plain", b"x")
    assert refused.value.code == "not_transactional_queue"
    for delivery in (EXPRESS, RECOVERABLE):
        message = NewMessage("orders", b"x", delivery=delivery)
        with pytest.raises(Refusal, match="transactional"):
            a.transactions.send(transaction, application, [message])
    with pytest.raises(Refusal, match="16 bytes"):
        a.transactions.begin(b"short", application, 0.0)
    with pytest.raises(Refusal, match="begun before"):
        a.transactions.begin(transaction, application, 0.0)
    with pytest.raises(Refusal, match="is not transactional") as refused:
        application.committing(transaction)
    assert refused.value.code == "transaction_doomed"


@hosted
async def test_the_number_of_messages_in_a_transaction_is_limited(hosts: Hosts) -> None:
    a = await hosts.start(transactions={"messages_bytes_max": 10_240, "live_max": 2})
    application = await orders(a)
    transaction = application.begin()
    application.send(transaction, "orders", bytes(6000))
    with pytest.raises(Refusal, match="10240 bytes in all"):
        application.send(transaction, "orders", bytes(6000))
    application.begin()
    with pytest.raises(Refusal, match="2 are allowed"):
        application.begin()


@hosted
async def test_a_message_is_sent_once_for_its_deduplication_id(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    once = [NewMessage("orders", b"once", delivery=RECOVERABLE)]
    first, second = await asyncio.gather(
        a.once_sender.send(once, b"order 17", 1),
        a.once_sender.send(once, b"order 17", 2),
    )
    assert first == second
    a = await hosts.restart(a)
    assert await a.once_sender.send(once, b"order 17", 3) == first
    assert await a.once_sender.send(once, b"order 18", 3) != first
    assert [parse_user_message(each.packet).properties.body for each in await a.peek("orders")] == [
        b"once",
        b"once",
    ]


@hosted
async def test_a_move_in_a_transaction_takes_effect_with_its_commit(hosts: Hosts) -> None:
    a = await hosts.start()
    application = await orders(a, b"one", b"two")
    aborted = application.begin()
    taken = await application.take(aborted, "orders", 2)
    assert await application.move(aborted, "orders", taken, "orders;retry") == 2
    application.abort(aborted)
    assert bodies(await a.peek("orders")) == [b"one", b"two"]
    assert await a.peek("orders;retry") == []

    transaction = application.begin()
    taken = await application.take(transaction, "orders", 2)
    application.send(transaction, "invoices", b"1")
    await application.move(transaction, "orders", taken[:1], "orders;retry")
    assert await a.peek("orders;retry") == []
    await application.committing(transaction)
    (moved,) = await a.peek("orders;retry")
    assert (bodies([moved]), moved.move_count, moved.abort_count) == ([b"one"], 1, 1)
    assert await a.peek("orders") == [], "the other one was received"
    assert bodies(await a.peek("invoices")) == [b"1"]


@hosted
async def test_a_transaction_can_move_only_messages_that_it_received(hosts: Hosts) -> None:
    a = await hosts.start()
    application = await orders(a, b"one")
    await a.create("plain")
    transaction = application.begin()
    with pytest.raises(Refusal, match="was not received in this transaction"):
        await application.move(transaction, "orders", await a.peek("orders"), "orders;retry")
    taken = await application.take(transaction, "orders")
    with pytest.raises(Refusal, match="transactional"):
        await application.move(transaction, "orders", taken, "plain")
    await application.committing(transaction)


@hosted
async def test_a_receive_from_a_deleted_queue_cannot_be_committed(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    application = await orders(a, b"one")
    transaction = application.begin()
    await application.take(transaction, "orders")
    application.send(transaction, "invoices", b"never")
    await a.queue_deletion.delete(a.queue("orders"))
    with pytest.raises(Refusal, match="was deleted"):
        application.committing(transaction)
    assert await a.peek("invoices") == []


@hosted
async def test_a_failed_send_dooms_the_transaction(hosts: Hosts) -> None:
    a = await hosts.start()
    application = await orders(a, b"one")
    transaction = application.begin()
    await application.take(transaction, "orders")
    application.send(transaction, "invoices", b"1")
    with pytest.raises(Refusal) as failed:
        application.send(transaction, "nowhere", b"2")

    for verb in (
        lambda: application.send(transaction, "invoices", b"3"),
        lambda: application.take(transaction, "orders"),
        lambda: application.move(transaction, "orders", [], "invoices"),
        lambda: a.branches.enlist(transaction, application, "shop"),
        lambda: application.committing(transaction),
    ):
        with pytest.raises(Refusal) as refused:
            await verb()  # type: ignore[misc]
        assert refused.value.code == "transaction_doomed"
        assert failed.value.text in refused.value.text
    assert not a.transactions.is_under_way(transaction)
    assert await a.peek("invoices") == []
    assert bodies(await a.peek("orders")) == [b"one"]


@hosted
async def test_an_invalid_name_dooms_the_transaction(hosts: Hosts) -> None:
    a = await hosts.start()
    application = await orders(a)
    for name in ("DIRECT=NOTHING", "DIRECT=TCP:1.2.3\\private$\\x", "PUBLIC=17", ""):
        transaction = application.begin()
        application.send(transaction, "invoices", b"1")
        with pytest.raises((Refusal, InvalidName)):
            application.send(transaction, name, b"2")
        with pytest.raises(Refusal) as refused:
            application.committing(transaction)
        assert refused.value.code == "transaction_doomed"
    assert await a.peek("invoices") == []


@hosted
async def test_an_empty_receive_does_not_doom_the_transaction(hosts: Hosts) -> None:
    a = await hosts.start()
    application = await orders(a)
    transaction = application.begin()
    assert await application.take(transaction, "orders") == []
    application.send(transaction, "invoices", b"1")

    await application.committing(transaction)

    assert bodies(await a.peek("invoices")) == [b"1"]
