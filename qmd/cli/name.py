"""`qmd name`: what a spelling of a queue's name means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.parameters import json_option

if TYPE_CHECKING:
    from protocol.format_name import FormatName


@click.group()
def name() -> None:
    """Understand names of queues."""


@name.command()
@click.argument("text")
@json_option
@pass_configuration
def explain(configuration: Configuration, text: str, as_json: bool) -> None:
    """Say what TEXT means as the name of a queue.  The daemon is not asked."""
    from protocol.format_name import MultipleName, parse_destination
    from qmd.cli.output import print_facts

    meant = parse_destination(text, local_host=_local_host(configuration))
    facts: dict[str, Any] = {"format_name": str(meant), **_facts(meant)}
    if isinstance(meant, MultipleName):
        facts["elements"] = [
            {"format_name": str(element), **_facts(element)} for element in meant.elements
        ]
    print_facts(facts, as_json=as_json)


def _local_host(configuration: Configuration) -> str:
    """The name in the configuration, where there is one; else what the host is called."""
    import os

    if configuration.path.exists():
        return configuration.settings().queue_manager.name
    return os.uname().nodename or "localhost"


def _facts(meant: FormatName) -> dict[str, Any]:
    from protocol.format_name import (
        ConnectorName,
        DirectName,
        DistributionListName,
        MachineName,
        MulticastName,
        PrivateName,
        PublicName,
    )
    from protocol.identifiers import guid_text

    match meant:
        case DirectName():
            return {
                "kind": "direct",
                "transport": meant.transport.lower(),
                "host": meant.host,
                "port": meant.port,
                "queue": meant.queue or None,
                "private": meant.private,
                "system": meant.system,
                "subqueue": meant.subqueue,
                "part": None if meant.suffix is None else meant.suffix.lower(),
                "in_packets": meant.wire_text(),
            }
        case PrivateName():
            owner = guid_text(meant.queue_manager)
            return {"kind": "private", "queue_manager": owner, "number": meant.number}
        case PublicName():
            return {"kind": "public", "queue": guid_text(meant.queue)}
        case MachineName():
            return {"kind": "machine", "queue_manager": guid_text(meant.queue_manager)}
        case ConnectorName():
            return {"kind": "connector", "connector": guid_text(meant.connector)}
        case DistributionListName():
            group = guid_text(meant.distribution_list)
            return {"kind": "distribution list", "list": group, "domain": meant.domain}
        case MulticastName():
            return {"kind": "multicast", "address": meant.address, "port": meant.port}
    return {"kind": "several"}
