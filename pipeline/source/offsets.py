"""Offsets that Spark logs for a stream: the reader, and how far it has read each queue.

    {"qmd": 1, "reader": "lake", "queues": {"<queue id>": {"at": "/run/qmd/qmd.sock", "end": 700}}}

`secrets` is there if an endpoint has any: the names of its files and of its variable, by endpoint.
The checkpoint stores it as text.  A queue is identified by its id, not by its name: a queue that
was deleted and created again is another queue.  Reader and endpoint are included so that
`qmd pipeline finish` needs only the checkpoint and the files that it names.  A restarted query
ignores the endpoint, which may have changed.  It refuses the checkpoint of another reader, because
its positions mean other messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.source.errors import SourceError
from pipeline.source.option_values import Endpoint

VERSION = 1
Offset = dict[str, Any]


_FIELDS = {
    "tokenFile": "token_file",
    "tokenEnv": "token_env",
    "caFile": "ca_file",
    "certificateFile": "certificate_file",
    "keyFile": "key_file",
}


def offset_of(
    reader: str,
    ends: Mapping[str, tuple[str, int]],
    secrets: Mapping[str, Mapping[str, str]] | None = None,
) -> Offset:
    """Return the offset for `ends` (queue id -> endpoint, position); equal ends give equal text.

    `secrets` are as in the offset.
    """
    offset: Offset = {
        "qmd": VERSION,
        "reader": reader,
        "queues": {queue: {"at": ends[queue][0], "end": ends[queue][1]} for queue in sorted(ends)},
    }
    if secrets:
        offset["secrets"] = {at: dict(secrets[at]) for at in sorted(secrets)}
    return offset


def secrets_of(endpoint: Endpoint) -> dict[str, str]:
    """Return the names of the files and of the variable of an endpoint, by option."""
    found = {option: str(getattr(endpoint, field)) for option, field in _FIELDS.items()}
    return {option: name for option, name in found.items() if name}


def endpoint_of(offset: Offset, address: str) -> Endpoint:
    """Return an endpoint of an offset, with its files and its variable."""
    names = offset.get("secrets", {}).get(address, {})
    return Endpoint(address, **{_FIELDS[option]: names[option] for option in names})


def ends_of(offset: Offset) -> dict[str, tuple[str, int]]:
    """Return queue id -> (endpoint, position).  Raises SourceError for another version."""
    if offset.get("qmd") != VERSION:
        raise SourceError(
            f"qmd: the checkpoint has an offset of version {offset.get('qmd')!r}, and this qmd"
            f" reads version {VERSION}; continue it with the release that wrote it",
            code="not_a_checkpoint",
        )
    return {queue: (str(each["at"]), int(each["end"])) for queue, each in offset["queues"].items()}
