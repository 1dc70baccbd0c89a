"""Transactions through the door: sends and receives commit together, or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from tests.amqp.door import AmqpDoor, door_of
from tests.patience import END_S
from tests.process.harness import Hosts

proton = pytest.importorskip("proton")
from proton import Message  # noqa: E402
from proton.handlers import MessagingHandler, TransactionHandler  # noqa: E402
from proton.reactor import Container  # noqa: E402


class Transfer(MessagingHandler, TransactionHandler):
    """Receives `count` messages, sends an answer to each to two queues, and ends as `commits`
    says."""

    def __init__(self, door: AmqpDoor, count: int, *, commits: bool) -> None:
        super().__init__(auto_accept=False, prefetch=0)
        self._door, self._count, self._commits = door, count, commits
        self.result = ""
        self.error: Any = None

    def on_start(self, event: Any) -> None:
        self._container = event.container
        self._connection = event.container.connect(self._door.url, reconnect=False)
        self._receiver = event.container.create_receiver(self._connection, "in")
        self._one = event.container.create_sender(self._connection, "out")
        self._two = event.container.create_sender(self._connection, "DIRECT=OS:.\\private$\\log")
        self._timer = event.container.schedule(END_S, self)
        self._transaction = None
        self._has_begun = False
        event.container.declare_transaction(
            self._connection, handler=self, settle_before_discharge=True
        )

    def on_transaction_declared(self, event: Any) -> None:
        self._transaction = event.transaction
        self._begin()

    def on_sendable(self, event: Any) -> None:
        self._begin()

    def _begin(self) -> None:
        """Receive when answers can be sent at once: proton would send a commit before answers
        that have no credit yet."""
        is_ready = self._transaction and self._one.credit and self._two.credit
        if is_ready and not self._has_begun:
            self._has_begun = True
            self._receiver.flow(self._count)

    def on_message(self, event: Any) -> None:
        transaction = self._transaction
        transaction.send(self._one, Message(body=f"answer to {event.message.body}", durable=True))
        transaction.send(self._two, Message(body=event.message.body, durable=True))
        transaction.accept(event.delivery)
        self._count -= 1
        if not self._count:
            transaction.commit() if self._commits else transaction.abort()

    def on_transaction_committed(self, event: Any) -> None:
        self.result = "committed"
        self._connection.close()

    def on_transaction_aborted(self, event: Any) -> None:
        self.result = "aborted"
        self._connection.close()

    def on_transaction_commit_failed(self, event: Any) -> None:
        self.result = "failed"
        self._connection.close()

    def on_connection_closed(self, event: Any) -> None:
        self._timer.cancel()  # the container would wait for it

    def on_timer_task(self, event: Any) -> None:
        self.error = "it took too long"
        self._connection.close()


@pytest.mark.parametrize("commits", [True, False])
def test_a_transaction_is_done_as_a_whole(hosts: Hosts, commits: bool) -> None:
    with door_of(hosts, transactional=("in", "out", "log")) as door:
        door.daemon.send_all("in", [b"1", b"2", b"3"], "--transactional")
        transfer = Transfer(door, 3, commits=commits)
        container = Container(transfer)
        container.timeout = END_S
        container.run()
        assert transfer.result == ("committed" if commits else "aborted")
        counts = [door.daemon.count(queue) for queue in ("in", "out", "log")]
        assert counts == ([0, 3, 3] if commits else [3, 0, 0])
        if not commits:
            assert [each["abort_count"] for each in door.daemon.peek("in")] == [1, 1, 1]


def test_a_refused_send_makes_the_commit_fail(hosts: Hosts) -> None:
    with door_of(hosts, transactional=("in", "out", "log")) as door:
        door.daemon.send("in", b"x" * 100_000, "--transactional")
        door.daemon.cli("queue", "set", "log", "--quota", "64KiB")
        transfer = Transfer(door, 1, commits=True)
        Container(transfer).run()
        assert transfer.result == "failed"
        assert [door.daemon.count(queue) for queue in ("in", "out", "log")] == [1, 0, 0]
