"""Queued services: calls that are messages, answered for by transactions.

    class Orders(Service, queue="orders"):
        @operation
        async def place(self, order: Order) -> None:
            ...

A client posts calls with `proxy(Orders, qm)`; `qmd service run module:Orders` plays them back.
Between the two lie three transactions, none of which knows the others: the client's, with which its
calls are posted or cancelled; the delivery from host to host; and the playback's, with which the
call leaves the queue and everything that its operation sends becomes so.  docs/services.md.
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
