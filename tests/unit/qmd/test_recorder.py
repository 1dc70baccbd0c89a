"""The flight recorder: events are built from packets, one for each source."""

from qmd.frames import RECOVERABLE
from qmd.recorder import Kind
from storage import events
from tests.unit.qmd.managers import Hosts, hosted


@hosted
async def test_what_is_told_is_durable_with_the_batch_that_it_was_told_to(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", b"x", delivery=RECOVERABLE)
    (message,) = await a.peek("orders")
    a.recorder.record(
        Kind.EXPORTED, [message.packet], queue="here", to_queue="there", places=[message.lookup_id]
    )
    await a.settled()

    blocks = await a.storage.read(lambda db: events.page(db, 0, 100))
    (told,) = [event for block in blocks for event in block.events if event.kind == "exported"]
    assert (told.source, told.queue, told.to_queue) == (a.id, "here", "there")
    assert list(told.places) == [message.lookup_id]
