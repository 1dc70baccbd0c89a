"""`qmd move-host`: the plan of moving a queue manager to another computer."""

from __future__ import annotations

import json
from typing import Any

import click

from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.parameters import json_option


@click.command("move-host")
@click.argument("new_address", metavar="NEW-ADDRESS")
@json_option
@pass_configuration
def move_host(configuration: Configuration, new_address: str, as_json: bool) -> None:
    """Print the steps of moving this queue manager to the computer at NEW-ADDRESS.

    The steps have the values of this queue manager: its folders, what waits, and the computers that
    send to it.  Nothing is changed; docs/standby.md explains each step.
    """
    settings = configuration.settings()
    status, outgoing, sequences = configuration.ask(_state)
    steps = plan(
        config=str(configuration.path),
        data=str(settings.queue_manager.data),
        port=settings.listen.port,
        status=status,
        outgoing=outgoing,
        sequences=sequences,
        new_address=new_address,
    )
    for number, step in enumerate(steps, 1):
        if as_json:
            click.echo(json.dumps({"step": number, **step}))
            continue
        click.secho(f"{number}. {step['title']}", bold=True)
        click.echo(f"   {step['text']}")
        for command in step["commands"]:
            click.echo(f"     {command}")


async def _state(qm: Any) -> tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]:
    return await qm.status(), await qm.list_outgoing(), await qm.list_sequences()


def plan(
    *,
    config: str,
    data: str,
    port: int,
    status: dict[str, Any],
    outgoing: list[dict[str, Any]],
    sequences: list[dict[str, Any]],
    new_address: str,
) -> list[dict[str, Any]]:
    """Return the steps: title, text and commands of each."""
    name, here = status["name"], f"qmd --config {config}"
    waiting = [row for row in outgoing if row["messages"]]
    hosts = sorted({str(row["host"]) for row in sequences if row.get("host")})
    return [
        {
            "title": "Prepare the new computer",
            "text": f"Install the same or a later version of qmd ({status['release']} runs here),"
            " the configuration and the files that it names. Do not start it.",
            "commands": [
                f"{here} backup /tmp/{name}.qmdbackup",
                f"scp /tmp/{name}.qmdbackup {new_address}:/tmp/",
                f"ssh {new_address} qmd restore /tmp/{name}.qmdbackup --folder /tmp/try"
                " --files /tmp/files",
            ],
        },
        {
            "title": "Drain",
            "text": "Stop the applications that send, and let receivers finish:"
            f" {status['messages']} messages are in queues, and {status['outgoing_messages']}"
            " wait for other computers"
            + (f" ({', '.join(row['destination'] for row in waiting[:5])})." if waiting else ".")
            + " Messages that stay are moved with the folder.",
            "commands": [f"{here} queue list", f"{here} outgoing list"],
        },
        {
            "title": "Stop this queue manager for good",
            "text": "From here to the next step it is not available; peers keep what is for it. It"
            " must not start here again: its identity moves.",
            "commands": ["sudo systemctl disable --now qmd"],
        },
        {
            "title": "Move the state",
            "text": "A backup of the stopped folder has every message and every position. The"
            " restored queue manager is a later run, so peers accept it, and would refuse the old"
            " one.",
            "commands": [
                f"{here} backup /tmp/{name}-last.qmdbackup",
                f"scp /tmp/{name}-last.qmdbackup {new_address}:/tmp/",
                f"ssh {new_address} qmd restore /tmp/{name}-last.qmdbackup --folder {data}",
            ],
        },
        *_arrival(name, port, new_address, hosts),
    ]


def _arrival(name: str, port: int, new_address: str, hosts: list[str]) -> list[dict[str, Any]]:
    """Return the steps after the move of the state; `hosts` send to this queue manager."""
    there = f"{new_address}:{port}"
    return [
        {
            "title": "Take over the name",
            "text": f"Let the name {name} stand for {new_address} in DNS and /etc/hosts. Until that"
            " is known everywhere, redirect on each computer that sends here"
            + (f": {', '.join(hosts)}." if hosts else ".")
            + " Peers that bound this queue manager to its address accept the new one by its key.",
            "commands": [
                f"ssh {host} qmd outgoing redirect {name}:{port} {there}"
                for host in hosts or ["EACH-PEER"]
            ],
        },
        {
            "title": "Start and check",
            "text": "Start the new one, and check it and the ways from and to it.",
            "commands": [
                f"ssh {new_address} sudo systemctl enable --now qmd",
                f"ssh {new_address} qmd doctor",
                *(f"ssh {host} qmd doctor {there}" for host in hosts[:3]),
                f"ssh {new_address} qmd outgoing list",
            ],
        },
    ]
