"""One error: what it says, why it happens, what to do, and what Microsoft calls it."""

from typing import NamedTuple


class Entry(NamedTuple):
    """`number` is for people and for good, `code` is for programs; both are never used again.

    `family` is the code that the client's exception and the exit code go by, where several causes
    share one.  `microsoft` is a name of [MS-MQMQ] 2.4 or, for a message class, 2.2.18.1.6, and
    `value` its HRESULT or its class.
    """

    number: int
    code: str
    what: str
    cause: str
    remedy: str
    family: str = ""
    microsoft: str = ""
    value: int | None = None

    @property
    def id(self) -> str:
        return f"QM-{self.number:04}"
