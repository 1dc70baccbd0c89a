"""The same client without `await`, for programs that have no event loop.

    with blocking.connect("/run/qmd/qmd.sock") as qm:
        qm.send("orders@hostb", b"10 screws")
        for message in qm.receive_each("replies", timeout_s=5):
            ...

One wrapper does all of it, `facing.py`; there is no second copy of anything.  For type checkers
`blocking.pyi` says what it makes of each signature: it is written by
`python -m tests.unit.client.blocking_types`, and a test sees that it was.
"""

from qmd.client import directory, pipeline, queue, queue_manager, receiver, sender, transaction
from qmd.client.facing import Blocking, LoopThread, connect, face_of, facing

QueueManager = face_of(queue_manager.QueueManager)
Transaction = face_of(transaction.Transaction)
Sender = face_of(sender.Sender)
Taken = face_of(receiver.Taken)
Queue = face_of(queue.Queue)
Cursor = face_of(queue.Cursor)
Directory = face_of(directory.Directory)
Pipeline = face_of(pipeline.Pipeline)

__all__ = [
    "Blocking",
    "Cursor",
    "Directory",
    "LoopThread",
    "Pipeline",
    "Queue",
    "QueueManager",
    "Sender",
    "Taken",
    "Transaction",
    "connect",
    "facing",
]
