"""Dynamic queues: created for a link, and deleted with it, or by the next start of the door.

Their names are `amqp-reply-DOOR-RUN-RANDOM`.  DOOR is the same for all runs of a door: no other
process can have its port, so that queues of other runs have no clients any more.  Their label is
the user of the door that has created them, and has the right to delete them.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from qmd.client.connection import open_connection
from qmd.client.errors import ClientError
from qmd.control_protocol import access as access_frames
from qmd.control_protocol import messages as frames
from qmd.control_protocol import operations as operator_frames
from qmd.doors.control import UserConnection

if TYPE_CHECKING:
    from qmd.config.settings import AmqpSettings

log = structlog.get_logger()

PREFIX = "amqp-reply-"
RETRY_S = 1.0  # while the daemon does not answer


class DynamicQueues:
    """Names and deletion of the dynamic queues of one door."""

    def __init__(self, control: Path, settings: AmqpSettings) -> None:
        self._control = control
        own = f"{settings.address}:{settings.port}:{settings.tls_port}"
        self._own = f"{PREFIX}{hashlib.sha256(own.encode()).hexdigest()[:12]}-"
        self._run = f"{self._own}{os.urandom(4).hex()}-"
        self._has_port = settings.port != 0

    async def create(self, control: UserConnection, user: str) -> str:
        """Create a queue for a link of a user, and return its name.  Raises ClientError.

        By default everyone may send to it, as the programs that answer must.  So its name is
        hidden: else others would find it in a list of queues, and send false answers.
        """
        name = f"{self._run}{os.urandom(12).hex()}"
        await control.request(operator_frames.CreateQueue, name, False, user)
        changes = (
            ("revoke", "everyone", "get-properties,get-permissions"),
            ("grant", f"user:{os.getuid()}", "get-properties"),  # for `delete_left`
        )
        for change in changes:
            await control.request(access_frames.ChangeAccess, *change, name)
        return name

    async def delete(self, principals: Sequence[str], queues: Sequence[str]) -> None:
        """Delete queues of a client that has left."""
        control = UserConnection(self._control, principals, lambda error: None)
        try:
            await control.open()
            for queue in queues:
                await control.ask(operator_frames.DeleteQueue, queue)
        except ClientError as error:
            log.warning("amqp_queue_not_deleted", queues=list(queues), reason=str(error))
        finally:
            control.close()

    async def delete_left(self) -> None:
        """Delete the queues of earlier runs of this door, as soon as the daemon answers."""
        if not self._has_port:
            return  # each run has another one
        while True:
            try:
                left = await self._left()
                break
            except ClientError:
                await asyncio.sleep(RETRY_S)
        for queue, user in left:
            await self.delete([user], [queue])
        if left:
            log.info("amqp_queues_deleted", queues=len(left), reason="the door was killed")

    async def _left(self) -> list[tuple[str, str]]:
        """Return the queues of earlier runs, and their users.  Raises ClientError."""
        connection = await open_connection(self._control)
        try:
            await connection.ask(frames.Hello, frames.VERSION)
            found = await connection.ask(operator_frames.ListQueues)
        finally:
            await connection.close()
        names = [(each["name"].rpartition("\\")[2], each["label"]) for each in found]
        return [
            (name, user)
            for name, user in names
            if name.startswith(self._own) and not name.startswith(self._run)
        ]
