"""Handlers of the audit log, and of the levels of the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import structlog

from qmd.control.handler import Handler, look
from qmd.control_protocol.audit import ENTRIES_MAX, AuditEntries, LogLevels, SetLogLevel
from qmd.errors import Refusal
from qmd.runtime.log_levels import LEVELS

if TYPE_CHECKING:
    from qmd.control.components import Components
    from qmd.control.server import ControlConnection

log = structlog.get_logger()


async def _entries(components: Components, request: AuditEntries) -> dict[str, Any]:
    anchor, rows = await components.audit_log.page(request.start, ENTRIES_MAX)
    return {"anchor": list(anchor), "entries": [list(row) for row in rows]}


def _levels(connection: ControlConnection, request: LogLevels | SetLogLevel) -> None:
    levels = connection.components.log_levels
    found = {"default": levels.default, "names": dict(levels.names)}
    connection.done(request.number, found)


def _set_level(connection: ControlConnection, request: SetLogLevel) -> None:
    levels = connection.components.log_levels
    try:
        levels.set(request.name, request.level)
    except ValueError as error:
        raise Refusal(
            "log_level_unknown",
            f"{request.level} is no level of the log",
            f"Levels are {', '.join(LEVELS)}.",
        ) from error
    except KeyError as error:
        raise Refusal(
            "log_name_unknown",
            f"no package or module of the daemon with a log is called {request.name}",
            "Names are those of packages and modules, such as qmd.peers.",
        ) from error
    log.info("log_level_set", name=request.name or "default", level=request.level or "default")
    _levels(connection, request)


HANDLERS: dict[type, Handler] = {
    AuditEntries: look(_entries),
    LogLevels: _levels,
    SetLogLevel: _set_level,
}
