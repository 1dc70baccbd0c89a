"""Final acks and dead letters of many messages that end in one commit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from protocol import parse_user_message
from protocol.message_class import MessageClass
from qmd.client import new_message
from qmd.control import message_handlers
from qmd.control_protocol.messages import TRANSACTIONAL
from qmd.core.disposition import reason_text
from qmd.operations import receive
from qmd.outcomes.acknowledgments import Acknowledgments
from qmd.outcomes.planned_acknowledgments import IN_MEMORY_MAX
from qmd.runtime.work_parts import PART_ALONE
from tests.integration.control.test_large_receipts import Asker, started
from tests.integration.history.test_receipts import final_acks, given
from tests.integration.managers import TRANSACTIONAL_DEAD_LETTERS, Hosts, hosted, until
from tests.integration.remote import dial, guid

RECEIPT = MessageClass.ACK_RECEIVE


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_final_acks_that_are_made_in_parts_leave_once_and_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_forgotten: bool
) -> None:
    monkeypatch.setattr(receive, "ACKNOWLEDGED_AT_ONCE", 10)
    monkeypatch.setattr(receive, "FINAL_ACKS_OF_ONE", 1)
    count = IN_MEMORY_MAX + 88
    parts: list[int] = []
    plan, send = Acknowledgments.plan_final_acks, Acknowledgments.send_planned

    def planned(self: Acknowledgments, packets: Sequence[bytes], *rest: Any) -> None:
        parts.append(len(packets))
        plan(self, packets, *rest)

    def sent(self: Acknowledgments, *given: Any) -> None:
        if is_forgotten:  # another way leads to the source than when they were made
            self._ways_back.clear()
        send(self, *given)

    @hosted
    async def scenario(hosts: Hosts) -> None:
        host = await hosts.start()
        await host.create("orders", transactional=True)
        client, remote = Asker(host), await dial(host, guid(7))
        for _ in range(count // 50):
            await given(remote, host, 50, journal=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Acknowledgments, "plan_final_acks", planned)
            patch.setattr(Acknowledgments, "send_planned", sent)
            taken = [each[0] for each in await client.done("take", "orders", count, 0)]
            while len(taken) < count:
                taken += [each[0] for each in await client.done("take", "orders", count, 0)]
            assert await client.done("remove", "orders", taken) == count

        def all_are_there() -> bool:
            remote.acknowledge()
            return len(final_acks(remote)) >= count

        await until(all_are_there, "the final acks")
        await host.settled()
        wanted = [(RECEIPT, number, 100 + number) for number in range(1, count + 1)]
        assert final_acks(remote) == wanted
        assert len(parts) > 1 + is_forgotten
        assert max(parts[:2]) <= PART_ALONE
        client.close()

    scenario(tmp_path)


@hosted
async def test_many_dead_letters_have_their_class_their_reason_and_their_order(
    hosts: Hosts,
) -> None:
    host, client = await started(hosts)
    count = IN_MEMORY_MAX + 88
    await host.create("strict", transactional=True)
    both = "DIRECT=OS:.\\private$\\strict,DIRECT=OS:.\\private$\\orders"
    message = new_message(both, b"")
    rows = [
        msgspec.structs.astuple(
            msgspec.structs.replace(message, label=str(at), delivery=TRANSACTIONAL)
        )
        for at in range(count)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(message_handlers, "COPIES_AT_ONCE", IN_MEMORY_MAX)
        await client.done("send", rows)
    found, start = [], 0
    while page := await host.peek(TRANSACTIONAL_DEAD_LETTERS, start):
        found += page
        start = page[-1].lookup_id + 1

    refused = MessageClass.NACK_NOT_TRANSACTIONAL_QUEUE
    properties = [parse_user_message(each.packet).properties for each in found]
    assert [each.label.decode("utf-16-le").rstrip("\0") for each in properties] == [
        str(at) for at in range(count)
    ]
    assert {each.message_class for each in properties} == {refused}
    [reason] = {each.reason for each in found}
    assert reason == reason_text(refused, queue="DIRECT=OS:.\\private$\\orders", detail="")
    queue = host.queue(TRANSACTIONAL_DEAD_LETTERS)
    assert (queue.messages, queue.bytes) == (count, sum(len(each.packet) for each in found))
    client.close()
