"""The client's side: an object with the service's own operations, whose calls are messages.

orders = proxy(Orders, qm, "orders@hostb")
async with qm.transaction():
    await orders.place(order)        # posted when the transaction commits, or never
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from qmd.client import QueueManager, no_transaction
from qmd.service.contract import FunctionService, Operation, Service, ServiceError

EXTENSION = b"qmd-call 1 "  # and the encoding: tells a call from other messages

Offered = TypeVar("Offered", bound=Service)


def proxy(service: type[Offered], qm: QueueManager, queue: str = "", **properties: Any) -> Offered:
    """Calls of `service`, posted to `queue` (left out: the service's own, on this computer).

    Each of its operations takes the same arguments, and returns the id of the message when the
    call is on disk here; within `async with qm.transaction()` when the transaction has taken it.
    `properties` are given to every message, as `time_to_be_received_s=60`.
    Of a function (see `service`) it is called itself.  Raises ServiceError where no queue is named.
    """
    queue = queue or service.queue
    if not queue:
        raise ServiceError(f"{service.__name__} names no queue: give one to its proxy")
    return cast(Offered, _Proxy(service, qm, queue, properties))


class _Proxy:
    def __init__(
        self, service: type[Service], qm: QueueManager, queue: str, properties: Any
    ) -> None:
        self._service = service
        self._qm = qm
        self._queue = queue
        self._properties: dict[str, Any] = properties

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Of a function, the function."""
        if not issubclass(self._service, FunctionService):
            raise TypeError(f"{self._service.__name__} is no function: call one of its operations")
        (name,) = self._service.operations
        return getattr(self, name)(*arguments, **named)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        operation = self._service.operations.get(name)
        if operation is None or operation.takes_everything:
            raise AttributeError(f"{self._service.__name__} has no operation {name}")
        return _Call(self, operation)

    async def _post(self, operation: Operation, body: bytes) -> str:
        service = self._service
        properties: dict[str, Any] = self._properties | {
            "label": operation.name,
            "extension": EXTENSION + service.encoding.encode(),
        }
        if service.exactly_once:
            properties["delivery"] = "transactional"
            return await self._qm.send(self._queue, body, **properties)
        # Outside of any transaction: it stays posted, whatever becomes of the caller's.
        properties["delivery"] = "recoverable" if service.durable else "express"
        with no_transaction():
            return await self._qm.send(self._queue, body, **properties)


class _Call:
    def __init__(self, proxy: _Proxy, operation: Operation) -> None:
        self._proxy = proxy
        self._operation = operation

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        encoding = self._proxy._service.encoding
        body = self._operation.encode(encoding, arguments, named)
        return self._proxy._post(self._operation, body)
