"""The file systems that cannot hold a data folder, and those that lose it."""

import os
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")

#: Types of /proc/self/mountinfo that are shared between computers, without the locks and the shared
#: memory that SQLite's log needs.
NETWORK = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "glusterfs", "lustre"),
        *("fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.rclone", "fuse.cephfs", "ncpfs"),
    }
)
#: Types that have their files in memory.
IN_MEMORY = frozenset(("tmpfs", "ramfs"))


def network_file_system(folder: Path, mounts: Path = MOUNTS) -> str:
    """Return the type of the network file system that has a folder, or "".  Raises OSError."""
    return _kind(folder, NETWORK, mounts)


def file_system_in_memory(folder: Path, mounts: Path = MOUNTS) -> str:
    """Return the type of the file system in memory that has a folder, or "".  Raises OSError."""
    return _kind(folder, IN_MEMORY, mounts)


def _kind(folder: Path, wanted: frozenset[str], mounts: Path) -> str:
    device = os.stat(folder).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts.read_text("utf-8", "replace").splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) > 2 and fields[2] == number:
            kind = after.split(" ", 1)[0]
            if kind in wanted:
                return kind
    return ""
