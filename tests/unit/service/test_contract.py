"""Declarations of services: contradictions are rejected when the service is loaded."""

# No `from __future__ import annotations`: these tests define classes inside functions.
from typing import Any

import msgspec
import pytest

from qmd.client import Message
from qmd.service import Service, ServiceError, operation, service
from qmd.service.contract import check_against_queue


class Order(msgspec.Struct):
    article: str
    count: int = 1


class Orders(Service, queue="orders"):
    @operation
    async def place(self, order: Order, urgent: bool = False) -> None:
        pass

    @operation(playback="ignore")
    async def report(self) -> None:
        pass

    async def helper(self) -> None:
        """A method that is no operation."""


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
def test_arguments_are_encoded_and_decoded_unchanged(encoding: Any) -> None:
    place = Orders.operations["place"]
    body = place.encode(encoding, (Order("screws", 10),), {"urgent": True})
    assert place.decode(encoding, body) == {"order": Order("screws", 10), "urgent": True}


def test_an_argument_with_a_default_may_be_omitted_by_both_ends() -> None:
    place = Orders.operations["place"]
    assert place.decode("json", b'{"order": {"article": "nuts"}}') == {
        "order": Order("nuts"),
        "urgent": False,
    }


@pytest.mark.parametrize("body", [b"", b"no", b"{}", b'{"order": 1}', b'{"order": {"article": 2}}'])
def test_a_message_that_is_not_a_call_is_rejected(body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        Orders.operations["place"].decode("json", body)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ((), {}),
        ((1, 2, 3), {}),
        ((), {"count": 1}),
        ((Order("x"),), {"order": Order("y")}),
        (("x",), {}),
        ((Order("x"), "urgent"), {}),
    ],
)
def test_a_call_with_wrong_arguments_is_refused_at_once(given: Any, named: Any) -> None:
    with pytest.raises(TypeError):
        Orders.operations["place"].encode("json", given, named)


def test_only_marked_methods_can_be_called() -> None:
    assert set(Orders.operations) == {"place", "report"}


def test_a_service_inherits_its_operations() -> None:
    class Late(Orders, queue="late", concurrency=4):
        pass

    assert set(Late.operations) == {"place", "report"}
    assert (Late.queue, Late.concurrency, Late.ordered) == ("late", 4, False)
    assert Orders.concurrency == 1


def wrong(complaint: str, **settings: Any) -> None:
    with pytest.raises(ServiceError, match=complaint):

        class _(Orders, **settings):
            pass


def test_settings_that_contradict_each_other_are_refused() -> None:
    wrong("durable=False needs exactly_once=False", durable=False)
    wrong("ordered=True needs concurrency=1", concurrency=2, ordered=True)
    wrong("at least 1", concurrency=0)
    wrong("cannot be negative", receive_retries=-1)
    wrong("not one of", poison="explode")
    wrong("not one of", encoding="xml")
    wrong("there is no setting 'retries'", retries=3)
    wrong("there is no setting 'operations'", operations={})


def test_operations_that_cannot_be_queued_are_refused() -> None:
    with pytest.raises(ServiceError, match="a queued call is one-way"):

        class Answers(Service):
            @operation
            async def ask(self) -> int:
                return 1

    with pytest.raises(ServiceError, match="has no type"):

        class Untyped(Service):
            @operation
            async def place(self, order) -> None:  # type: ignore[no-untyped-def]
                pass

    with pytest.raises(ServiceError, match="async def"):

        class Plain(Service):
            @operation
            def place(self) -> None:
                pass

    with pytest.raises(ServiceError, match="cannot be sent"):

        class Stars(Service):
            @operation
            async def place(self, *orders: int) -> None:
                pass

    with pytest.raises(ServiceError, match="cannot be sent in a message"):

        class Ambiguous(Service):
            @operation
            async def place(self, order: list[int] | tuple[int, ...]) -> None:
                pass

    with pytest.raises(ServiceError, match="only argument must be a `Message`"):

        class Everything(Service):
            @operation(takes_everything=True)
            async def other(self, order: Order) -> None:
                pass

    with pytest.raises(ServiceError, match="only one operation"):

        class Twice(Service):
            @operation(takes_everything=True)
            async def one(self, message: Message) -> None:
                pass

            @operation(takes_everything=True)
            async def two(self, message: Message) -> None:
                pass

    with pytest.raises(ServiceError, match="playback is 'sometimes'"):
        operation(playback="sometimes")  # type: ignore[call-overload]


def test_a_service_and_its_queue_must_agree() -> None:
    class Loose(Orders, exactly_once=False):
        pass

    class Volatile(Orders, exactly_once=False, durable=False):
        pass

    class Empty(Service, queue="orders"):
        pass

    transactional = {"name": "orders", "transactional": True}
    plain = {"name": "orders", "transactional": False}
    check_against_queue(Orders, transactional)
    check_against_queue(Loose, plain)
    check_against_queue(Volatile, plain)
    with pytest.raises(ServiceError, match="is not transactional"):
        check_against_queue(Orders, plain)
    with pytest.raises(ServiceError, match="is transactional"):
        check_against_queue(Loose, transactional)
    with pytest.raises(ServiceError, match="has no operations"):
        check_against_queue(Empty, transactional)


def test_a_function_is_a_service_of_one_operation() -> None:
    @service("orders", concurrency=4, playback="ignore")
    async def place(order: Order, urgent: bool = False) -> None:
        """Place an order."""

    assert issubclass(place, Service)
    assert (place.__name__, place.__doc__) == ("place", "Place an order.")
    assert (place.queue, place.concurrency, place.ordered) == ("orders", 4, False)
    (only,) = place.operations.values()
    assert (only.name, only.playback) == ("place", "ignore")
    body = only.encode("json", (Order("screws", 10),), {})
    assert only.decode("json", body) == {"order": Order("screws", 10), "urgent": False}

    with pytest.raises(ServiceError, match="async def"):

        @service("orders")
        def plain() -> None:
            pass

    with pytest.raises(ServiceError, match="has no type"):

        @service("orders")
        async def untyped(order) -> None:  # type: ignore[no-untyped-def]
            pass
