"""Table `tls_peer`: the queue managers and the addresses that were met over TLS.

qmd/peers/tls_peers.py does not use or believe them without TLS again.
"""

import sqlite3
from typing import NamedTuple


class TlsPeer(NamedTuple):
    """A queue manager by its GUID as text, or an address that was dialled, as `host:port`.

    `port` is its port for TLS, or 0. `key` names its identity key; "" for an address, and if an
    authority vouches for the GUID. `issued_s` is the time of the latest endorsed key,
    `newer_since_s` when that was first seen, and `met_s` when the row was written.
    """

    peer: str
    port: int
    key: str
    issued_s: int
    newer_since_s: int
    met_s: int


def remember(db: sqlite3.Connection, row: TlsPeer) -> None:
    db.execute(
        "INSERT OR REPLACE INTO tls_peer (peer, port, key, issued_s, newer_since_s, met_s)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        row,
    )


def forget(db: sqlite3.Connection, peer: str) -> None:
    db.execute("DELETE FROM tls_peer WHERE peer = ?", (peer,))


def list_all(db: sqlite3.Connection) -> list[TlsPeer]:
    rows = db.execute(
        "SELECT peer, port, key, issued_s, newer_since_s, met_s FROM tls_peer ORDER BY met_s"
    )
    return list(map(TlsPeer._make, rows))
