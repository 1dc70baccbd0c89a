"""Man pages and shell completion as files below a prefix."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

import qmd
from release.manual import commands, completion, settings


def texts() -> dict[PurePosixPath, str]:
    """Return the place below a prefix, and the text, of every file.

    Pages have the date of SOURCE_DATE_EPOCH; without it they have none, so that two builds of one
    state are equal.
    """
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    at = datetime.fromtimestamp(int(epoch), UTC).date().isoformat() if epoch else ""
    source = f"qmd {qmd.__version__}"
    man = PurePosixPath("share/man")
    found = {
        man / "man1" / f"{commands.page_name(context)}.1": commands.page_of(
            context, at=at, source=source
        )
        for context in commands.commands()
    }
    found[man / "man5" / f"{settings.NAME}.5"] = settings.page_of_settings(at=at, source=source)
    return found | completion.scripts()


def write(folder: Path) -> list[Path]:
    """Write all files below `folder`, and return their paths."""
    written = []
    for place, text in sorted(texts().items()):
        file = folder / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        written.append(file)
    return written
