"""Requests for confirmation: settings and properties that decide them."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.message_class import MessageClass
from qmd.control_protocol.messages import INFINITE_S
from tests.integration.managers import TRANSACTIONAL_DEAD_LETTERS, Hosts, bodies, hosted, until
from tests.integration.remote import guid, listening
from tests.integration.transfer.confirming import awaiting, elsewhere

# --- requests for confirmation ---


@pytest.mark.parametrize(
    ("always", "dead_letter", "time_to_be_received_s", "asks", "kept"),
    [
        (False, None, None, False, True),
        (False, None, INFINITE_S, False, True),
        (False, None, 100, True, True),
        (False, True, None, True, True),
        (False, False, None, False, False),
        (False, False, 100, False, False),
        (True, None, None, True, True),
        (True, False, None, True, True),
    ],
)
def test_settings_and_properties_decide_confirmation_and_dead_letters(
    tmp_path: Any,
    always: bool,
    dead_letter: bool | None,
    time_to_be_received_s: int | None,
    asks: bool,
    kept: bool,
) -> None:
    @hosted
    async def scenario(hosts: Hosts) -> None:
        a = await hosts.start(delivery={"xact_dead_letter_always": always})
        wants = {"dead_letter": dead_letter, "time_to_be_received_s": time_to_be_received_s}
        async with elsewhere(a, b"1", b"2", **wants) as (listener, remote, _):
            assert remote.messages[0].message.user.flags.negative_journal == asks
            remote.final_ack(remote.messages[1], MessageClass.NACK_QUEUE_EXCEED_QUOTA)
            await until(lambda: a.sending_to(listener.name("orders")).messages == 1)
            remote.order_ack(remote.messages[0])
            await until(lambda: awaiting(a, listener.name("orders")) == (0, int(asks)))
            await a.settled()
            dead = bodies(await a.peek(TRANSACTIONAL_DEAD_LETTERS))
            assert dead == ([b"2"] if kept else [])

    scenario(tmp_path)


@hosted
async def test_other_messages_request_negative_journaling_unless_the_application_declines(
    hosts: Hosts,
) -> None:
    a = await hosts.start(delivery={"xact_dead_letter_always": True})
    async with listening(guid(7)) as listener:
        for dead_letter in (None, True, False):
            await a.send(listener.name("orders"), b"%r" % dead_letter, dead_letter=dead_letter)
        remote = await listener.session()
        await until(lambda: len(remote.messages) == 3)
        asked = [each.message.user.flags.negative_journal for each in remote.messages]
        assert asked == [1, 1, 0]
