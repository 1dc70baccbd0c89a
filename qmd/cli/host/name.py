"""`qmd name`: the meaning of a queue name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.parameters import json_option
from qmd.cli.program import Group

if TYPE_CHECKING:
    from qmd.directory.spelling import Spelled


@click.group(cls=Group)
def name() -> None:
    """Explain names of queues."""


@name.command()
@click.argument("text")
@click.option(
    "--offline", is_flag=True, help="Only analyse the name itself; do not ask the daemon."
)
@json_option
@pass_configuration
def explain(configuration: Configuration, text: str, offline: bool, as_json: bool) -> None:
    """Explain TEXT as the name of a queue, and where a message to it would go.

    A running daemon adds its knowledge (its own queues, the directory, the route); without one,
    only the name itself is analysed.  Nothing is sent.
    """
    from qmd.cli.output import print_json

    facts = _by_itself(configuration, text)
    answer, unasked = (None, "--offline") if offline else _by_the_daemon(configuration, text)
    facts["daemon"] = "not asked: " + unasked if answer is None else "asked"
    if answer is not None:
        facts["sendable"], facts["refusal"] = answer["sendable"], answer["refusal"]
        facts["resolved"] = answer["elements"]
    if as_json:
        print_json(facts)
    else:
        _print(facts)


def _by_itself(configuration: Configuration, text: str) -> dict[str, Any]:
    from qmd.directory.name_parts import parts_of
    from qmd.directory.spelling import parse_spelling

    elements = parse_spelling(
        text, local_host=_local_host(configuration), is_local=lambda direct: True
    )
    written = ",".join(map(str, elements))
    if len(elements) == 1:
        return {"format_name": written, **parts_of(elements[0])}
    return {
        "format_name": written,
        "kind": "several",
        "elements": [_facts(element) for element in elements],
    }


def _facts(element: Spelled) -> dict[str, Any]:
    from qmd.directory.name_parts import parts_of

    return {"format_name": str(element), **parts_of(element)}


def _by_the_daemon(configuration: Configuration, text: str) -> tuple[dict[str, Any] | None, str]:
    """Return the daemon's answer; or None, and the reason for which there is none."""
    from qmd.client import ClientError, NotConnected, connect
    from qmd.config.file import ConfigError

    if not configuration.host and not configuration.path.exists():
        return None, f"{configuration.path} does not exist"

    async def ask() -> dict[str, Any]:
        if configuration.host:
            async with configuration.connect() as qm:
                return await qm.directory.explain(text)
        async with connect(configuration.settings().control.socket, reconnect_s=0) as qm:
            return await qm.directory.explain(text)

    import asyncio

    try:
        return asyncio.run(ask()), ""
    except NotConnected:
        return None, "it does not run"
    except (ClientError, ConfigError, OSError) as error:
        return None, str(error)


def _local_host(configuration: Configuration) -> str:
    """Return the host of `--host`, or the name in the configuration, or that of the computer."""
    import os
    from urllib.parse import urlsplit

    if configuration.host:
        given = configuration.host
        return urlsplit(given if "://" in given else f"//{given}").hostname or "localhost"
    if configuration.path.exists():
        return configuration.settings().queue_manager.name
    return os.uname().nodename or "localhost"


def _print(facts: dict[str, Any]) -> None:
    from qmd.cli.output import print_facts, shown

    resolved = facts.pop("resolved", None)
    refusal = facts.pop("refusal", None)
    print_facts(facts, as_json=False)
    for element in resolved or []:
        targets, refused = element["targets"], element["refusal"]
        click.secho(f"{shown(element['format_name'] or element['text'])}", bold=True)
        if refused:
            click.echo(f"  refused     {_refused(refused)}")
        for target in targets:
            click.echo(f"  target      {shown(target['name'])}")
            for key, value in target.items():
                if key not in ("name", "refusal") and value not in (None, []):
                    click.echo(f"    {key.replace('_', ' ').ljust(14)}{shown(value)}")
            if target["refusal"]:
                click.echo(f"    {'refused'.ljust(14)}{_refused(target['refusal'])}")
    if refusal:
        click.echo(f"A message to it would be refused: {_refused(refusal)}")


def _refused(refusal: dict[str, Any]) -> str:
    from qmd.cli.output import printable

    remedy = f" {refusal['remedy']}" if refusal["remedy"] else ""
    text = f"{refusal['id']} {refusal['text']}.{remedy}"
    return printable(" ".join(text.split()))
