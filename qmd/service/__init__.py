"""Queued services: calls that are messages, processed in transactions.

    class Orders(Service, queue="orders"):
        @operation
        async def place(self, order: Order) -> None:
            ...

A client posts calls with `proxy(Orders, qm)`; `qmd service run module:Orders` plays them back.
Three independent transactions connect the two: the client's, which posts its calls or cancels them;
the delivery from host to host; and the playback's, in which the call leaves the queue and the
messages that its operation sends commit together with its receive.  docs/services.md.
"""

from qmd.service.contract import (
    FunctionService,
    Operation,
    Service,
    ServiceError,
    operation,
    service,
)
from qmd.service.playback import Call, Player, current_call
from qmd.service.proxy import proxy

__all__ = [
    "Call",
    "FunctionService",
    "Operation",
    "Player",
    "Service",
    "ServiceError",
    "current_call",
    "operation",
    "proxy",
    "service",
]
