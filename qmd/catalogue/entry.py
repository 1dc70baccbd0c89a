"""An entry of the catalogue: an error, its cause, its remedy, and Microsoft's name for it."""

from typing import NamedTuple


class Entry(NamedTuple):
    """An error; its `number` is for readers, its `code` for programs; neither is ever reused.

    `family` is the code that selects the exception of the client and the exit code, if several
    causes share one.  `microsoft` is a name of [MS-MQMQ] 2.4 or, for a message class, 2.2.18.1.6,
    and `value` its HRESULT or its class.
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
