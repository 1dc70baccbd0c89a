"""A queue manager that is in the directory itself gets its id from there, at its first start.

[MS-MQDMPR] 3.1.1.1: the id is the GUID of the queue manager's object, which the directory chooses.
Others look up a public queue, find that object above it, and will have nothing to do with a queue
manager of another id.  An id is for ever, so this happens before there is a data folder.
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
    """What the configured directory needs and this Python has not; "" where it has all."""
    directory = settings.directory
    if directory.kind == KIND_ACTIVE_DIRECTORY:
        for package in ("sansldap", *(("spnego",) if directory.bind == "negotiate" else ())):
            if importlib.util.find_spec(package) is None:
                return f"{package}, which Active Directory needs, is not installed: {_INSTALL}"
    return ""


async def id_to_begin_with(settings: Settings, name: str) -> bytes | None:
    """The directory's id for the queue manager `name`; None where it has one, or makes up its own.

    Raises DirectoryError.
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
