"""The verdict of the demo: it detects lost, doubled, reordered and foreign messages."""

import pytest

from benchmarks.tally import Tally
from benchmarks.verdict import Outcome, broken_promises, table, verdict

TOTAL = 5


def outcome():
    """Return an outcome: all messages sent in order before the only kill, none received."""
    tallies = [Tally(kind, TOTAL) for kind in ("transactional", "recoverable", "express")]
    for tally in tallies:
        for number in range(TOTAL):
            tally.kills_before[number] = 0
            tally.confirmed(number, f"id{number}")
    return Outcome(*tallies, kills=1, seconds=2.0)


def deliver(tally, numbers):
    for number in numbers:
        tally.arrived(tally.body(number), f"id{number}")


def delivered():
    result = outcome()
    for tally in result.tallies:
        deliver(tally, range(TOTAL))
    return result


def test_complete_delivery_in_order_passes(tmp_path):
    result = delivered()

    assert broken_promises(result) == []
    assert "exactly once and in order" in verdict(result, [], tmp_path)[0]


@pytest.mark.parametrize("kind", ["transactional", "recoverable"])
def test_a_lost_message_is_named(kind):
    result = outcome()
    for tally in result.tallies:
        deliver(tally, [0, 1, 3, 4] if tally.delivery == kind else range(TOTAL))

    assert broken_promises(result) == [f"lost: {kind} message 2, id id2"]


def test_an_express_message_may_be_lost_to_a_later_kill():
    result = outcome()
    for tally in result.tallies:
        deliver(tally, [0, 1, 3, 4] if tally.delivery == "express" else range(TOTAL))

    assert broken_promises(result) == []


def test_an_express_message_is_not_lost_without_a_kill():
    result = outcome()
    result.express.kills_before[2] = 1
    for tally in result.tallies:
        deliver(tally, [0, 1, 3, 4] if tally.delivery == "express" else range(TOTAL))

    assert broken_promises(result) == ["lost: express message 2, id id2"]


@pytest.mark.parametrize("kind", ["transactional", "recoverable", "express"])
def test_a_doubled_message_fails(kind):
    result = delivered()
    doubled = next(tally for tally in result.tallies if tally.delivery == kind)

    doubled.arrived(doubled.body(3), "other")

    assert broken_promises(result) == [
        f"arrived 2 times: {kind} message 3, id id3, as id3 and other"
    ]


def test_an_overtaken_transactional_message_fails():
    result = outcome()
    deliver(result.transactional, [0, 2, 1, 3, 4])
    deliver(result.recoverable, [0, 2, 1, 3, 4])
    deliver(result.express, range(TOTAL))

    assert broken_promises(result) == ["arrived after a later one: transactional message 1, id id1"]


@pytest.mark.parametrize("body", [b"", b"transactional 1\nother", b"transactional 99\n", b"\xff"])
def test_an_unknown_body_fails(body):
    result = delivered()

    result.transactional.arrived(body, "strange")

    assert broken_promises(result) == ["its body is not what was sent: message strange"]


def test_a_message_that_was_not_sent_is_not_reported_as_lost():
    tallies = [Tally(kind, 1) for kind in ("transactional", "recoverable", "express")]

    found = broken_promises(Outcome(*tallies))

    assert found == [f"1 {tally.delivery} messages were not sent" for tally in tallies]


def test_a_failed_run_keeps_and_lists_its_data(tmp_path):
    result = outcome()

    lines = verdict(result, broken_promises(result), tmp_path)

    assert str(tmp_path) in lines[-1]
    assert len((tmp_path / "findings").read_text().splitlines()) == 2 * TOTAL


def test_the_table_counts_each_delivery_separately():
    result = outcome()
    deliver(result.transactional, [0, 0, 1])

    lines = {line[:20].strip(): line[20:].split() for line in table(result)}

    assert lines["delivered"] == ["2", "0", "0"]
    assert lines["lost"] == ["3", "5", "5"]
    assert lines["doubled"] == ["1", "0", "0"]
    assert lines["messages a second"] == ["1"]
