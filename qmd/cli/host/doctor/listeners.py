"""The program that listens at a port, as the kernel shows it in /proc."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
LISTENS = "0A"  # the state of a socket.  include/net/tcp_states.h
COMMAND_MAX = 120  # characters that are shown


class Program(NamedTuple):
    """A process and its command line."""

    number: int
    command: str

    @property
    def is_ours(self) -> bool:
        """Whether it is a program of qmd."""
        return any(
            word in ("qmd", "-mqmd") or word.endswith("/qmd") for word in self.command.split()
        )

    def __str__(self) -> str:
        return f"process {self.number}: {self.command[:COMMAND_MAX]}"


def find_listener(port: int) -> Program | None:
    """Return the program that listens at a TCP port; None: there is none, or it is not shown."""
    inodes = {f"socket:[{inode}]" for inode in _inodes(port)}
    if not inodes:
        return None
    for process in PROC.iterdir():
        if not process.name.isdigit():
            continue
        try:
            if any(os.readlink(each) in inodes for each in (process / "fd").iterdir()):
                words = (process / "cmdline").read_bytes().split(b"\0")
                return Program(int(process.name), b" ".join(words).decode(errors="replace").strip())
        except OSError:  # it has ended, or belongs to another user
            continue
    return None


def _inodes(port: int) -> list[str]:
    found = []
    for table in ("tcp", "tcp6"):
        try:
            lines = (PROC / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for words in map(str.split, lines):
            if words[3] == LISTENS and int(words[1].rpartition(":")[2], 16) == port:
                found.append(words[9])
    return found
