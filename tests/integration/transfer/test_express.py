"""Express messages: in memory only, but still sent only once when a request is repeated."""

from qmd.control_protocol.messages import EXPRESS, NewMessage
from tests.integration.disk import held_disk
from tests.integration.managers import DEAD_LETTERS, Hosts, hosted, until
from tests.integration.remote import dial, listening, packet

PEER = bytes(range(16))
TOKEN = b"a request that may be asked about"


@hosted
async def test_a_duplicate_after_a_restart_is_not_received_twice(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    message = packet(b"once", source=PEER, number=7, delivery=EXPRESS)
    remote = await dial(a, PEER)
    remote.send(message)
    await until(lambda: a.queue("orders").messages, "the message")
    assert await a.receive("orders") == [b"once"]

    a = await hosts.restart(a)
    remote = await dial(a, PEER)
    remote.send(message, packet(b"next", source=PEER, number=8, delivery=EXPRESS))
    await until(lambda: a.queue("orders").messages, "the next one")
    assert await a.receive("orders") == [b"next"]
    assert a.incoming.duplicate_count == 1


@hosted
async def test_an_express_message_is_sent_only_when_its_outcome_is_stored(hosts: Hosts) -> None:
    a = await hosts.start()
    async with listening(PEER) as there:
        name = f"DIRECT=TCP:127.0.0.1:{there.port}\\private$\\q"
        await a.send(name, b"first", delivery=EXPRESS)
        await until(lambda: there.remotes and there.remotes[0].ordinary == [b"first"], "a session")
        with held_disk(a):
            asked = a.handed_over([NewMessage(name, b"second", delivery=EXPRESS)], TOKEN)
            await a.send(name, b"third", delivery=EXPRESS)  # without a token, so it need not wait
            await until(lambda: len(there.remotes[0].ordinary) == 2, "what need not wait")
            assert there.remotes[0].ordinary == [b"first", b"third"]
            assert not asked.done()
        await asked
        await until(lambda: len(there.remotes[0].ordinary) == 3, "the second")
        assert await a.request_outcomes.outcome(TOKEN) == asked.result()


@hosted
async def test_a_message_that_expires_while_the_disk_is_busy_is_not_sent(hosts: Hosts) -> None:
    a = await hosts.start()
    async with listening(PEER) as there:
        name = f"DIRECT=TCP:127.0.0.1:{there.port}\\private$\\q"
        await a.send(name, b"first", delivery=EXPRESS)
        await until(lambda: there.remotes and there.remotes[0].ordinary == [b"first"], "a session")
        sender = a.sending_to(name)
        with held_disk(a):
            late = NewMessage(name, b"late", delivery=EXPRESS, time_to_reach_queue_s=1)
            asked = a.handed_over([late], TOKEN)
            assert a.undeliverable.expire_express(a.clock.now_s + 5, 10) == 1
            assert len(sender.express) == 1, "it has expired"
        await asked
        await a.settled()
        await a.send(name, b"last", delivery=EXPRESS)
        await until(lambda: b"last" in there.remotes[0].ordinary, "the last one")
        assert there.remotes[0].ordinary == [b"first", b"last"]
        assert len(await a.peek(DEAD_LETTERS)) == 1
