"""`qmd status`: an overview of the queue manager."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.overview import overview, size
from qmd.cli.parameters import json_option
from qmd.cli.program import ExitCode, Failure


@click.command()
@click.option(
    "--check",
    is_flag=True,
    help="For monitoring: print problems only, and exit with 1 if there is one.",
)
@click.option(
    "--dead-letters-max",
    type=click.IntRange(min=0),
    metavar="N",
    help="With --check: more dead letters than N are a problem.",
)
@json_option
@pass_configuration
@click.pass_context
def status(
    context: click.Context,
    configuration: Configuration,
    check: bool,
    dead_letters_max: int | None,
    as_json: bool,
) -> None:
    """Show an overview of the queue manager.

    Its name, version, uptime and addresses, how much it holds, and its problems.
    """
    from qmd.cli.output import print_facts, print_json

    if dead_letters_max is not None and not check:
        raise click.UsageError("--dead-letters-max needs --check")
    facts = configuration.ask(lambda qm: qm.status())
    is_brief = facts.get("brief", False)  # the user lacks the right see-status
    if check and is_brief:
        raise Failure(
            ExitCode.REFUSED,
            "--check needs the right see-status on the host; an administrator can grant it:"
            " qmd acl grant PRINCIPAL see-status host",
            "right_missing",
        )
    found = [] if is_brief else problems(facts, dead_letters_max)
    if not check:
        print_facts(facts if as_json else overview(facts, found), as_json=as_json)
    elif as_json:
        print_json({"ok": not found, "problems": found})
    else:
        for problem in found or ["ok"]:
            click.echo(problem)
    if check and found:
        context.exit(ExitCode.FAILED)


def vanished(facts: dict[str, Any]) -> str:
    """Return the sentence about messages that have vanished from the database."""
    last = datetime.fromtimestamp(facts["vanished_at_s"], UTC)
    return (
        f"{facts['vanished_messages']} messages have vanished from the database, the last ones"
        f" before {last:%Y-%m-%d %H:%M:%SZ}: another program has changed it. `qmd events tail"
        " --kind vanished` names them"
    )


def problems(facts: dict[str, Any], dead_letters_max: int | None = None) -> list[str]:
    """Return the problems in the facts of a status, as one sentence each."""
    found = []
    if facts["disk_full"]:
        free = size(facts["disk_free_bytes"])
        found.append(
            f"the disk is full ({free} free): new messages are refused until there is space"
        )
    if facts["commits_wait"]:
        found.append(f"nothing can be written, and pending commits wait: {facts['commits_wait']}")
    if facts.get("vanished_messages"):
        found.append(vanished(facts))
    for failing in facts["housekeeping_failing"]:
        found.append(f"maintenance fails ({failing['act']}): {failing['reason']}")
    for warning in facts["quota_warnings"]:
        found.append(
            f"{warning['what']} has reached {warning['used_percent']} % of its quota of"
            f" {size(warning['quota_bytes'])}"
        )
    for conflict in facts["two_of_one_identity"]:
        found.append(f"{conflict['reason']}: {conflict['remedy']}")
    for each in facts["sequences_in_doubt"]:
        found.append(f"{each['destination']}: {each['reason']} {each['remedy']}")
    if problem := facts["directory"].get("problem"):
        found.append(f"the directory: {problem}")
    found += [f"TLS: {text}" for text in facts.get("tls", {}).get("problems", ())]
    if dead_letters_max is not None and facts["dead_letters"] > dead_letters_max:
        found.append(f"there are {facts['dead_letters']} dead letters: see `qmd dead-letter list`")
    return found
