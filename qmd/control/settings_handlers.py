"""Handlers of the verbs about the configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qmd.control.handler import Handler, change, look
from qmd.control_protocol.settings import ReloadSettings, ShowSettings

if TYPE_CHECKING:
    from qmd.control.components import Components

Value = dict[str, Any]


async def _show(components: Components, request: ShowSettings) -> Value:
    return dict(components.reload.settings())


async def _reload(components: Components, request: ReloadSettings) -> Value:
    done = components.reload.run()
    return {"changed": done.changed, "needs_restart": done.waiting, "error": done.error}


HANDLERS: dict[type, Handler] = {ShowSettings: look(_show), ReloadSettings: change(_reload)}
