"""Initial id of a queue manager that is a member of the directory.

[MS-MQDMPR] 3.1.1.1: the id is the GUID of the queue manager's object, which the directory assigns.
Other queue managers look up a public queue, find that object above it, and reject a queue manager
with another id. An id never changes, so it is obtained before the data folder is created.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from qmd.directory.interface import KIND_ACTIVE_DIRECTORY
from storage.engine.missing import DATABASE

if TYPE_CHECKING:
    from qmd.config.settings import Settings

_INSTALL = "pip install '.[directory]'"


def missing_package(settings: Settings) -> str:
    """Return a text that names the package missing for the configured directory, or ""."""
    directory = settings.directory
    if directory.kind == KIND_ACTIVE_DIRECTORY:
        for package in ("sansldap", *(("spnego",) if directory.bind == "negotiate" else ())):
            if importlib.util.find_spec(package) is None:
                return f"{package}, which Active Directory needs, is not installed: {_INSTALL}"
    return ""


async def id_to_begin_with(settings: Settings, name: str) -> bytes | None:
    """Return the directory's id for the queue manager `name`.

    Returns None if the queue manager has an id already, or generates its own. Raises
    DirectoryError.
    """
    directory = settings.directory
    if directory.kind != KIND_ACTIVE_DIRECTORY or not directory.join:
        return None
    if (settings.queue_manager.data / DATABASE).exists():
        return None
    from qmd.directory.active_directory import ActiveDirectory

    active_directory = ActiveDirectory.of(directory)
    try:
        return await active_directory.join(name)
    finally:
        await active_directory.stop()
