"""The client's side: an object with the operations of the service, which posts calls as messages.

orders = proxy(Orders, qm, "orders@hostb")
async with qm.transaction():
    await orders.place(order)        # posted when the transaction commits, or never
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from qmd.client import QueueManager, no_transaction
from qmd.service.contract import FunctionService, Operation, Service, ServiceError

EXTENSION = b"qmd-call 1 "  # and the encoding: distinguishes a call from other messages

Offered = TypeVar("Offered", bound=Service)


def proxy(service: type[Offered], qm: QueueManager, queue: str = "", **properties: Any) -> Offered:
    """Return a proxy that posts calls of `service` to `queue`.

    The default for `queue` is the service's own, on this computer.  Each operation takes the same
    arguments, and returns the id of the message when the call is on disk here; within `async with
    qm.transaction()` when the transaction has accepted it.  `properties` are given to every
    message, such as `time_to_be_received_s=60`.  The proxy of a function (see `service`) is called
    itself.  Raises ServiceError when no queue is named.
    """
    queue = queue or service.queue
    if not queue:
        raise ServiceError(f"{service.__name__} names no queue: pass one to its proxy")
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
        """Call the function of a function service."""
        if not issubclass(self._service, FunctionService):
            raise TypeError(
                f"{self._service.__name__} is not a function: call one of its operations"
            )
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
        # Outside of any transaction: it stays posted even if the caller's transaction aborts.
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
