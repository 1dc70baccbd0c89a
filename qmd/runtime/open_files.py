"""File descriptors: the process may open as many as its connections need.

Without a descriptor no connection is accepted and no file of the database is opened.  The limit of
the process is therefore raised at the start; if it cannot be high enough, fewer connections are
allowed, so that some descriptors are always left for the database, for sessions that this queue
manager opens, and for a connection that is closed at once.
"""

from __future__ import annotations

import resource
from dataclasses import replace

import structlog

from qmd.config.settings import Settings

log = structlog.get_logger()

OWN_FILES = 64  # the database, its log, the logs, listening sockets, the directory
DIALLED_FILES = 512  # sessions that this queue manager opens; they have no limit of their own
CLOSING_FILES = 64  # connections that are refused or are being closed
PLACES_MIN = 16  # of each kind, even if there are too few descriptors


def needed_files(settings: Settings) -> int:
    """Return how many descriptors the configured connections need, with a reserve."""
    peers, remote = settings.peers, settings.remote
    connections = peers.sessions_max + peers.handshakes_max + settings.control.clients_max
    if remote.enabled:
        connections += 2 * remote.connections_max
    return connections + OWN_FILES + DIALLED_FILES + CLOSING_FILES


def raise_limit(wanted: int) -> int:
    """Raise the limit of open files to at least `wanted`, if possible; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted if soft == resource.RLIM_INFINITY else soft
    target = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    except (OSError, ValueError):
        return soft
    return target


def fit(settings: Settings, limit: int) -> Settings:
    """Return the settings with as many connections as `limit` descriptors allow; log it if fewer.

    Sessions, handshakes and clients are reduced in proportion.
    """
    needed = needed_files(settings)
    if needed <= limit:
        return settings
    reserve = min(OWN_FILES + DIALLED_FILES + CLOSING_FILES, max(limit // 2, OWN_FILES))
    part = max(limit - reserve, 0) / (needed - OWN_FILES - DIALLED_FILES - CLOSING_FILES)

    def reduced(places: int) -> int:
        return min(places, max(int(places * part), PLACES_MIN))

    peers, control, remote = settings.peers, settings.control, settings.remote
    sessions_max = reduced(peers.sessions_max)
    fitting = replace(
        settings,
        peers=replace(
            peers,
            sessions_max=sessions_max,
            sessions_per_peer_max=min(peers.sessions_per_peer_max, sessions_max),
            handshakes_max=reduced(peers.handshakes_max),
        ),
        control=replace(control, clients_max=reduced(control.clients_max)),
        remote=replace(remote, connections_max=reduced(remote.connections_max)),
    )
    log.warning(
        "few_open_files",
        limit=limit,
        needed=needed,
        sessions_max=fitting.peers.sessions_max,
        handshakes_max=fitting.peers.handshakes_max,
        clients_max=fitting.control.clients_max,
    )
    return fitting
