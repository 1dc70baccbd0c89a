"""Two queue managers of qmd: wide windows between them, and hosts that were away."""

from __future__ import annotations

from qmd.control_protocol.messages import RECOVERABLE, TRANSACTIONAL
from qmd.core.session_events import USUAL_WINDOW
from tests.integration.managers import Host, Hosts, bodies, hosted, until

COUNT = 3000
#: Pauses that would double up to minutes, if a missing answer did not limit them.
AWAY = {"retry_first_s": 0.02, "retry_max_s": 1000.0, "away_retry_s": 0.05}


def name_at(host: Host, queue: str = "orders") -> str:
    return f"DIRECT=TCP:127.0.0.1:{host.port}\\private$\\{queue}"


@hosted
async def test_a_transactional_backlog_grows_the_window_and_arrives_in_order(hosts: Hosts) -> None:
    await backlog(hosts, TRANSACTIONAL)


@hosted
async def test_a_recoverable_backlog_grows_the_window_and_arrives_in_order(hosts: Hosts) -> None:
    await backlog(hosts, RECOVERABLE)


async def backlog(hosts: Hosts, delivery: int) -> None:
    """Send a backlog from one host to another, and check the window and what has arrived."""
    a, b = await hosts.start("a"), await hosts.start("b")
    await b.create("orders", transactional=delivery == TRANSACTIONAL)
    name = name_at(b)
    a.destinations.route(name)
    await a.outgoing.set_paused(a.sending_to(name), True)
    wanted = [b"%d" % number for number in range(COUNT)]
    for start in range(0, COUNT, 500):
        await a.send(name, *wanted[start : start + 500], delivery=delivery)
    await a.outgoing.set_paused(a.sending_to(name), False)

    await until(lambda: b.queue("orders").messages == COUNT and not a.sending_to(name).messages)

    connection = a.sending_to(name).link.connection
    assert connection is not None
    assert connection.session is not None
    assert connection.session.outgoing.size > USUAL_WINDOW
    arrived: list[bytes] = []
    start = 0
    while page := await b.peek("orders", start):
        arrived += bodies(page)
        start = page[-1].lookup_id + 1
    assert arrived == wanted


@hosted
async def test_a_small_window_of_an_operator_holds_for_all_peers(hosts: Hosts) -> None:
    a = await hosts.start("a", delivery={"window_size": 8})
    b = await hosts.start("b")
    await b.create("orders")
    await a.send(name_at(b), *[b"x"] * 200, delivery=RECOVERABLE)

    sending = a.sending_to(name_at(b))
    await until(lambda: b.queue("orders").messages == 200 and not sending.messages)
    connection = a.sending_to(name_at(b)).link.connection
    assert connection is not None
    assert connection.session is not None
    assert connection.session.outgoing.size == 8


@hosted
async def test_a_host_that_did_not_answer_for_long_is_used_soon_after_its_return(
    hosts: Hosts,
) -> None:
    b = await hosts.start("b")
    await b.create("orders")
    port = b.port
    await hosts.stop(b)
    a = await hosts.start("a", delivery=AWAY)
    name = f"DIRECT=TCP:127.0.0.1:{port}\\private$\\orders"
    await a.send(name, b"1", delivery=RECOVERABLE)
    await until(lambda: a.sending_to(name).link.retry.failures > 14)

    b = await hosts.start("b", port)

    await until(lambda: b.queue("orders").messages == 1 and not a.sending_to(name).messages)


@hosted
async def test_a_connection_from_an_address_of_a_host_leads_to_an_attempt(hosts: Hosts) -> None:
    patient = {"retry_first_s": 1000.0, "retry_max_s": 1000.0}
    b = await hosts.start("b")
    await b.create("orders")
    port = b.port
    await hosts.stop(b)
    a = await hosts.start("a", delivery=patient)
    name = f"DIRECT=TCP:127.0.0.1:{port}\\private$\\orders"
    await a.send(name, b"1", delivery=RECOVERABLE)
    await until(lambda: a.sending_to(name).link.retry.failures == 1)

    b = await hosts.start("b", port)
    await a.create("answers")
    await b.send(name_at(a, "answers"), b"2", delivery=RECOVERABLE)
    await until(lambda: not b.sending_to(name_at(a, "answers")).messages)

    await until(lambda: b.queue("orders").messages == 1 and not a.sending_to(name).messages)
