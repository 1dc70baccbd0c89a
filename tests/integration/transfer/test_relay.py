"""Relaying messages over another queue manager, with complete queue managers in one process."""

from __future__ import annotations

import time
from typing import Any

from protocol import (
    ORDER_QUEUE_NUMBER,
    FinalAckBody,
    PrivateQueueName,
    build_final_ack,
    parse_user_message,
)
from protocol.identifiers import guid_text
from protocol.message_class import MessageClass
from qmd.config.route_rules import parse_pattern, parse_rule
from qmd.control_protocol.messages import TRANSACTIONAL
from qmd.core.packet_fields import message_number
from qmd.core.retry import CONNECTED
from qmd.message.shared_packet import whole
from qmd.queues.transmission import Transmission
from tests.integration.managers import (
    DEAD_LETTERS,
    TRANSACTIONAL_DEAD_LETTERS,
    Host,
    Hosts,
    hosted,
    until,
)
from tests.integration.remote import dial, guid, listening, packet

RELAY: dict[str, Any] = {"relay_for": ("relay", parse_pattern("127.0.0.0/8").network)}
#: Hosts of which the relay is no hop take messages of others from it.
FROM_RELAYS: dict[str, Any] = {"relays": (parse_pattern("127.0.0.0/8").network,)}


def over(relay: Host, *others: Host) -> dict[str, Any]:
    hops = " then ".join(f"127.0.0.1:{each.port}" for each in (relay, *others))
    return {"routes": (parse_rule(f"*.example via {hops}"),)}


def relaying(to: Host | int) -> dict[str, Any]:
    """Return the routing of a relay that sends all names in "example" to one host."""
    port = to if isinstance(to, int) else to.port
    return {
        **RELAY,
        "relay_to": (parse_pattern("*.example"),),
        "routes": (parse_rule(f"*.example via 127.0.0.1:{port}"),),
    }


async def idle(*relays: Host) -> None:
    """Wait until the relays have passed on all messages and acknowledgments."""
    await until(lambda: not any(each.relay_store.usage.bytes for each in relays), "idle relays")


DESTINATION = "DIRECT=OS:b.example\\private$\\orders"


@hosted
async def test_a_transactional_message_and_its_order_ack_go_over_a_relay(
    hosts: Hosts,
) -> None:
    b = await hosts.start("b", peers=FROM_RELAYS)
    relay = await hosts.start("relay", routing=relaying(b))
    a = await hosts.start("a", routing=over(relay))
    orders = await b.create("orders", transactional=True)

    await a.send(DESTINATION, *(b"%d" % n for n in range(50)), delivery=TRANSACTIONAL)
    await until(lambda: orders.messages == 50)
    await until(lambda: a.sending_to(DESTINATION).messages == 0, "the order ack")
    await until(lambda: relay.relay_store.usage.bytes == 0, "the relay to be empty")

    assert await b.receive("orders") == [b"%d" % n for n in range(50)]
    assert relay.relay_store.relayed_count >= 51  # including the acknowledgment


@hosted
async def test_recoverable_and_express_messages_are_passed_on_once(hosts: Hosts) -> None:
    b = await hosts.start("b", peers=FROM_RELAYS)
    relay = await hosts.start("relay", routing=relaying(b))
    a = await hosts.start("a", routing=over(relay))
    orders = await b.create("orders")

    for delivery in (0, 1):
        await a.send(DESTINATION, b"one", b"two", delivery=delivery)
    await until(lambda: orders.messages == 4)
    await b.settled()

    assert sorted(await b.receive("orders")) == [b"one", b"one", b"two", b"two"]
    await until(lambda: a.sending_to(DESTINATION).messages == 0)
    await until(lambda: relay.relay_store.usage.bytes == 0)


@hosted
async def test_messages_that_a_relay_has_acknowledged_survive_its_restart(hosts: Hosts) -> None:
    b = await hosts.start("b", peers=FROM_RELAYS)
    relay = await hosts.start("relay", routing=relaying(1))  # a closed port
    a = await hosts.start("a", routing=over(relay))
    await b.create("orders", transactional=True)

    await a.send(DESTINATION, b"1", b"2", b"3", delivery=TRANSACTIONAL)
    await until(lambda: len(relay.outgoing.queues) == 1 and relay.outgoing.queues[0].messages == 3)
    await hosts.stop(a)
    relay = await hosts.restart(relay, routing=relaying(b))

    await until(lambda: b.queue("orders").messages == 3)
    await until(lambda: relay.outgoing.queues[0].messages == 0)
    back = f"PRIVATE={guid_text(a.id)}\\00000004 for others".casefold()
    await until(lambda: relay.outgoing.find(back), "the order ack for who is not there")


@hosted
async def test_a_relay_rejects_duplicates_of_messages_that_it_holds_even_after_its_restart(
    hosts: Hosts,
) -> None:
    relay = await hosts.start("relay", routing=relaying(1))
    a = await hosts.start("a", routing=over(relay))
    await a.send(DESTINATION, b"1", b"2", b"3", delivery=TRANSACTIONAL)
    await until(lambda: relay.outgoing.queues and relay.outgoing.queues[0].messages == 3)

    relay = await hosts.restart(relay, routing=relaying(1))
    await until(lambda: a.sending_to(DESTINATION).link.connection is not None)
    a.outgoing.kick(a.sending_to(DESTINATION))
    await until(lambda: a.sending_to(DESTINATION).resent_count >= 3)
    await until(lambda: relay.incoming.received_count >= 3)
    await relay.settled()

    assert relay.outgoing.queues[0].messages == 3


@hosted
async def test_a_relay_records_a_message_that_returns_after_its_departure(hosts: Hosts) -> None:
    """Both happen in one commit, after which the log has to agree with the tables."""
    relay = await hosts.start("relay", routing=relaying(1))
    a = await hosts.start("a", routing=over(relay))
    await a.send(DESTINATION, b"1", b"2", delivery=TRANSACTIONAL)
    await until(lambda: relay.outgoing.queues and relay.outgoing.queues[0].messages == 2)
    await relay.settled()
    (queue,) = relay.outgoing.queues
    connection = relay.peers.connection_to(a.id)
    assert connection is not None

    done = Transmission()
    while (entry := queue.window.pop()) is not None:
        key, (held, _) = entry
        queue.in_flight[key] = held
        done.first.sources.append(a.id)
        done.first.add(message_number(whole(held)), 0, len(held))
    relay.recorder.transmitted(queue, done)
    for key, held in list(queue.in_flight.items()):
        relay.outgoing_release.session_acknowledged([(queue, key)])
        relay.outgoing_release.release()
        again = whole(held)
        relay.relay.take(connection, parse_user_message(again), again, 0, relay.loop.time())

    await relay.settled()
    assert queue.messages == 2


@hosted
async def test_a_stream_over_two_relays_arrives_once_and_in_order(
    hosts: Hosts,
) -> None:
    b = await hosts.start("b", peers=FROM_RELAYS)
    await b.create("orders", transactional=True)
    first = await hosts.start("first", routing=relaying(1))
    second = await hosts.start("second", routing=relaying(b))
    a = await hosts.start("a", routing=over(first, second))

    await a.send(DESTINATION, *(b"%d" % n for n in range(20)), delivery=TRANSACTIONAL)
    await until(lambda: first.outgoing.queues and first.outgoing.queues[0].messages == 20)
    port = first.port
    await hosts.stop(first)
    await a.send(DESTINATION, *(b"%d" % n for n in range(20, 40)), delivery=TRANSACTIONAL)
    await until(lambda: b.queue("orders").messages == 40)
    first = await hosts.start("first", port, routing=relaying(b))
    await until(lambda: first.relay_store.usage.bytes == 0, "the late ones to be passed on")
    await until(lambda: a.sending_to(DESTINATION).messages == 0)
    await idle(first, second)

    assert await b.receive("orders") == [b"%d" % n for n in range(40)]
    assert b.incoming.rejected_count >= 20


@hosted
async def test_messages_and_acknowledgments_go_over_two_relays_in_a_row(hosts: Hosts) -> None:
    b = await hosts.start("b", peers=FROM_RELAYS)
    far = await hosts.start("far", routing=relaying(b))
    near = await hosts.start("near", routing=relaying(far))
    a = await hosts.start("a", routing=over(near))
    await b.create("orders", transactional=True)

    await a.send(DESTINATION, b"1", b"2", delivery=TRANSACTIONAL, dead_letter=True)
    await until(lambda: b.queue("orders").messages == 2)
    await until(lambda: a.sending_to(DESTINATION).messages == 0, "the order ack")
    queue = a.sending_to(DESTINATION)
    assert queue.awaiting.messages == 2
    message = (await b.peek("orders"))[0]
    assert message.packet[60] & 0x1F == 2  # hops

    assert await b.receive("orders") == [b"1", b"2"]
    await until(lambda: queue.awaiting.messages == 0, "the final acks")
    await idle(near, far)


@hosted
async def test_a_final_ack_goes_back_over_a_relay_after_restarts_of_all_hosts(
    hosts: Hosts,
) -> None:
    b = await hosts.start("b", peers=FROM_RELAYS)
    relay = await hosts.start("relay", routing=relaying(b))
    a = await hosts.start("a", routing=over(relay))
    await b.create("orders", transactional=True)
    await a.send(DESTINATION, b"1", delivery=TRANSACTIONAL, dead_letter=True)
    await until(lambda: a.sending_to(DESTINATION).messages == 0, "the order ack")

    b = await hosts.restart(b)
    relay = await hosts.restart(relay, routing=relaying(b))
    a = await hosts.restart(a, routing=over(relay))
    assert await b.receive("orders") == [b"1"]

    await until(lambda: a.sending_to(DESTINATION).awaiting.messages == 0, "the final ack")
    await idle(relay)


@hosted
async def test_a_final_ack_over_a_direct_session_counts(hosts: Hosts) -> None:
    b = await hosts.start("b", peers=FROM_RELAYS)
    relay = await hosts.start("relay", routing=relaying(b))
    a = await hosts.start("a", routing=over(relay))
    inbox = await a.create("inbox")
    await b.create("orders", transactional=True)
    await a.send(DESTINATION, b"1", delivery=TRANSACTIONAL, dead_letter=True)
    await until(lambda: a.sending_to(DESTINATION).messages == 0, "the order ack")

    await idle(relay)
    await a.settled()  # otherwise a resends the message, and learns of b from its order ack
    # After a restart, a knows the relay of its messages, but not yet their destination.
    a = await hosts.restart(a, routing=over(relay))
    inbox = a.queue("inbox")
    await until(lambda: a.sending_to(DESTINATION).link.connection is not None, "the relay")
    b = await hosts.restart(b)
    await b.send(f"DIRECT=TCP:127.0.0.1:{a.port}\\private$\\inbox", b"hello")
    await until(lambda: inbox.messages == 1, "a session of their own")
    assert await b.receive("orders") == [b"1"]

    await until(lambda: a.sending_to(DESTINATION).awaiting.messages == 0, "the final ack")


@hosted
async def test_a_final_ack_for_an_address_goes_over_a_relay_as_well(hosts: Hosts) -> None:
    """Its destination is the address of the source in an earlier direct session."""
    b = await hosts.start("b", peers=FROM_RELAYS)
    relay = await hosts.start("relay", routing=relaying(b))
    a = await hosts.start("a", routing=over(relay))
    inbox = await b.create("inbox")
    await b.create("orders", transactional=True)

    async def send_and_receive(body: bytes) -> None:
        await a.send(DESTINATION, body, delivery=TRANSACTIONAL, dead_letter=True)
        await until(lambda: a.sending_to(DESTINATION).messages == 0, "the order ack")
        assert await b.receive("orders") == [body]
        await until(lambda: a.sending_to(DESTINATION).awaiting.messages == 0, "the final ack")

    await send_and_receive(b"over the relay")
    await a.send(f"DIRECT=TCP:127.0.0.1:{b.port}\\private$\\inbox", b"hello")
    await until(lambda: inbox.messages == 1, "a session of their own")
    await send_and_receive(b"over that")
    await idle(relay)
    await a.settled()
    a = await hosts.restart(a, routing=over(relay))

    await send_and_receive(b"over the relay again")
    await idle(relay)


@hosted
async def test_a_refusal_of_the_destination_reaches_the_source_which_keeps_the_dead_letter(
    hosts: Hosts,
) -> None:
    b = await hosts.start("b", peers=FROM_RELAYS)
    relay = await hosts.start("relay", routing=relaying(b))
    a = await hosts.start("a", routing=over(relay))
    await b.create("orders")  # not transactional, so it refuses transactional messages

    await a.send(DESTINATION, b"1", delivery=TRANSACTIONAL)
    await until(lambda: a.queue(TRANSACTIONAL_DEAD_LETTERS).messages == 1)

    assert relay.queue(TRANSACTIONAL_DEAD_LETTERS).messages == 0
    assert a.sending_to(DESTINATION).messages == 0
    await idle(relay)


@hosted
async def test_a_relay_passes_on_messages_only_for_configured_hosts(
    hosts: Hosts,
) -> None:
    b = await hosts.start("b", peers=FROM_RELAYS)
    refusing = {**relaying(b), "relay_for": ("elsewhere",)}
    relay = await hosts.start("relay", routing=refusing)
    a = await hosts.start("a", routing=over(relay))
    await b.create("orders", transactional=True)

    await a.send(DESTINATION, b"1", delivery=TRANSACTIONAL)
    await until(lambda: a.queue(TRANSACTIONAL_DEAD_LETTERS).messages == 1)

    (letter,) = await a.peek(TRANSACTIONAL_DEAD_LETTERS)
    assert relay.relay_store.relayed_count == 0
    assert relay.queue(TRANSACTIONAL_DEAD_LETTERS).messages == 0
    assert letter.reason


@hosted
async def test_a_message_in_a_routing_loop_ends_with_a_reason(hosts: Hosts) -> None:
    one = await hosts.start("one", routing=relaying(1))
    other = await hosts.start("other", routing=relaying(one))
    one = await hosts.restart(one, routing=relaying(other))
    a = await hosts.start("a", routing=over(one))

    await a.send(DESTINATION, b"1", delivery=TRANSACTIONAL)
    await until(lambda: a.queue(TRANSACTIONAL_DEAD_LETTERS).messages == 1)

    await idle(one, other)


@hosted
async def test_the_thirtieth_relay_refuses_a_message_and_reports_it(hosts: Hosts) -> None:
    b = await hosts.start("b", peers=FROM_RELAYS)
    relay = await hosts.start("relay", routing=relaying(b))
    source = guid(1)
    remote = await dial(relay, source)
    far = bytearray(packet(b"1", source=source, number=7, position=(9 << 32 | 1, 1, 0)))
    far[32:48] = guid(2)  # the address of another queue manager
    far[60] = far[60] & ~0x1F | 29

    remote.send(bytes(far))
    await until(lambda: remote.classes[MessageClass.NACK_HOP_COUNT_EXCEEDED] == 1)

    plain = bytearray(packet(b"2", source=source, number=8, dead_letter=True))
    plain[32:48] = guid(2)
    plain[60] = plain[60] & ~0x1F | 29
    remote.send(bytes(plain))
    await until(lambda: relay.queue(DEAD_LETTERS).messages == 1)
    assert relay.queue(TRANSACTIONAL_DEAD_LETTERS).messages == 0
    remote.close()


@hosted
async def test_an_order_ack_of_a_destination_without_relay_support_is_passed_back(
    hosts: Hosts,
) -> None:
    async with listening(guid(3)) as elsewhere:
        relay = await hosts.start("relay", routing=relaying(elsewhere.port))
        a = await hosts.start("a", routing=over(relay))
        await a.send(DESTINATION, b"1", b"2", delivery=TRANSACTIONAL)
        remote = await elsewhere.session()
        await until(lambda: len(remote.messages) == 2)
        assert [each.message.user.flags & 0x1F for each in remote.messages] == [1, 1]

        remote.acknowledge()
        remote.order_ack(remote.messages[1])

        await until(lambda: a.sending_to(DESTINATION).messages == 0, "the order ack")
        await until(lambda: relay.relay_store.usage.bytes == 0)


@hosted
async def test_a_relay_changes_only_the_hop_count_of_a_packet(hosts: Hosts) -> None:
    async with listening(guid(3)) as elsewhere:
        relay = await hosts.start("relay", routing=relaying(elsewhere.port))
        source = guid(1)
        dialled = await dial(relay, source)
        sent = bytearray(packet(b"1", source=source, number=7, position=(9 << 32 | 1, 4, 2)))
        wire = "TCP:127.0.0.1\\private$\\orders".encode("utf-16-le")
        assert wire in sent
        as_named = bytes(sent).replace(
            wire, "OS:bbbb.example\\private$\\orderb".encode("utf-16-le")[: len(wire)]
        )
        dialled.send(as_named)
        remote = await elsewhere.session()
        await until(lambda: remote.messages)

        came = bytearray(remote.messages[0].packet)
        came[60] &= ~0x1F
        assert bytes(came) == as_named
        remote.acknowledge()
        await until(lambda: relay.relay_store.usage.bytes == 0)
        dialled.close()


@hosted
async def test_an_expired_message_ends_at_the_relay(hosts: Hosts) -> None:
    relay = await hosts.start("relay", routing=relaying(1))
    a = await hosts.start("a", routing=over(relay))

    await a.send(DESTINATION, b"1", delivery=1, time_to_reach_queue_s=100, dead_letter=True)
    await until(lambda: a.sending_to(DESTINATION).messages == 0)
    assert relay.outgoing.queues[0].messages == 1
    relay.world.ahead_s += 99
    await hosts.reap(relay)
    assert relay.outgoing.queues[0].messages == 1
    relay.world.ahead_s += 2
    await hosts.reap(relay)

    await until(lambda: relay.queue(DEAD_LETTERS).messages == 1)
    assert relay.relay_store.usage.bytes == 0


@hosted
async def test_a_relay_without_room_accepts_no_messages_for_others(hosts: Hosts) -> None:
    relay = await hosts.start("relay", routing={**relaying(1), "relay_bytes_max": 1000})
    a = await hosts.start("a", routing=over(relay))

    await a.send(DESTINATION, bytes(2000), delivery=1)
    history = a.sending_to(DESTINATION).link.retry.history
    await until(lambda: any(attempt.result != CONNECTED for attempt in history))

    assert relay.relay_store.relayed_count == 0
    assert a.sending_to(DESTINATION).messages == 1


def final_acks_of(destination: bytes, source: bytes) -> list[bytes]:
    """Return final acks of messages that `source` has sent."""
    return [
        build_final_ack(
            source_queue_manager=destination,
            destination=PrivateQueueName(source, ORDER_QUEUE_NUMBER),
            message_number=number,
            sent_time=int(time.time()),
            message_class=MessageClass.ACK_RECEIVE,
            body=FinalAckBody(9 << 32 | 1, number, number - 1, source, number),
        )
        for number in range(1, 20)
    ]


@hosted
async def test_acknowledgments_may_use_as_much_room_again_as_messages(hosts: Hosts) -> None:
    """Without room for them, the messages that fill the relay might never leave."""
    await check_room_for_acknowledgments(hosts, computer_bytes=8_000_000_000)


@hosted
async def test_the_computer_quota_does_not_limit_relayed_acknowledgments(hosts: Hosts) -> None:
    await check_room_for_acknowledgments(hosts, computer_bytes=100)


async def check_room_for_acknowledgments(hosts: Hosts, computer_bytes: int) -> None:
    relay = await hosts.start(
        "relay",
        routing={**relaying(1), "relay_bytes_max": 1000},
        quotas={"computer_bytes": computer_bytes},
    )
    remote = await dial(relay, guid(1))
    final_acks = final_acks_of(guid(1), guid(2))
    size = len(final_acks[0])
    fitting = 2000 // size
    usage, ended = relay.relay_store.usage, remote.closed.is_set

    remote.send(*final_acks[:fitting])
    await until(lambda: usage.bytes == fitting * size or ended())
    assert not ended()

    remote.send(final_acks[fitting])
    await until(lambda: usage.bytes > fitting * size or ended())
    assert usage.bytes == fitting * size


@hosted
async def test_final_acks_pass_a_relay_whose_computer_quota_is_reached(hosts: Hosts) -> None:
    """Their destination acknowledges sessions by timers, so that the final ack comes first."""
    b = await hosts.start("b", peers=FROM_RELAYS, delivery={"acknowledge_at_once": False})
    relay = await hosts.start("relay", routing=relaying(b), quotas={"computer_bytes": 400})
    a = await hosts.start("a", routing=over(relay))

    bodies = [bytes([number]) * 100 for number in range(3)]  # one packet fills the relay
    await a.send(DESTINATION, *bodies, delivery=TRANSACTIONAL, dead_letter=True)

    await until(lambda: a.queue(TRANSACTIONAL_DEAD_LETTERS).messages == 3, "three final acks")
    assert await a.receive(TRANSACTIONAL_DEAD_LETTERS) == bodies
    await idle(relay)
