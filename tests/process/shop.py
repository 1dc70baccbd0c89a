"""Services for the tests, run with `qmd service run tests.process.shop:...`.

The arguments of an operation say what it does; its observations go to the queue `seen`.

"""

from __future__ import annotations

import asyncio
import logging

import structlog

from qmd.client import Message, no_transaction
from qmd.service import Service, current_call, operation, proxy, service


class Shop(Service, queue="shop", receive_retries=1, retry_cycles=1, retry_delay_s=0.5):
    @operation
    async def order(self, number: int, fails: int = 0, slow_s: float = 0.0) -> None:
        """Raise an error as often as the arguments say."""
        call = current_call()
        assert call.transaction is not None
        await call.transaction.send("seen", f"{number} for the {call.attempt}. time")
        await asyncio.sleep(slow_s)
        if call.attempt <= fails:
            raise ValueError(f"order {number} cannot be fulfilled")

    @operation
    async def relay(self, number: int, fails: int = 0) -> None:
        """Send and receive with the client itself; effects outside of the call remain."""
        call = current_call()
        assert await call.qm.receive("parts") is not None
        await call.qm.send("seen", f"relayed {number} for the {call.attempt}. time")
        with no_transaction():
            await call.qm.send("noted", f"{number}")
        if call.attempt <= fails:
            raise ValueError(f"part {number} cannot be relayed")

    @operation(playback="ignore")
    async def note(self, number: int, fails: bool = False) -> None:
        call = current_call()
        assert call.transaction is None
        await call.qm.send("seen", f"noted {number}", delivery="transactional")
        if fails:
            raise ValueError("it does not matter")

    @operation(playback="own")
    async def book(self, number: int, fails: bool = False) -> None:
        call = current_call()
        assert call.transaction is not None
        await call.transaction.send("seen", f"booked {number}")
        if fails:
            raise ValueError("not booked")

    @operation
    async def forward(self, number: int) -> None:
        """Call another service within the transaction of this one."""
        await proxy(Shop, current_call().qm).order(number)
        await asyncio.sleep(0)


class Rejecting(Shop, queue="shop", receive_retries=0, retry_cycles=0, poison="reject"):
    pass


class Dropping(Shop, queue="shop", receive_retries=0, retry_cycles=0, poison="drop"):
    pass


class Faulting(Shop, queue="shop", receive_retries=0, retry_cycles=0, poison="fault"):
    pass


class Loose(Service, queue="loose", exactly_once=False):
    @operation
    async def order(self, number: int, fails: bool = False) -> None:
        if fails:
            raise ValueError("and so it is lost")
        await current_call().qm.send("seen", f"{number}", delivery="transactional")


class Volatile(Loose, queue="loose", durable=False):
    pass


class Undertaker(Service, queue=r"DIRECT=OS:.\SYSTEM$;DEADXACT", poison="fault"):
    @operation(takes_everything=True)
    async def bury(self, message: Message) -> None:
        call = current_call()
        assert call.transaction is not None
        await call.transaction.send("seen", f"{message.label}: {message.reason}")


@service("shop")
async def greet(name: str) -> None:
    call = current_call()
    assert call.transaction is not None
    logging.getLogger("greeting").info("greeted")
    structlog.get_logger().info("was_polite", to=name)
    await call.transaction.send("seen", f"hello {name}")
