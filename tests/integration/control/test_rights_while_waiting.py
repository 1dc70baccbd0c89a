"""Requests that wait for a message while their users lose the right to it."""

from __future__ import annotations

import asyncio

import msgspec

from qmd.access.register import holder_of
from qmd.control_protocol import locks as lock_frames
from qmd.control_protocol import messages as frames
from qmd.control_protocol import operations as operator
from qmd.control_protocol import transactions
from qmd.control_protocol.messages import Choice, Refused, Request
from qmd.core.access import parse_rights
from tests.integration.control.test_local_users import ANN, close_to_others, uid, user
from tests.integration.managers import Host, Hosts, hosted, until
from tests.users import needs_root

pytestmark = needs_root

FOREVER = frames.FOREVER
TRANSACTION, LOCK = b"t" * 16, b"l" * 16
WAITING: dict[str, Request] = {
    "take": frames.Take(0, "orders", 5, FOREVER),
    "take in a transaction": frames.Take(0, "orders", 5, FOREVER, TRANSACTION),
    "take chosen": frames.TakeChosen(0, "orders", Choice(label="order"), 5, FOREVER),
    "take locked": lock_frames.TakeLocked(0, "orders", LOCK, 600.0, 5, FOREVER),
    "peek": frames.Peek(0, "orders", 0, 5, FOREVER),
    "events": operator.Events(0, "", 10, 0, "orders", [], 0, 0, FOREVER),
}


@hosted
async def test_a_waiting_request_gets_nothing_after_its_user_has_lost_the_right(
    hosts: Hosts,
) -> None:
    host = await hosts.start()
    for number, name in enumerate(WAITING):
        await loses(host, name, f"orders{number}")


async def loses(host: Host, name: str, queue: str) -> None:
    """Let a user wait, lose the right, and get no message."""
    orders = await host.create(queue, transactional=True)
    await close_to_others(host, queue)
    register, holder = host.access_register, holder_of(orders)
    rights = parse_rights("receive,peek", of_host=False)
    await register.grant(holder, uid(ANN), rights)
    ann = await user(host, ANN)
    if "transaction" in name:
        await ann.ask_as(transactions.Begin(0, TRANSACTION))
    asked = asyncio.create_task(ann.ask_as(msgspec.structs.replace(WAITING[name], queue=queue)))
    # A user gets no events of the second in which a queue was created: an earlier queue may have
    # had its name.
    await asyncio.sleep(1.1 if name == "events" else 0.5)
    assert not asked.done(), (name, asked.result())

    await register.revoke(holder, uid(ANN), rights)
    await host.send(f"DIRECT=OS:.\\private$\\{queue}", b"secret", delivery=2, label="order")

    reply = await asked
    assert isinstance(reply, Refused), (name, reply)
    assert reply.code == "right_missing"
    ann.close()
    await until(lambda: not orders.taken, "the return of the message")
    assert orders.messages == 1
