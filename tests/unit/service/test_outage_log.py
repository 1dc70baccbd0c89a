"""The reasons for which a service cannot use its queue, in the log."""

from structlog.testing import capture_logs

from qmd.client import ClientError
from qmd.service import outage_log


def test_a_reason_that_stays_is_logged_once_a_minute(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(outage_log.time, "monotonic", lambda: now[0])
    outages = outage_log.OutageLog("orders")

    with capture_logs() as lines:
        for second in range(121):
            now[0] = float(second)
            outages.write(ClientError("no daemon"))
            if second == 30:
                outages.write(ClientError("no right"))

    assert [line["reason"] for line in lines] == ["no daemon", "no right", "no daemon", "no daemon"]
    assert {line["queue"] for line in lines} == {"orders"}


def test_texts_that_differ_each_time_take_little_memory():
    outages = outage_log.OutageLog("orders")

    for number in range(1000):
        outages.write(ClientError(f"failure {number}"))

    assert len(outages._logged) <= 100
