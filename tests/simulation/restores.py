"""Backups and restorations of simulated hosts, as `storage/backup` makes them of real ones.

A backup is the state of one commit.  The image of a disk between two acts has the same content: the
database, and the log with the latest commits.
"""

from __future__ import annotations

from contextlib import closing

from storage.backup.restoration import continue_counters
from tests.simulation import vfs
from tests.simulation.world import Host

Image = dict[str, bytes]  # the files of a data folder, by their paths in it

_NOT_COPIED = ("mark", "lock", "reserve", "queues.db-shm")


def back_up(host: Host) -> Image:
    """Return the content of a host's data folder."""
    folder = f"/{host.name}/data/"
    return {
        path.removeprefix(folder): bytes(file.contents.content)
        for path, file in host.disk.files.items()
        if file.exists and path.startswith(folder) and not path.endswith(_NOT_COPIED)
    }


def restore(host: Host, image: Image) -> None:
    """Replace the data folder of a host by a backup, and start its daemon."""
    host.keep_down = True
    if host.daemon is not None:
        host.daemon.kill()
    host.disk.wipe()
    for name, content in image.items():
        file = host.disk.create(f"/{host.name}/data/{name}")
        host.disk.write(file, 0, content)
        host.disk.sync(file)
    host.disk.sync_folder()
    with closing(vfs.connect(f"/{host.name}/data/queues.db")) as db:
        db.isolation_level = None
        db.execute("BEGIN IMMEDIATE")
        now_ms = int(host.environment.wall_clock() * 1000)
        continue_counters(db, now_ms, host.world.random.randrange)
        db.execute("COMMIT")
    host.disk.close_handles()
    host.keep_down = False
    host.start_daemon()
