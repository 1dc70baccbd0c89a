"""The file systems that cannot hold a data folder."""

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


def network_file_system(folder: Path, mounts: Path = MOUNTS) -> str:
    """Return the type of the network file system that has a folder, or "".  Raises OSError."""
    device = os.stat(folder).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts.read_text("utf-8", "replace").splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) > 2 and fields[2] == wanted:
            kind = after.split(" ", 1)[0]
            if kind in NETWORK:
                return kind
    return ""
