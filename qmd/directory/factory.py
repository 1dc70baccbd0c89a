"""Factory of the directory that the configuration names."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from qmd.directory.interface import KIND_ACTIVE_DIRECTORY, KIND_FILE, Directory
from qmd.directory.null import NullDirectory

if TYPE_CHECKING:
    from qmd.config.settings import DirectorySettings


def open_directory(settings: DirectorySettings, *, changed: Callable[[], None]) -> Directory:
    """Return the directory, not yet started; `changed` is called when cached answers may be wrong.

    A kind is imported when it is used, so that the libraries of the other kinds are not needed.
    """
    if settings.kind == KIND_FILE:
        from qmd.directory.file.directory import FileDirectory

        return FileDirectory(settings, changed=changed)
    if settings.kind == KIND_ACTIVE_DIRECTORY:
        from qmd.directory.active_directory import ActiveDirectory

        return ActiveDirectory.of(settings)
    return NullDirectory()
