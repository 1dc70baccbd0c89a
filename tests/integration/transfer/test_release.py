"""Release: the rows of messages that a peer has acknowledged leave with another commit."""

from __future__ import annotations

from functools import partial

import pytest

from qmd.control_protocol.messages import TRANSACTIONAL
from qmd.transfer import release
from storage.engine import writer
from storage.tables import outgoing as outgoing_rows
from tests.integration.managers import Host, Hosts, hosted, until
from tests.integration.remote import guid, listening


@hosted
async def test_the_row_of_a_lone_message_leaves_with_the_next_message(hosts: Hosts) -> None:
    a = await hosts.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(release, "RELEASE_DELAY_S", 600.0)
        patch.setattr(writer, "PATIENCE_S", 600.0)
        await _send_two(a)


async def _send_two(a: Host) -> None:
    async with listening(guid(7)) as listener:
        name = listener.name("orders")
        await a.send(name, b"1", delivery=TRANSACTIONAL)
        remote = await listener.session()
        await until(lambda: len(remote.messages) == 1)
        queue = a.sending_to(name)

        remote.order_ack(remote.messages[0])
        await until(lambda: queue.sequence.ack_count == 1)
        assert queue.messages == 0, "it is released in memory, before the next message comes"
        page = partial(outgoing_rows.page, outgoing_id=queue.id)
        assert len(await a.storage.read(page)) == 1, "no commit was made for it alone"
        await a.send(name, b"2", delivery=TRANSACTIONAL)

        await until(lambda: len(remote.messages) == 2)
        assert queue.messages == 1
        assert len(await a.storage.read(page)) == 1
        # All messages were acknowledged: another sequence begins.
        first, second = (each.message.transaction for each in remote.messages)
        assert first is not None
        assert second is not None
        assert (second.sequence_id, second.sequence_number) == (first.sequence_id + 1, 1)
