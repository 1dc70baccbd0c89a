"""Reports of traced messages between local queues, and the time in the label of a report."""

import pytest

from protocol import parse_user_message
from protocol.identifiers import parse_message_id
from qmd.control_protocol.messages import EXPRESS, RECOVERABLE, NewMessage
from qmd.outcomes.reports import time_date
from tests.integration.managers import Hosts, hosted, until


@pytest.mark.parametrize("delivery", [EXPRESS, RECOVERABLE])
@pytest.mark.parametrize("destination", ["one", "one,two,one"])
def test_a_traced_message_to_a_local_queue_is_reported_as_arrived(tmp_path, delivery, destination):
    @hosted
    async def run(hosts: Hosts) -> None:
        a = await hosts.start("a")
        for queue in ("one", "two", "reports"):
            await a.create(queue)
        done = a.loop.create_future()
        traced = NewMessage(destination, b"x", delivery=delivery, report_queue="reports")

        a.message_sender.send([traced], b"", done.set_result)

        (sent,) = await done
        copies = [sent] if isinstance(sent, str) else sent
        await until(lambda: a.queue("reports").messages == len(copies))
        reported = [parse_user_message(each.packet) for each in await a.peek("reports")]
        assert [each.properties.correlation_id for each in reported] == [
            source + number.to_bytes(4, "little")
            for source, number in map(parse_message_id, copies)
        ]

    run(tmp_path)


@pytest.mark.parametrize(
    ("at_s", "text"),
    [
        (0, "12:00:00 AM Thu,Jan 01 70"),
        (1_700_000_000, "10:13:20 PM Tue,Nov 14 23"),
        (951_825_600, "12:00:00 PM Tue,Feb 29 00"),
        (1_709_211_599, "12:59:59 PM Thu,Feb 29 24"),
    ],
)
def test_the_time_in_the_label_follows_the_grammar(at_s, text):
    assert time_date(at_s) == text
