"""Administration of a queue manager: queues, outgoing queues, sessions, status, history.

A queue is named in any spelling.  A verb that changes something returns after the change is on
disk.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from typing import Any

from qmd.client.ambient import refuse_inside
from qmd.client.caller import Caller
from qmd.client.pieces import Moved, OnPiece, in_pieces
from qmd.control_protocol import messages as frames
from qmd.control_protocol import operations as operator_frames
from qmd.control_protocol.audit import AuditEntries, LogLevels, SetLogLevel
from qmd.control_protocol.delayed import CancelDelayed, ListDelayed
from qmd.control_protocol.identities import ForgetPeer, ListPeers, PinPeer
from qmd.control_protocol.messages import EVERY_MESSAGE, Choice, RetryProperties
from qmd.control_protocol.routing import ForgetIdentity, RedirectOutgoing, RestartOutgoing
from qmd.control_protocol.settings import ReloadSettings, ShowSettings
from qmd.control_protocol.tls import ForgetTlsPeer, ListTlsPeers

Facts = dict[str, Any]  # the description of a queue, a session, or the queue manager


class Administration:
    """The verbs of operators.  Outside transactions they take effect at once."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    # -- messages ------------------------------------------------------------------------------

    async def move(
        self,
        source: str,
        target: str,
        choice: Choice = EVERY_MESSAGE,
        *,
        limit: int | None = None,
        dry_run: bool = False,
        on_piece: OnPiece | None = None,
    ) -> Moved:
        """Move messages from one queue of this computer to another; return how many.

        Moves all messages, or those that match `choice` (see `chosen`), and of those the first
        `limit`.  The first move to a subqueue such as `orders;retry` creates it.  Every message is
        in one of the two queues at any time; one step moves up to 1024 messages or 16 MB.
        `dry_run`: only return what would be moved.  `on_piece`: called after each step.
        """
        if not dry_run:
            refuse_inside(self._caller, "move", "receive them, and use `move` of the transaction")
        return await in_pieces(
            limit,
            lambda piece, token: self._caller.change_once(
                frames.Move, source, target, choice, piece, dry_run, token=token
            ),
            on_piece,
        )

    async def resend(
        self,
        queue: str,
        choice: Choice = EVERY_MESSAGE,
        *,
        to: str = "",
        label: str | None = None,
        body: bytes | None = None,
        keep: bool = False,
        limit: int | None = None,
        dry_run: bool = False,
        on_piece: OnPiece | None = None,
    ) -> Moved:
        """Send messages of a queue again as new ones, and remove the old ones in the same commit.

        They go to their original destinations, or to the queue `to`, with another `label` or `body`
        if one is given.  `keep`: keep the old ones.  Messages are chosen as by `move`.
        """
        if not dry_run:
            refuse_inside(self._caller, "resend", "receive them and send them")
        return await in_pieces(
            limit,
            lambda piece, token: self._caller.change_once(
                frames.Resend, queue, choice, piece, to, label, body, keep, dry_run, token=token
            ),
            on_piece,
        )

    async def import_messages(
        self,
        queue: str,
        messages: Sequence[frames.ImportedMessage],
        *,
        dry_run: bool = False,
        token: bytes = b"",
    ) -> int:
        """Put exported messages (see `qmd.client.archive`) into a queue, all of them or none.

        They keep their ids and all other properties.  Returns the number of messages.
        """
        if not dry_run:
            refuse_inside(self._caller, "import_messages")
        done = await self._caller.change_once(
            frames.Import, queue, list(messages), dry_run, token=token or os.urandom(16)
        )
        return int(done["messages"])

    async def dead_letters(self, queue: str) -> list[Facts]:
        """Return the messages in a dead-letter queue, grouped by class, destination and reason."""
        return await self._list(operator_frames.DeadLetters, queue)

    # -- queues ------------------------------------------------------------------------------

    async def create_queue(
        self,
        name: str,
        *,
        transactional: bool = False,
        label: str = "",
        journal: bool = False,
        quota_bytes: int | None = None,
        journal_quota_bytes: int | None = None,
        public: bool = False,
        authenticate: bool = False,
        privacy: str = "optional",
        retry: RetryProperties | None = None,
        groups: bool = False,
    ) -> Facts:
        r"""Create a private queue (`private$\orders` or `orders`).

        `transactional` cannot be changed later.  A quota of None is the default of the daemon's
        configuration; `UNLIMITED` means no quota.
        `public`: create a public queue instead (`.\orders` or `orders`), registered in the
        directory.
        `authenticate`: refuse unsigned messages of other hosts.  `privacy`: "body" refuses plain
        ones, "none" encrypted ones.
        `retry`: what happens to messages that an application fails to process; by default they
        return to their place at once.
        `groups`: give the messages of a group to one receiver at a time.
        """
        return await self._change(
            operator_frames.CreateQueue,
            name,
            transactional,
            label,
            journal,
            quota_bytes,
            journal_quota_bytes,
            public,
            authenticate,
            privacy,
            retry,
            groups,
        )

    async def set_queue(
        self,
        name: str,
        *,
        quota_bytes: int | None = None,
        journal_quota_bytes: int | None = None,
        journal: bool | None = None,
        label: str | None = None,
        authenticate: bool | None = None,
        privacy: str | None = None,
        retry: RetryProperties | None = None,
        groups: bool | None = None,
    ) -> Facts:
        """Change the properties of a queue; None leaves a property unchanged.

        A quota of `UNLIMITED` means no quota.  Messages that exceed a smaller quota stay.  The
        fields of `retry` that are None stay too; `RetryProperties(off=True)` removes the policy.
        """
        return await self._change(
            operator_frames.SetQueue,
            *(name, quota_bytes, journal_quota_bytes, journal, label, authenticate, privacy, retry),
            groups,
        )

    async def delete_queue(self, name: str, *, dry_run: bool = False) -> int:
        """Delete a queue, its subqueues and its journal; return how many messages they had.

        Senders that requested negative acknowledgments get them.  `dry_run`: only return how many
        messages would be deleted.
        """
        if not dry_run:
            refuse_inside(self._caller, "delete_queue")
        return int((await self._change(operator_frames.DeleteQueue, name, dry_run))["messages"])

    async def purge_queue(
        self,
        name: str,
        choice: Choice = EVERY_MESSAGE,
        *,
        dry_run: bool = False,
        on_piece: OnPiece | None = None,
    ) -> int:
        """Remove all messages of a queue, or those that match `choice`; return how many.

        Senders that requested negative acknowledgments get them.  Messages that an application has
        taken stay.  `dry_run`: only return how many messages would be removed.  One step removes up
        to 1024 messages; `on_piece` is called after each.
        """
        if not dry_run:
            refuse_inside(self._caller, "purge_queue", "receive them")
        purged = await in_pieces(
            None,
            lambda piece, _: self._change(operator_frames.PurgeQueue, name, choice, dry_run, piece),
            on_piece,
        )
        return purged.messages

    async def list_queues(self, *, system: bool = False) -> list[Facts]:
        return await self._list(operator_frames.ListQueues, system)

    async def show_queue(self, name: str) -> Facts:
        return await self._show(operator_frames.ShowQueue, name)

    # -- delayed messages --------------------------------------------------------------------

    async def list_delayed(
        self, queue: str = "", *, start: int = 0, limit: int = 100, bodies: bool = False
    ) -> Facts:
        """Return a page of delayed messages: `messages`, and `next`, the `start` of the next page.

        `queue` is any destination, here or elsewhere; "" means all.  `bodies`: with their bodies.
        """
        return await self._show(ListDelayed, queue, start, limit, bodies)

    async def list_delayed_each(self, queue: str = "") -> AsyncIterator[Facts]:
        """Yield all delayed messages, in the order of their ids."""
        start: int | None = 0
        while start is not None:
            page = await self.list_delayed(queue, start=start)
            for each in page["messages"]:
                yield each
            start = page["next"]

    async def cancel_delayed(self, *ids: str) -> list[str]:
        """Cancel delayed messages; return the ids of those that were delayed until now.

        A cancelled message is never sent.  Any id of a message to several queues cancels all of
        its copies.
        """
        refuse_inside(self._caller, "cancel_delayed")
        return list(await self._caller.change(CancelDelayed, list(ids), safe_to_retry=True))

    # -- outgoing queues ---------------------------------------------------------------------

    async def list_outgoing(self) -> list[Facts]:
        return await self._list(operator_frames.ListOutgoing)

    async def show_outgoing(self, destination: str) -> Facts:
        return await self._show(operator_frames.ShowOutgoing, destination)

    async def peek_outgoing(
        self, destination: str, start: int = 0, limit: int = 1000, *, text: str = ""
    ) -> Facts:
        """Return messages that are not acknowledged yet as `messages`, and `next`: where to go on.

        `text`: only those with it in label or id.  Some pages are empty before the last one.
        """
        verb = operator_frames.PeekOutgoing
        return await self._show(verb, destination, start, limit, text)

    async def list_awaiting(
        self, destination: str, start: int = 0, limit: int = 1000
    ) -> list[Facts]:
        """Return messages that arrived there and are kept here until a receiver has received them.

        In the order of sending, from the message number `start` on.
        """
        return await self._list(operator_frames.ListAwaiting, destination, start, limit)

    async def give_up_awaiting(self, destination: str) -> int:
        """Make dead letters of messages that arrived there and were not confirmed as received.

        Returns how many those are.
        """
        refuse_inside(self._caller, "give_up_awaiting")
        return int((await self._change(operator_frames.GiveUpAwaiting, destination))["messages"])

    async def pause_outgoing(self, destination: str) -> None:
        await self._change(operator_frames.PauseOutgoing, destination)

    async def resume_outgoing(self, destination: str) -> None:
        await self._change(operator_frames.ResumeOutgoing, destination)

    async def kick_outgoing(self, destination: str) -> None:
        """Connect now, and send everything unacknowledged again."""
        await self._change(operator_frames.KickOutgoing, destination)

    async def redirect_outgoing(
        self, destination: str, address: str, *, to_another: bool = False
    ) -> list[Facts]:
        """Redirect messages to another address.

        `destination` is a queue, or an address for all of its queues.  `address` is host or
        host:port; "" restores the address of the name.  `to_another`: redirect even to a queue
        manager other than the one that may already have some of the messages.
        """
        found: list[Facts] = await self._caller.change(
            RedirectOutgoing, destination, address, to_another, safe_to_retry=True
        )
        return found

    async def forget_identity(self, queue_manager: str) -> bool:
        """Forget the computer recorded for a GUID, after a conflict of two computers was resolved.

        Returns whether there was such a record.
        """
        answer = await self._caller.change(ForgetIdentity, queue_manager, safe_to_retry=True)
        return bool(answer["forgotten"])

    async def list_peers(self, queue_manager: str = "") -> list[Facts]:
        """Return the known facts about all other queue managers, or about one GUID."""
        return await self._list(ListPeers, queue_manager)

    async def pin_peer(self, queue_manager: str, fact: str, *, join: bool = False) -> Facts:
        """Bind a GUID to a fact, an address or key:FINGERPRINT; return the fact.

        `join`: it is the same machine as before, with a new address or a new key.
        """
        done: Facts = await self._caller.change(
            PinPeer, queue_manager, fact, join, safe_to_retry=True
        )
        return done

    async def forget_peer(self, queue_manager: str, fact: str = "") -> int:
        """Forget a fact about a queue manager, or all facts; return how many were known."""
        done = await self._caller.change(ForgetPeer, queue_manager, fact, safe_to_retry=True)
        return int(done["forgotten"])

    async def settings(self, *, reload: bool = False) -> Facts:
        """Return the settings in use as text; with `reload`, the result of reading them again."""
        return await self._show(ReloadSettings if reload else ShowSettings)

    async def list_tls_peers(self) -> list[Facts]:
        """List the queue managers and the addresses that were met over TLS."""
        return await self._list(ListTlsPeers)

    async def forget_tls_peer(self, peer: str) -> bool:
        """Forget that a GUID or an address (`host:port`) was met over TLS.

        Returns whether it was known.
        """
        answer = await self._caller.change(ForgetTlsPeer, peer, safe_to_retry=True)
        return bool(answer["forgotten"])

    async def restart_outgoing(self, destination: str, *, send_again: bool = False) -> Facts:
        """Restart the transactional sequence to a destination.

        For a queue manager that was restored from a backup, or after its peer rejects its messages.
        Messages that may have been delivered become dead letters with that reason; with
        `send_again` they are sent again, and may arrive twice.  Messages that were never sent
        follow, in order.
        """
        done: Facts = await self._caller.change(
            RestartOutgoing, destination, send_again, safe_to_retry=False
        )
        return done

    async def purge_outgoing(self, destination: str) -> int:
        """Remove all messages that wait for a destination or its acknowledgment; return how many.

        They become dead letters; messages that were transmitted already may have arrived
        nevertheless.
        """
        refuse_inside(self._caller, "purge_outgoing")
        return int((await self._change(operator_frames.PurgeOutgoing, destination))["messages"])

    async def list_sequences(self) -> list[Facts]:
        return await self._list(operator_frames.ListSequences)

    async def list_sessions(self) -> list[Facts]:
        return await self._list(operator_frames.ListSessions)

    async def status(self) -> Facts:
        return await self._show(operator_frames.Status)

    # -- history ------------------------------------------------------------------------------

    async def why(self, message: str, *, queue: str = "", ask: bool = True) -> Facts:
        """Return where a message is, its history, what it waits for, and what to do.

        `message` is its id, or its lookup id in `queue` (or in any queue).  `state` is one word,
        `sentences` and `remedies` are for readers, `places` and `events` for programs.  With `ask`
        the queue manager at the other end is asked as well (`peers`), which may take 2 s.  Raises
        NoSuchMessage for a lookup id of which nothing is known.
        """
        return await self._show(operator_frames.Why, message, queue, ask)

    async def trace(self, message: str, *, queue: str = "", ask: bool = True) -> list[Facts]:
        """Return the events of a message here and at the other end, in order of time."""
        answer = await self.why(message, queue=queue, ask=ask)
        events = [
            *answer["events"],
            *(event for peer in answer["peers"] for event in peer["events"]),
        ]
        return sorted(events, key=lambda event: int(event["at_ms"]))

    async def events(
        self,
        cursor: str = "",
        *,
        limit: int = 1000,
        last: int = 0,
        queue: str = "",
        kinds: Sequence[str] = (),
        since: float | None = None,
        until: float | None = None,
        timeout_s: float | None = 0.0,
    ) -> Facts:
        """Return a page of the history of all messages: {events, cursor, end, missing_blocks}.

        It begins at `cursor` (of an earlier page or event), at the time `since` (seconds since
        1970), with the newest `last` events, or with the oldest event that is kept.  Waits only for
        the first event, up to `timeout_s` (None: no time limit).  docs/events.md describes the
        fields of an event.
        """
        return await self._show(
            operator_frames.Events,
            cursor,
            limit,
            last,
            queue,
            list(kinds),
            0 if since is None else int(since * 1000),
            0 if until is None else int(until * 1000),
            frames.FOREVER if timeout_s is None else timeout_s,
        )

    async def events_each(
        self,
        cursor: str = "",
        *,
        queue: str = "",
        kinds: Sequence[str] = (),
        since: float | None = None,
        until: float | None = None,
        follow: bool = False,
    ) -> AsyncIterator[Facts]:
        """Iterate over events to the end, or with `follow` without end."""
        while True:
            page = await self.events(
                cursor,
                queue=queue,
                kinds=kinds,
                since=since,
                until=until,
                timeout_s=None if follow else 0.0,
            )
            for event in page["events"]:
                yield event
            cursor = page["cursor"]
            if page["end"] and not follow:
                return

    # -- internal methods --------------------------------------------------------------------

    async def _list(self, verb: type[frames.Request], *arguments: object) -> list[Facts]:
        facts: list[Facts] = await self._caller.ask(verb, *arguments)
        return facts

    async def _show(self, verb: type[frames.Request], *arguments: object) -> Facts:
        facts: Facts = await self._caller.ask(verb, *arguments)
        return facts

    async def _change(self, verb: type[frames.Request], *arguments: object) -> Facts:
        """Make a change that can be repeated without harm."""
        facts: Facts = await self._caller.change(verb, *arguments, safe_to_retry=True)
        return facts

    # -- audit log and log ---------------------------------------------------------------------

    async def audit_entries(self, start: int = 0) -> Facts:
        """Return a page of the log of operators' requests, from entry `start` on.

        A negative `start` means the last entries.  The page has the `anchor`, number and digest of
        the entry before the first one that is kept, and `entries`: number, text and digest of each.
        """
        result: Facts = await self._caller.ask(AuditEntries, start)
        return result

    async def log_levels(self) -> Facts:
        """Return the levels of the daemon's log: `default`, and `names` with their own."""
        result: Facts = await self._caller.ask(LogLevels)
        return result

    async def set_log_level(self, level: str, name: str = "") -> Facts:
        """Set a level of the daemon's log, until the daemon ends; return all levels.

        `name` is a package or a module; empty: the default.  An empty `level` takes it back.
        """
        result: Facts = await self._caller.ask(SetLogLevel, name, level)
        return result
