"""Jobs: actions on many messages, in pieces, with progress; they go on when the browser leaves.

Each piece is one commit of the queue manager, so a job that is stopped, or ends with the console,
leaves no message in between.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import structlog

from protocol.identifiers import parse_correlation
from qmd.client import ClientError, QueueManager
from qmd.console.roles import Identity, Role

log = structlog.get_logger()

JOBS_MAX = 200  # that are remembered
RUNNING_MAX = 20
UNDO_MESSAGES_MAX = 100_000  # of one job, of which the ids are kept


class Undoable(NamedTuple):
    """A piece of a job, as an undo needs it."""

    ids: list[bytes]  # of the messages as they are now
    queues: list[str]  # destinations of messages that were sent


class Progress:
    """The progress of one job, for the work and for pages."""

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0
        self.skipped = 0
        self.must_stop = False
        self.undoable: list[Undoable] | None = []  # by piece; None: lost
        self._kept = 0

    def add(self, done: Any) -> None:
        """Count the answer to one piece."""
        self.messages += int(done["messages"])
        self.bytes += int(done.get("bytes", 0))
        self.skipped += int(done.get("taken", 0))

    def sent(self, done: Any) -> None:
        """Keep the ids of new messages for an undo; a repeated answer does not have them."""
        if len(done["ids"]) == done["messages"]:
            self.moved([parse_correlation(each) for each in done["ids"]], done["destinations"])
        else:
            self.undoable = None

    def moved(self, ids: list[bytes], queues: Sequence[str] = ()) -> None:
        """Keep the ids of messages that were moved, or sent to queues, for an undo."""
        self._kept += len(ids)
        if self.undoable is not None and self._kept <= UNDO_MESSAGES_MAX:
            self.undoable.append(Undoable(ids, list(queues)))
        else:
            self.undoable = None


Work = Callable[[QueueManager, Progress], Awaitable[None]]
Undo = Callable[[list[Undoable]], Work]


class Job:
    """One job, running or ended."""

    def __init__(
        self, number: int, identity: Identity, host: str, title: str, command: str, total: int
    ) -> None:
        self.number = number
        self.identity = identity
        self.host = host
        self.title = title
        self.command = command
        self.total = total
        self.progress = Progress()
        self.state = "running"  # then done, stopped or failed
        self.problem = ""
        self.began_at = time.time()
        self.ended_at: float | None = None
        self.undo: Undo | None = None
        self.task: asyncio.Task[None] | None = None

    @property
    def percent(self) -> int:
        """How much is done, in percent."""
        if self.state == "done":
            return 100
        return min(99, 100 * self.progress.messages // self.total) if self.total else 0

    @property
    def left_s(self) -> float | None:
        """Seconds until the end, by the speed until now; None: unknown."""
        done, spent_s = self.progress.messages, time.time() - self.began_at
        if self.state != "running" or not done or done > self.total:
            return None
        return spent_s / done * (self.total - done)

    @property
    def can_be_undone(self) -> bool:
        """Whether it has ended, and its effect can be taken back."""
        return bool(self.state != "running" and self.undo and self.progress.undoable)

    def may_be_seen_by(self, identity: Identity) -> bool:
        """Return whether a user started it, or may see all."""
        same = (identity.name, identity.token) == (self.identity.name, self.identity.token)
        return same or identity.role is Role.ADMINISTRATOR


class TooManyJobs(Exception):
    """Too many jobs run already."""


class Jobs:
    """The jobs of this console; they end with it."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._jobs: OrderedDict[int, Job] = OrderedDict()

    def start(
        self,
        identity: Identity,
        host: str,
        title: str,
        command: str,
        total: int,
        qm: QueueManager,
        work: Work,
        undo: Undo | None,
    ) -> Job:
        """Start a job with a connection of its own.  Raises TooManyJobs."""
        if sum(each.state == "running" for each in self._jobs.values()) >= RUNNING_MAX:
            raise TooManyJobs
        job = Job(next(self._numbers), identity, host, title, command, total)
        job.undo = undo
        self._jobs[job.number] = job
        ended = [number for number, each in self._jobs.items() if each.state != "running"]
        for number in ended[: max(0, len(self._jobs) - JOBS_MAX)]:
            del self._jobs[number]
        job.task = asyncio.get_running_loop().create_task(self._run(job, qm, work))
        return job

    def find(self, number: int, identity: Identity) -> Job | None:
        """Return a job that a user may see."""
        job = self._jobs.get(number)
        return job if job is not None and job.may_be_seen_by(identity) else None

    def of(self, identity: Identity) -> list[Job]:
        """Return the jobs that a user may see, the newest first."""
        return [job for job in reversed(self._jobs.values()) if job.may_be_seen_by(identity)]

    async def close(self) -> None:
        """Stop all jobs, each after its piece."""
        running = [job for job in self._jobs.values() if job.task and not job.task.done()]
        for job in running:
            job.progress.must_stop = True
        if running:
            await asyncio.wait([job.task for job in running if job.task], timeout=5.0)

    async def _run(self, job: Job, qm: QueueManager, work: Work) -> None:
        try:
            async with qm:
                await work(qm, job.progress)
            job.state = "stopped" if job.progress.must_stop else "done"
        except ClientError as error:
            job.state, job.problem = "failed", str(error)
        except Exception:
            log.exception("console_failed", what=job.title)
            job.state, job.problem = "failed", "The console has a fault; its log says which."
        finally:
            job.ended_at = time.time()
