"""Queue managers that share a directory file."""

from pathlib import Path
from typing import Any

from qmd.client import connect
from tests.integration.managers import Host, Hosts


def directory_of(hosts: Hosts) -> Path:
    return hosts._folder / "directory.toml"


async def start(hosts: Hosts, name: str, **sections: Any) -> Host:
    file = directory_of(hosts)
    if name == "a":
        file.write_text("# Written by a person.\n")
    directory = {"kind": "file", "file": file, "reload_s": 0.01} | sections.pop("directory", {})
    return await hosts.start(name, directory=directory, **sections)


async def create_public(host: Host, name: str, **properties: Any) -> Any:
    async with connect(host.socket) as qm:
        return await qm.create_queue(name, public=True, **properties)
