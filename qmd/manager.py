"""The queue manager: queues, what is sent, what is received.  Core and storage meet here.

    application ──send──► rows ──(commit)──► answer; readers or links are woken
    peer ──session──► incoming.py ──(commit)──► acknowledgment; readers are woken
    application ──take──► a copy ──remove──► (commit) ──► answer; the message is gone

Nothing here waits for the disk on the hot path: rows go into the open batch,
and what follows from their being durable is a callback of its commit.
"""

from __future__ import annotations

import asyncio
import contextlib

from qmd.assembly.components import Assembly
from qmd.assembly.restore import restore
from qmd.config.settings import Settings
from qmd.message.shared_packet import whole
from qmd.queues.limits import Limits
from qmd.runtime.environment import Environment
from qmd.runtime.identity_key import SEED_BYTES
from qmd.runtime.services import Services, create_services
from storage import StorageOptions
from storage.errors import StorageError
from storage.vault import read_keys


class QueueManager:
    """One queue manager: `await QueueManager.open(...)`, then `start`, and `await stop()`."""

    def __init__(self, services: Services, assembly: Assembly) -> None:
        self.services = services
        self.assembly = assembly

    @classmethod
    async def open(
        cls,
        settings: Settings,
        environment: Environment,
        name: str,
        *,
        first_id: bytes | None = None,
        limits: Limits = Limits(),  # noqa: B008
    ) -> QueueManager:
        """Open the data folder and take up what it holds.  Raises storage.errors.CannotStart.

        In a new folder the queue manager gets the GUID `first_id`, or a random one.
        """
        storage = await environment.open_storage(
            settings.queue_manager.data,
            StorageOptions(
                commit_rows_max=settings.storage.commit_rows_max,
                page_bytes=settings.storage.page_bytes,
                wal_autocheckpoint_pages=settings.storage.checkpoint_pages,
                disk_reserve_bytes=settings.quotas.disk_reserve_bytes,
                disk_watermark_bytes=settings.quotas.disk_reserve_bytes,
                keys=read_keys(settings.storage.key_files, settings.queue_manager.data),
            ),
            now_ms=int(environment.time() * 1000),
            new_id=first_id or environment.urandom(16),
            new_seed=environment.urandom(SEED_BYTES),
        )
        try:
            services = create_services(settings, environment, storage, name)
            assembly = Assembly(services, limits)
            with environment.no_collection():
                await restore(assembly)
            await assembly.directory.start()
            assembly.deferred_acknowledgments.start()
            assembly.registration.start()
            assembly.relays.start()
            await assembly.source_acknowledgments.send_owed()
        except BaseException:
            await storage.close()
            raise
        return cls(services, assembly)

    def start(self) -> None:
        """Begin to deliver what the last run left."""
        self.assembly.outgoing.start()
        self.assembly.relay_store.start()

    async def stop(self) -> None:
        """End the sessions and let the disk finish; what was not acknowledged stays to be sent."""
        services, assembly = self.services, self.assembly
        services.lifecycle.stopping = True
        assembly.local_users.close()
        assembly.remote_lookup.stop()
        assembly.deferred_acknowledgments.stop()
        assembly.own_dead_letters.stop()
        assembly.reports.stop()
        assembly.registration.stop()
        assembly.next_hops.stop()
        assembly.relays.stop()
        assembly.relay_loops.stop()
        assembly.peers.stop()
        await assembly.large_ends.stop()
        await assembly.redelivery.stop()
        await assembly.directory.stop()
        await asyncio.sleep(0)  # what the sessions still say is written
        assembly.outgoing_release.release()
        services.clock.save()
        with contextlib.suppress(StorageError):
            # What is being removed has been received, and is not lost: that is known behind it.
            await services.storage.batch.barrier()
            # Nor is what ends otherwise, which takes a look at it and a commit more.
            while assembly.dead_letters.under_way:
                await services.storage.batch.barrier()
        assembly.recorder.stop(
            (
                (
                    queue.name,
                    [(each.lookup_id, whole(each.packet)) for each in queue.express.values()],
                )
                for queue in assembly.queues.by_key.values()
            ),
            (
                (queue.destination, [whole(packet) for packet, _ in queue.express.values()])
                for queue in assembly.outgoing.queues
            ),
        )
        services.timers.cancel_all()
        await services.storage.close()
