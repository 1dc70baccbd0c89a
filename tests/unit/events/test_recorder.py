"""The recorder's events of the open batch: shared, separate, in the order of a message's life."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from qmd.events import recorder as recorder_module
from qmd.events.header import EventHeader, Kind
from qmd.events.recorder import MOMENT_S, NO_LISTS, Recorder, add_correlation
from storage.engine.batch import Batch

OWN, OTHER = bytes(16), bytes([7]) * 16


class World:
    """The services of a recorder, with a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.is_due = False  # whether the batch has asked for its commit
        self.batch = Batch(self._due)
        services: Any = SimpleNamespace(
            id=OWN,
            settings=SimpleNamespace(events=SimpleNamespace(enabled=True, size_bytes=1 << 28)),
            storage=SimpleNamespace(batch=self.batch),
            timers=SimpleNamespace(at=lambda when, owner, act: None),
            loop=SimpleNamespace(time=lambda: self.now),
            environment=SimpleNamespace(time=lambda: 1000.0 + self.now),
        )
        self.services = services
        self.recorder = Recorder(services)

    def _due(self) -> bool:
        self.is_due = True
        return True

    @property
    def events(self) -> list[Any]:
        """The events of the open batch."""
        return self.batch._events

    def group(self, kind: Kind, source: bytes = OWN, *, lists: int = 0, **fields: Any) -> Any:
        return self.recorder.group(EventHeader(kind, **fields), source, lists=lists)


def packet(source: bytes, number: int, size: int = 100) -> bytes:
    head = bytes(16) + source + bytes(24) + number.to_bytes(4, "little")
    return head + bytes(size - len(head))


@pytest.fixture
def world() -> World:
    return World()


def test_messages_with_the_same_header_share_an_event(world: World) -> None:
    first = world.group(Kind.SENT, queue="q", delivery="express")

    assert world.group(Kind.SENT, queue="q", delivery="express") is first
    assert (first.kind, first.queue, first.delivery, first.at_ms) == ("sent", "q", "express", 10**6)
    assert world.events == [first]


@pytest.mark.parametrize(
    "other",
    [
        {"queue": "other"},
        {"queue": "q", "reason": "why"},
        {"queue": "q", "source": OTHER},
        {"queue": "q", "lists": NO_LISTS},
    ],
)
def test_another_header_source_or_set_of_lists_makes_another_event(
    world: World, other: dict[str, Any]
) -> None:
    first = world.group(Kind.SENT, queue="q")

    assert world.group(Kind.SENT, **other) is not first
    assert world.group(Kind.SENT, queue="q") is first


def test_an_event_covers_one_moment(world: World) -> None:
    first = world.group(Kind.SENT)
    world.now += MOMENT_S
    assert world.group(Kind.SENT) is first
    world.now += MOMENT_S / 2

    assert world.group(Kind.SENT) is not first


def test_a_new_batch_gets_new_events(world: World) -> None:
    first = world.group(Kind.SENT)
    world.services.storage.batch = Batch(world._due)

    assert world.group(Kind.SENT) is not first


def test_an_event_of_an_earlier_kind_separates_later_kinds(world: World) -> None:
    received = world.group(Kind.RECEIVED)
    sent = world.group(Kind.SENT)

    again = world.group(Kind.RECEIVED)
    assert again is not received
    assert world.events == [received, sent, again]


def test_renewed_kinds_get_new_events(world: World) -> None:
    sent, relayed = world.group(Kind.SENT), world.group(Kind.RELAYED)
    world.recorder.renew(Kind.RELAYED)

    assert world.group(Kind.SENT) is sent
    assert world.group(Kind.RELAYED) is not relayed


def test_packets_are_recorded_by_source_with_sizes_and_places(world: World) -> None:
    header = EventHeader(Kind.RECEIVED, queue="q")
    packets = [packet(OWN, 1), packet(OWN, 2, 120), packet(OTHER, 3)]
    world.recorder.record(header, packets, places=(11, 12, 13), lazily=True)

    first, second = world.events
    assert (first.source, first.numbers, first.sizes) == (OWN, [1, 2], [100, 120])
    assert (first.places, second.numbers, second.places) == ([11, 12], [3], [13])
    assert not world.is_due
    world.recorder.record(header, packets)
    assert world.is_due


def test_a_unit_gets_new_events_with_the_fields_of_the_header(world: World) -> None:
    header = EventHeader(Kind.MOVED, queue="q", to_queue="r", transaction="t")
    packets = [packet(OWN, 1), packet(OTHER, 2), packet(OWN, 3)]
    first, second = world.recorder.for_unit().of_packets(header, packets, places=(5, 6, 7))

    assert (first.kind, first.queue, first.to_queue, first.transaction) == ("moved", "q", "r", "t")
    assert (first.numbers, first.places, second.places) == ([1, 3], [5, 7], [6])
    assert world.events == []


def test_disabled_events_are_not_made(world: World) -> None:
    world.recorder.enabled = False
    header = EventHeader(Kind.SENT)
    world.recorder.record(header, [packet(OWN, 1)])

    recorded = world.recorder.for_unit()
    assert recorded.of_packets(header, [packet(OWN, 1)]) == []
    assert recorded.of_messages(header, [(OWN, 1, -1, 100)]) == []
    assert (world.events, world.is_due) == ([], False)


def test_a_flood_is_counted_and_reported_with_the_next_event(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "FLOOD_MESSAGES", 3)
    header = EventHeader(Kind.DUPLICATE, peer="p")
    for number in range(5):
        world.recorder.provoked(header, OWN, number)
    world.recorder.provoked(EventHeader(Kind.OUT_OF_ORDER), OWN, 9)
    world.now += 1.5
    world.recorder.provoked(header, OWN, 6)

    duplicates = [event for event in world.events if event.kind == "duplicate"]
    assert [event.numbers for event in duplicates] == [[0, 1, 2], [6]]
    assert duplicates[1].reason == "(2 more before this one are not listed)"
    assert any(event.kind == "out_of_order" for event in world.events)


def test_correlation_ids_are_filled_up_for_earlier_messages(world: World) -> None:
    event = world.group(Kind.SENT)
    event.numbers += [1, 2]
    add_correlation(event, b"c")

    assert event.correlations == [b"", b"c"]
