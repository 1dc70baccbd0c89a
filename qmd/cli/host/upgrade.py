"""`qmd upgrade`: bring a data folder to the schema of this version, or say what that would do."""

from __future__ import annotations

import click

from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.parameters import json_option
from qmd.cli.program import ExitCode, Failure


@click.command()
@click.option("--dry-run", is_flag=True, help="Say which migrations would run; change nothing.")
@json_option
@pass_configuration
def upgrade(configuration: Configuration, dry_run: bool, as_json: bool) -> None:
    """Upgrade the data folder to the schema of this version, while no daemon runs on it.

    The start of a daemon does the same.  Each migration is a commit of its own, so an upgrade that
    is killed continues where it was.  There is no way back: make a backup first (`qmd backup`), and
    restore it to return to the former version.  A folder of a newer version is refused.
    """
    import asyncio

    from qmd.cli.host.storage import configured_keys
    from qmd.cli.output import print_facts
    from storage.errors import StorageError
    from storage.rescue import upgrade as upgrading

    settings = configuration.settings()
    folder = settings.queue_manager.data
    try:
        plan = upgrading.plan(folder)
        if plan.is_newer:
            raise Failure(
                ExitCode.FAILED,
                f"the database has schema {plan.present}, and this version of qmd knows"
                f" {plan.latest} at most: qmd was downgraded; install the newer version again, or"
                " restore a backup that this version has made",
                "database_newer",
            )
        if plan.steps and not dry_run:
            asyncio.run(upgrading.run(folder, configured_keys(configuration)))
    except StorageError as error:
        raise Failure(ExitCode.FAILED, str(error), error.code) from error
    facts = {
        "folder": str(folder),
        "schema": plan.present,
        "latest": plan.latest,
        "migrations": [{"schema": step.version, "name": step.name} for step in plan.steps],
        "database_bytes": plan.database_bytes,
        "done": bool(plan.steps) and not dry_run,
    }
    if as_json:
        print_facts(facts, as_json=True)
        return
    if not plan.steps:
        click.echo(f"{folder} has schema {plan.present}, the latest one: there is nothing to do")
        return
    verb = "would be" if dry_run else "was"
    click.echo(f"{folder} {verb} upgraded from schema {plan.present} to {plan.latest}:")
    for step in plan.steps:
        click.echo(f"  {step.version}  {step.name}")
    if dry_run:
        click.echo("Make a backup first: qmd backup FILE", err=True)
