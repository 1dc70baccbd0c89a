"""The other end of the control socket for these tests: queues in memory, injected failures.

It speaks `qmd.control_protocol.messages` over a real socket.  `before` and `after` name verbs at
which the connection breaks once: before the request is done, or after it and before its answer.
After a verb of `dies_after` the socket is closed as well.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from qmd.control_protocol import messages as frames
from qmd.control_protocol import operations as operator_frames


class HungUp(Exception):
    """Raised to break the connection on purpose."""


class Peer:
    """A minimal queue manager in memory: `async with Peer(path) as peer`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.packet: Callable[[frames.NewMessage], bytes] = lambda message: message.body
        self.id = "00000000-0000-0000-0000-0000000000aa"
        self.version = frames.VERSION
        self.message_bytes_max = 4 * 1024 * 1024
        self.queues: defaultdict[str, list[frames.StoredMessage]] = defaultdict(list)
        self.outcomes: dict[bytes, Any] = {}
        self.refusals: dict[type[frames.Request], frames.Refused] = {}
        self.refuse_at: int | None = None  # sent messages in total, above which all are refused
        self.before: list[type[frames.Request]] = []
        self.after: list[type[frames.Request]] = []
        self.dies_after: list[type[frames.Request]] = []
        self.requests: list[frames.Request] = []
        self._news = asyncio.Event()
        self.finish: Callable[[], object] = lambda: None
        self.connections: list[Connection] = []
        self.deserted = asyncio.Event()
        self.last_lookup_id = 0
        self.piece_max = 1000  # most messages that one request moves

    async def __aenter__(self) -> Peer:
        await self.listen()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stop()

    async def listen(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, self.path)

    async def stop(self) -> None:
        """End all connections and close the socket, like a daemon that is killed."""
        self.close()
        for connection in list(self.connections):
            connection.writer.transport.abort()
        if self.connections:
            self.deserted.clear()
            await self.deserted.wait()

    def close(self) -> None:
        self._server.close()
        self.path.unlink(missing_ok=True)

    def put(self, queue: str, *bodies: bytes) -> None:
        """Add messages to a queue, and deliver them to waiting readers."""
        for body in bodies:
            self.last_lookup_id += 1
            self.queues[queue].append(frames.StoredMessage(self.last_lookup_id, 0, body))
        self.serve_waiting()

    def serve_waiting(self) -> None:
        for connection in self.connections:
            connection.serve_waiting()

    async def seen(self, verb: type[frames.Request], count: int = 1) -> None:
        """Wait until so many requests of this kind were received and done."""
        while len(self.requests_of(verb)) < count:
            self._news.clear()
            await self._news.wait()

    def noticed(self) -> None:
        self._news.set()

    def requests_of(self, verb: type[frames.Request]) -> list[Any]:
        return [request for request in self.requests if isinstance(request, verb)]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(self, writer)
        self.connections.append(connection)
        buffer = frames.FrameBuffer()
        try:
            while data := await reader.read(1 << 20):
                for inside in buffer.feed(data):
                    connection.answer(frames.decode_request(inside))
        except (HungUp, ConnectionError):
            pass
        finally:
            self.connections.remove(connection)
            connection.give_all_back()
            writer.transport.abort()
            if not self.connections:
                self.deserted.set()


class Connection:
    """The connection of one client, with the messages that it has taken."""

    def __init__(self, peer: Peer, writer: asyncio.StreamWriter) -> None:
        self.peer = peer
        self.writer = writer
        self.taken: dict[int, tuple[str, frames.StoredMessage]] = {}
        self.waiting: list[frames.Take] = []

    def answer(self, request: frames.Request) -> None:
        self.peer.requests.append(request)
        try:
            self.answer_or_break(request)
        finally:
            self.peer.noticed()

    def answer_or_break(self, request: frames.Request) -> None:
        peer = self.peer
        verb = type(request)
        if verb in peer.before:
            peer.before.remove(verb)
            raise HungUp
        reply: frames.Reply | None
        sends = sum(len(one.messages) for one in peer.requests_of(frames.Send))
        if peer.refuse_at is not None and sends > peer.refuse_at:
            reply = frames.Refused(request.number, "over_quota", "The queue is full.", "make room")
        elif verb in peer.refusals:
            refusal = peer.refusals.pop(verb)
            reply = frames.Refused(request.number, refusal.code, refusal.text, refusal.remedy)
        else:
            result = self.do(request)
            reply = None if result is WAITS else frames.Done(request.number, result)
        if verb in peer.dies_after:
            peer.close()
            raise HungUp
        if verb in peer.after:
            peer.after.remove(verb)
            raise HungUp
        if reply is not None:
            self.write(reply)

    def write(self, reply: frames.Reply) -> None:
        self.writer.write(frames.frame(reply))

    def do(self, request: frames.Request) -> Any:
        peer = self.peer
        match request:
            case frames.Hello():
                return {
                    "version": peer.version,
                    "queue_manager": peer.id,
                    "name": "hosta",
                    "message_bytes_max": peer.message_bytes_max,
                }
            case frames.Send():
                return self.send(request)
            case frames.Take():
                return self.take_or_wait(request)
            case frames.Remove(lookup_ids=lookup_ids, token=token):
                for lookup_id in lookup_ids:
                    del self.taken[lookup_id]
                peer.outcomes[token] = len(lookup_ids)
                return len(lookup_ids)
            case frames.GiveBack(lookup_ids=lookup_ids):
                return self.give_back(lookup_ids)
            case frames.Peek(queue=queue, start=start, limit=limit):
                return [one for one in peer.queues[queue] if one.lookup_id >= start][:limit]
            case frames.Move():
                return self.move(request)
            case frames.Outcome(token=token):
                return peer.outcomes.get(token)
            case operator_frames.PurgeQueue(name=name, dry_run=dry_run):
                gone = peer.queues[name] if dry_run else peer.queues.pop(name, [])
                return {"messages": len(gone), "bytes": 0, "taken": 0, "next": None, "until": 0}
            case operator_frames.DeleteQueue(name=name, dry_run=True):
                return {"messages": len(peer.queues[name]), "bytes": 0, "taken": 0}
            case operator_frames.ShowQueue(name=name) | operator_frames.SetQueue(name=name):
                return {"name": name, "messages": len(peer.queues[name]), "transactional": False}
            case operator_frames.ListQueues():
                return [
                    {"name": name, "messages": len(queue), "transactional": False}
                    for name, queue in peer.queues.items()
                ]
        if isinstance(request, operator_frames.Why):
            event = {"at_ms": 1000, "time": "1970-01-01T00:00:01.000Z", "host": "a", "kind": "sent"}
            return {
                **{"state": "queued", "sentences": ["It is here."], "remedies": []},
                **{"events": [event], "peers": []},
            }
        if isinstance(request, operator_frames.Events):
            return {"events": [], "cursor": "1.0", "end": True, "missing_blocks": 0}
        raise AssertionError(f"these tests do not use {request}")

    def send(self, send: frames.Send) -> list[str]:
        peer, ids = self.peer, []
        for message in send.messages:
            peer.put(message.destination, peer.packet(message))
            ids.append(f"{peer.id}\\{peer.last_lookup_id}")
        peer.outcomes[send.token] = ids
        return ids

    def take_or_wait(self, take: frames.Take) -> Any:
        found = self.take(take.queue, take.limit)
        if not found and take.wait_s != frames.NO_WAIT:
            self.waiting.append(take)
            if take.wait_s > 0:
                asyncio.get_running_loop().call_later(take.wait_s, self.time_out, take)
            return WAITS
        return found

    def move(self, move: frames.Move) -> Any:
        peer, choice, piece = self.peer, move.choice, move.piece
        source = peer.queues[move.queue]
        selected = [
            one
            for one in source
            if one.lookup_id >= piece.start
            and (not choice.lookup_ids or one.lookup_id in choice.lookup_ids)
        ]
        rest = selected[min(piece.limit, peer.piece_max) :]
        moved = [one for one in selected if one not in rest]
        if not move.dry_run:
            peer.queues[move.queue] = [one for one in source if one not in moved]
            peer.queues[move.target] += moved
        peer.outcomes[move.token] = {
            "messages": len(moved),
            "bytes": sum(len(one.packet) for one in moved),
            "taken": 0,
            "next": rest[0].lookup_id if rest else None,
            "until": 1000,
        }
        return peer.outcomes[move.token]

    def take(self, queue: str, limit: int) -> list[frames.StoredMessage]:
        messages = self.peer.queues[queue]
        found, messages[:limit] = messages[:limit], []
        self.taken |= {message.lookup_id: (queue, message) for message in found}
        return found

    def give_back(self, lookup_ids: list[int]) -> int:
        for lookup_id in lookup_ids:
            queue, message = self.taken.pop(lookup_id)
            self.peer.queues[queue].append(message)
            self.peer.queues[queue].sort(key=lambda one: one.lookup_id)
        self.peer.serve_waiting()
        return len(lookup_ids)

    def give_all_back(self) -> None:
        self.waiting.clear()
        self.give_back(list(self.taken))

    def time_out(self, take: frames.Take) -> None:
        if take in self.waiting:
            self.waiting.remove(take)
            self.write(frames.Done(take.number, []))

    def serve_waiting(self) -> None:
        for take in list(self.waiting):
            if found := self.take(take.queue, take.limit):
                self.waiting.remove(take)
                self.write(frames.Done(take.number, found))


WAITS = object()


@contextlib.contextmanager
def peer_in_thread(path: Path) -> Iterator[Peer]:
    """Run a peer in a thread with its own event loop, as a daemon has its own process."""
    started: concurrent.futures.Future[Peer] = concurrent.futures.Future()

    async def serve() -> None:
        done = asyncio.Event()
        async with Peer(path) as peer:
            loop = asyncio.get_running_loop()
            peer.finish = lambda: loop.call_soon_threadsafe(done.set)
            started.set_result(peer)
            await done.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    peer = started.result()
    try:
        yield peer
    finally:
        peer.finish()
        thread.join()
