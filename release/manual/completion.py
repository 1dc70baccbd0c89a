"""The scripts that complete commands in shells, as click makes them."""

from __future__ import annotations

from pathlib import PurePosixPath

from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from qmd.cli import main

#: Below a prefix: where each shell looks for the script of a command.
PLACES: dict[PurePosixPath, type[ShellComplete]] = {
    PurePosixPath("share/bash-completion/completions/qmd"): BashComplete,
    PurePosixPath("share/zsh/site-functions/_qmd"): ZshComplete,
    PurePosixPath("share/fish/vendor_completions.d/qmd.fish"): FishComplete,
}


def scripts() -> dict[PurePosixPath, str]:
    """Return the place below a prefix, and the text, of each script."""
    found = {}
    for place, shell in PLACES.items():
        made = shell(main, {}, "qmd", "_QMD_COMPLETE")
        # Not `made.source()`, which starts the shell to look at its version.
        found[place] = (made.source_template % made.source_vars()).strip() + "\n"
    return found
