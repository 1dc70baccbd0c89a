"""`qmd config`: check, show and compare the configuration, and let the daemon read it again."""

from __future__ import annotations

from pathlib import Path

import click

from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.parameters import json_option
from qmd.cli.program import ExitCode, Failure, Group


@click.group(cls=Group)
def config() -> None:
    """Check, show and compare the configuration, and let the daemon read it again."""


@config.command()
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@pass_configuration
def check(configuration: Configuration, file: Path | None) -> None:
    """Check FILE, or the configuration, with the overrides of the environment.

    Every error is printed, with its line.  Exit code 78: there are errors.
    """
    from qmd.config.file import load_settings

    path = file or configuration.path
    if file is None:
        configuration.settings()
    else:
        load_settings(file)
    click.echo(f"{path} is valid")


@config.command()
@click.argument("keys", nargs=-1, metavar="[SECTION|SECTION.KEY]...")
@click.option("--source", is_flag=True, help="Also show where each value comes from.")
@click.option("--changed", is_flag=True, help="Only values that are not the defaults.")
@json_option
@pass_configuration
def show(
    configuration: Configuration,
    keys: tuple[str, ...],
    source: bool,
    changed: bool,
    as_json: bool,
) -> None:
    """Show the effective values, all or those of sections and keys.

    The source is "default", the line of the file, or the variable of the environment.
    """
    from qmd.cli.output import print_json
    from qmd.config.effective import LIVE, read_effective

    configuration.stay_here()
    rows = read_effective(configuration.path)
    names = {f"{row.section}.{row.key}" for row in rows} | {row.section for row in rows}
    for key in keys:
        if key not in names:
            raise click.UsageError(f"{key!r} is neither a section nor a key of the configuration")
    section = ""
    for row in rows:
        name = f"{row.section}.{row.key}"
        if keys and not {name, row.section} & set(keys):
            continue
        if changed and row.is_default:
            continue
        if as_json:
            facts = {"key": name, "value": row.value, "default": row.default}
            print_json(facts | {"source": row.source, "live": name in LIVE})
            continue
        if row.section != section:
            section = row.section
            click.secho(f"[{section}]", bold=True)
        comment = f"  # {row.source}" if source else ""
        click.echo(f"{row.key} = {row.value}{comment}")


@config.command()
@json_option
@pass_configuration
@click.pass_context
def diff(context: click.Context, configuration: Configuration, as_json: bool) -> None:
    """Compare the configuration file with the settings of the running daemon.

    Each difference needs a reload (`qmd config reload`, `systemctl reload qmd`) or a restart.
    Exit code 1: there are differences.
    """
    from qmd.cli.output import print_rows
    from qmd.config.effective import differences, texts

    read = texts(configuration.settings())
    running = {key: str(value) for key, value in _running(configuration).items()}
    rows = [
        {"key": key, "running": running.get(key, ""), "file": read.get(key, ""), "needs": needs}
        for key, needs in differences(running, read)
    ]
    columns = [("KEY", "key"), ("RUNNING", "running"), ("FILE", "file"), ("NEEDS", "needs")]
    print_rows(rows, columns, as_json=as_json, none="the daemon uses what the file says")
    if rows:
        context.exit(ExitCode.FAILED)


def _running(configuration: Configuration) -> dict[str, object]:
    return dict(configuration.ask(lambda qm: qm.settings()))


@config.command()
@json_option
@pass_configuration
def reload(configuration: Configuration, as_json: bool) -> None:
    """Let the daemon read its configuration again, as `systemctl reload qmd` does.

    It takes over lists of addresses, routes, quotas, the kept history, the level of the log and
    certificates; other keys need a restart, and are named.  With an error in the file nothing is
    changed.
    """
    from qmd.cli.output import print_json

    done = configuration.ask(lambda qm: qm.settings(reload=True))
    if done["error"]:
        raise Failure(ExitCode.CONFIGURATION, str(done["error"]), "config_not_reloaded")
    if as_json:
        print_json(done)
        return
    for key in done["changed"]:
        click.echo(f"{key} is in use")
    for key in done["needs_restart"]:
        click.echo(f"{key} needs a restart")
    if not done["changed"] and not done["needs_restart"]:
        click.echo("nothing has changed")
