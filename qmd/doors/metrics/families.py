"""Families of metrics, made from figures: their names, units, labels and meanings.

The names follow the conventions of Prometheus and OpenMetrics: base units, counters end in _total.
docs/metrics.md lists them; a test compares it with a scrape.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    Exemplar,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.utils import floatToGoString

from qmd.doors.metrics.collection import Facts, Figures
from qmd.doors.metrics.rows import OTHER, Destination

STATES = ("inactive", "waiting", "connected", "paused")
EXEMPLAR_MAX = 128  # characters of the names and values of its labels.  OpenMetrics 1.0

#: name, key in the answer of HostFigures, meaning
HOST_GAUGES = (
    ("queues", "queues", "Queues of applications."),
    ("messages", "messages", "Messages in local queues, without journals and dead letters."),
    ("dead_letter_messages", "dead_letters", "Messages in the dead-letter queues of the system."),
    ("outgoing_messages", "outgoing_messages", "Messages for other hosts, not acknowledged yet."),
    ("awaiting_messages", "awaiting_messages", "Messages that arrived and await a final ack."),
    ("delayed_messages", "delayed_messages", "Messages that will be sent later."),
    ("stored_bytes", "bytes", "Bytes of the packets of all queues."),
    ("express_bytes", "express_bytes", "Bytes of express messages, which are in memory only."),
    ("disk_free_bytes", "disk_free_bytes", "Free space of the disk, as last measured."),
    ("disk_full", "disk_full", "1: new messages are refused, because the disk lacks space."),
    ("write_ahead_log_bytes", "log_bytes", "Size of the file of the write-ahead log."),
    ("rows_waiting", "rows_waiting", "Rows that are not durable yet."),
    ("sessions", "sessions", "Connections with other queue managers."),
    ("clients", "connections_of_clients", "Connections of clients."),
    ("resident_memory_bytes", "resident_bytes", "Physical memory that the daemon uses."),
    ("identity_conflicts", "identity_conflicts", "Queue managers of which two hosts claim the id."),
    ("vanished_messages", "vanished_messages", "Messages whose rows vanished from the database."),
    ("directory_problem", "directory_problem", "1: the directory does not answer as it should."),
    ("start_time_seconds", "started_at_s", "When the daemon started, in seconds since 1970."),
)
HOST_COUNTERS = (
    ("sent", "sent", "Messages that applications have sent."),
    ("received", "received", "Messages that other queue managers have sent here."),
    ("transmitted", "transmitted", "Messages handed to sessions, also again."),
    ("relayed", "relayed", "Messages accepted for other hosts."),
    ("duplicates", "duplicates", "Messages that arrived again and were not stored again."),
    ("out_of_order", "out_of_order", "Messages that a sequence rejected; they are sent again."),
    ("refused", "refused", "Messages of other queue managers that were refused for good."),
    ("access_refused", "access_refused", "Requests of clients that lacked a right."),
    ("events_not_listed", "events_not_listed", "Events beyond the share of their host."),
    ("processor_seconds", "processor_s", "Processor time that the daemon has used."),
)
HISTOGRAMS = (
    ("commit_seconds", "commits", "Time from the begin of a commit to its end, on the disk."),
    ("checkpoint_seconds", "checkpoints", "Time of a checkpoint of the write-ahead log."),
    ("event_loop_lag_seconds", "loop_lags", "How late a timer of the event loop ran."),
)


def families(found: Figures) -> Iterator[Metric]:
    """Yield the metrics of a collection."""
    yield from _of_host(found.host)
    yield from _of_queues(found)
    yield from _of_destinations(found)
    yield GaugeMetricFamily(
        "qmd_collection_seconds", "Time that the figures took to collect.", found.took_s
    )


def up(is_up: bool) -> Metric:
    """Return whether the daemon answers."""
    return GaugeMetricFamily("qmd_up", "1: the daemon answers.", float(is_up))


def _of_host(host: Facts) -> Iterator[Metric]:
    yield InfoMetricFamily("qmd_build", "Versions of the daemon.", host["versions"])
    who = {"name": host["name"], "id": host["queue_manager"]}
    yield InfoMetricFamily("qmd_queue_manager", "The queue manager.", who)
    for name, key, meaning in HOST_GAUGES:
        yield GaugeMetricFamily(f"qmd_{name}", meaning, float(host[key]))
    for name, key, meaning in HOST_COUNTERS:
        yield CounterMetricFamily(f"qmd_{name}", meaning, float(host[key]))
    for name, key, meaning in HISTOGRAMS:
        yield _histogram(f"qmd_{name}", meaning, host[key])
    if host["quota_bytes"] is not None:
        yield GaugeMetricFamily("qmd_quota_bytes", "Quota of the computer.", host["quota_bytes"])
    if host["certificate_expires_s"] is not None:
        yield GaugeMetricFamily(
            "qmd_certificate_expires_seconds",
            "When the certificate for other queue managers expires, in seconds since 1970.",
            host["certificate_expires_s"],
        )
    failing = len(host["housekeeping_failing"])
    yield GaugeMetricFamily("qmd_housekeeping_failing", "Periodic tasks that fail.", failing)
    waits = float(host["commits_wait"] is not None)
    yield GaugeMetricFamily("qmd_commits_wait", "1: commits wait for space or memory.", waits)
    yield _labelled(
        CounterMetricFamily(
            "qmd_dead_letters",
            "Messages that became dead letters, by their class.",
            labels=("reason",),
        ),
        ((each, count) for each, count in host["dead_letters_by_class"].items()),
    )
    yield from _of_budgets(host["budgets"])


def _of_budgets(budgets: Facts) -> Iterator[Metric]:
    for name, key, meaning in (
        ("bytes", "bytes", "Bytes in use of a budget in memory."),
        ("limit_bytes", "limit_bytes", "Limit of a budget in memory."),
    ):
        family = GaugeMetricFamily(f"qmd_memory_budget_{name}", meaning, labels=("budget",))
        yield _labelled(family, ((each, facts[key]) for each, facts in budgets.items()))
    yield _labelled(
        CounterMetricFamily(
            "qmd_memory_budget_denied", "Requests that a budget denied.", labels=("budget",)
        ),
        ((each, facts["denied"]) for each, facts in budgets.items()),
    )


def _of_queues(found: Figures) -> Iterator[Metric]:
    labels = ("queue", "kind")
    others = found.other_queues
    for name, meaning, column in (
        ("messages", "Messages in the queue, ready and taken.", 2),
        ("bytes", "Bytes of their packets.", 3),
        ("taken_messages", "Messages that readers have and did not settle.", 6),
        ("waiting_readers", "Requests that wait for a message.", 7),
    ):
        family = GaugeMetricFamily(f"qmd_queue_{name}", meaning, labels=labels)
        for row in found.queues:
            family.add_metric((row.name, row.kind), row[column])
        if others:
            total = sum(row[column] for row in others)  # type: ignore[misc]
            family.add_metric((OTHER, OTHER), total)
        yield family
    yield _growing(
        "qmd_queue_arrived", "Messages that came to the queue since the start.", found, 0
    )
    yield _growing("qmd_queue_left", "Messages that left it, for any reason.", found, 1)
    yield _ages(
        GaugeMetricFamily(
            "qmd_queue_oldest_message_age_seconds",
            "Age of the oldest message; 0: the queue is empty.",
            labels=labels,
        ),
        [((row.name, row.kind), row.name) for row in found.queues],
        found.queue_ages_s,
    )
    yield _labelled(
        GaugeMetricFamily("qmd_queue_quota_bytes", "Quota of the queue.", labels=labels),
        (
            ((row.name, row.kind), row.quota_bytes)
            for row in found.queues
            if row.quota_bytes is not None
        ),
    )


def _growing(name: str, meaning: str, found: Figures, index: int) -> Metric:
    family = CounterMetricFamily(name, meaning, labels=("queue", "kind"))
    for row in found.queues:
        family.add_metric((row.name, row.kind), row.counters[index])
    if found.other_queue_counters:
        family.add_metric((OTHER, OTHER), found.other_queue_counters[index])
    return family


def _of_destinations(found: Figures) -> Iterator[Metric]:
    labels, others = ("destination",), found.other_destinations
    for name, meaning, column in (
        ("messages", "Messages for the destination, not acknowledged yet.", 2),
        ("bytes", "Bytes of their packets.", 3),
        ("unacknowledged_messages", "Messages sent to it, and not acknowledged yet.", 4),
        ("awaiting_messages", "Messages that arrived there and await a final ack.", 5),
        ("in_doubt", "1: its peer seems to know more of its sequence than is stored here.", 9),
    ):
        family = GaugeMetricFamily(f"qmd_destination_{name}", meaning, labels=labels)
        for row in found.destinations:
            family.add_metric((row.name,), float(row[column]))  # type: ignore[arg-type]
        if others:
            family.add_metric((OTHER,), float(sum(row[column] for row in others)))  # type: ignore[misc]
        yield family
    for index, (name, meaning) in enumerate(
        (
            ("transmitted", "Messages handed to its session, also again."),
            ("resent", "Messages that had to be sent again."),
        )
    ):
        counter = CounterMetricFamily(f"qmd_destination_{name}", meaning, labels=labels)
        for row in found.destinations:
            counter.add_metric((row.name,), row.counters[index])
        if found.other_destination_counters:
            counter.add_metric((OTHER,), found.other_destination_counters[index])
        yield counter
    yield _labelled(
        GaugeMetricFamily(
            "qmd_destination_round_trip_seconds",
            "Last measured time from a transmission to the acknowledgment of its receipt.",
            labels=labels,
        ),
        (
            (row.name, row.round_trip_s)
            for row in found.destinations
            if row.round_trip_s is not None
        ),
    )
    yield _ages(
        GaugeMetricFamily(
            "qmd_destination_oldest_message_age_seconds",
            "Age of the oldest message for the destination; 0: there is none.",
            labels=labels,
        ),
        [((row.name,), row.name) for row in found.destinations],
        found.destination_ages_s,
    )
    yield _states(found.destinations, others)
    yield from _heartbeats(found.destinations)


def _heartbeats(shown: Sequence[Destination]) -> Iterator[Metric]:
    """Yield the heartbeats of the destinations that are shown, if they are configured."""
    labels, prefix = ("destination",), "qmd_destination_heartbeat"
    pulses = [(row.name, row.heartbeat) for row in shown if row.heartbeat is not None]
    yield _labelled(
        CounterMetricFamily(f"{prefix}s", "Heartbeats that were sent.", labels=labels),
        ((name, pulse[0]) for name, pulse in pulses),
    )
    yield _labelled(
        CounterMetricFamily(f"{prefix}s_lost", "Those without an answer.", labels=labels),
        ((name, pulse[1]) for name, pulse in pulses),
    )
    yield _labelled(
        GaugeMetricFamily(f"{prefix}s_missed", "Those lost since the last answer.", labels=labels),
        ((name, pulse[2]) for name, pulse in pulses),
    )
    yield _labelled(
        GaugeMetricFamily(
            f"{prefix}_seconds",
            "Time from the last answered heartbeat to its answer, after a commit there.",
            labels=labels,
        ),
        ((name, pulse[3]) for name, pulse in pulses if pulse[3] is not None),
    )


def _states(shown: Sequence[Destination], others: Sequence[Destination]) -> Metric:
    family = GaugeMetricFamily(
        "qmd_destination_state",
        "1: the destination is in this state; of the others, their number.",
        labels=("destination", "state"),
    )
    for row in shown:
        for state in STATES:
            family.add_metric((row.name, state), float(row.state == state))
    if others:
        for state in STATES:
            family.add_metric((OTHER, state), sum(row.state == state for row in others))
    return family


def _ages(
    family: GaugeMetricFamily,
    rows: Iterable[tuple[Sequence[str], str]],
    ages_s: dict[str | None, float],
) -> Metric:
    for labels, name in rows:
        family.add_metric(labels, ages_s[name])
    if None in ages_s:
        family.add_metric((OTHER,) * len(family._labelnames), ages_s[None])
    return family


def _labelled(
    family: GaugeMetricFamily | CounterMetricFamily,
    values: Iterable[tuple[str | Sequence[str], float]],
) -> Metric:
    for labels, value in values:
        family.add_metric((labels,) if isinstance(labels, str) else labels, value)
    return family


def _histogram(name: str, meaning: str, measured: Facts) -> Metric:
    """Return a histogram; the example of a bucket names the message that was measured."""
    bounds = [floatToGoString(bound) for bound in measured["bounds"]] + ["+Inf"]
    buckets: list[Any] = []
    total = 0
    for bound, count, example in zip(bounds, measured["counts"], measured["examples"], strict=True):
        total += count
        if example is None or len("message_id" + example[1]) > EXEMPLAR_MAX:
            buckets.append((bound, total))
        else:
            value, message_id = example
            buckets.append((bound, total, Exemplar({"message_id": message_id}, value)))
    return HistogramMetricFamily(name, meaning, buckets=buckets, sum_value=measured["sum"])
