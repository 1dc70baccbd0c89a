"""The event log names the run of each queue manager that this one speaks with."""

from __future__ import annotations

from qmd.control_protocol.messages import RECOVERABLE
from qmd.core.peer_instance import run_text
from storage.tables import event_search
from tests.integration.managers import Host, Hosts, hosted, until


async def runs(host: Host, kind: str) -> list[str]:
    """Return the runs that events of this kind name, in their order."""
    await host.settled()
    page = await host.storage.read(
        lambda db: event_search.last(
            db, events_max=10_000, blocks_max=10_000, is_wanted=lambda event: event.kind == kind
        )
    )
    return [event.event.peer for event in page.found]


async def delivered(source: Host, to: Host) -> None:
    destination = f"DIRECT=TCP:127.0.0.1:{to.port}\\private$\\plain"
    await source.send(destination, b"x", delivery=RECOVERABLE)
    await until(lambda: not source.sending_to(destination).messages, "the acknowledgment")


@hosted
async def test_each_run_of_a_peer_is_logged_once_before_its_messages(hosts: Hosts) -> None:
    a, b = await hosts.start("a"), await hosts.start("b")
    await b.create("plain")
    for _ in range(2):
        await delivered(a, b)
        for connection in list(a.peers.connections):
            connection.close("another session follows")
    first = [run_text(each.id, each.identities.own) for each in (a, b)]
    await hosts.stop(b)
    b = await hosts.start("b")
    await delivered(a, b)
    second = run_text(b.id, b.identities.own)

    assert second != first[1]
    assert await runs(a, "started") == [first[0]]
    assert await runs(b, "started") == [first[1], second]
    assert await runs(a, "met") == [first[1], second]
    assert await runs(b, "met") == [first[0], first[0]], "each start of b logs it"
