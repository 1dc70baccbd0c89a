"""`qmd migrate windows`: definitions and messages from computers with Windows."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from qmd.cli import given_files
from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.output import counted, print_json, printable
from qmd.cli.parameters import confirm, json_option, yes_option
from qmd.cli.program import ExitCode, Failure, Group

if TYPE_CHECKING:
    from qmd.client import QueueManager
    from qmd.migration.plan import Options
    from qmd.migration.steps import Plan

F = TypeVar("F", bound=Callable[..., Any])

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.group(cls=Group)
def migrate() -> None:
    """Move from another queue manager to this one."""


@migrate.group()
def windows() -> None:
    """Move from Message Queuing of Windows: docs/migration.md.

    A Windows administrator runs the scripts; here their files are compared with this queue manager,
    and imported, again and again until the cut-over.
    """


@contextmanager
def failures() -> Iterator[None]:
    from qmd.migration.errors import BadSource
    from qmd.migration.scripts import ScriptChanged

    try:
        yield
    except BadSource as error:
        raise Failure(ExitCode.USAGE, str(error), "bad_collection") from error
    except ScriptChanged as error:
        raise Failure(ExitCode.FAILED, str(error), "script_changed") from error


# -- the scripts -------------------------------------------------------------------------------


@windows.command()
@json_option
def scripts(as_json: bool) -> None:
    """List the scripts for Windows with their SHA-256, and check them."""
    from qmd.migration.scripts import all_scripts, content

    with failures():
        for script in all_scripts():
            size = len(content(script))
            if as_json:
                print_json({"name": script.name, "sha256": script.sha256, "bytes": size})
            else:
                click.echo(f"{script.sha256}  {script.name}")


@windows.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
def extract(folder: Path) -> None:
    """Write the scripts and the list of their SHA-256 into FOLDER."""
    from qmd.migration.scripts import SUMS, all_scripts, content

    with failures():
        files = {script.name: content(script) for script in all_scripts()}
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {**files, SUMS.name: SUMS.read_bytes()}.items():
        try:
            with (folder / name).open("xb") as file:
                file.write(text)
        except FileExistsError as error:
            raise Failure(
                ExitCode.FAILED, f"{folder / name} exists already", "file_exists"
            ) from error
        click.echo(str(folder / name))


@windows.command("print")
@click.argument("name")
def print_(name: str) -> None:
    """Print the script NAME."""
    from qmd.migration.scripts import all_scripts, content

    with failures():
        for script in all_scripts():
            if script.name.casefold() in (name.casefold(), f"{name.casefold()}.ps1"):
                click.echo(content(script), nl=False)
                return
    raise Failure(ExitCode.NOT_FOUND, f"there is no script {name!r}", "no_such_script")


# -- definitions -------------------------------------------------------------------------------


def _source_options(command: F) -> F:
    for option in reversed(
        (
            click.argument("files", type=FILE, nargs=-1, required=True, metavar="FILE..."),
            click.option(
                "--account",
                "accounts",
                multiple=True,
                metavar="ACCOUNT=PRINCIPAL",
                help=r"A principal for an account of Windows: 'CONTOSO\ann=user:ann'.",
            ),
            click.option(
                "--accounts",
                "accounts_file",
                type=FILE,
                help="A TOML file with such pairs in a table [accounts].",
            ),
            click.option("--queue", "queues", multiple=True, help="Only this queue."),
            click.option(
                "--public-as-private",
                is_flag=True,
                help="Create public queues as private ones of the same name.",
            ),
            click.option(
                "--prune",
                is_flag=True,
                help="Remove entries of principals that have none on Windows.",
            ),
            json_option,
        )
    ):
        command = option(command)
    return command


@windows.command()
@_source_options
@pass_configuration
def plan(
    configuration: Configuration, /, files: tuple[Path, ...], as_json: bool, **given: Any
) -> None:
    """Show what an import of FILE... would change, and what has no counterpart here."""
    _run(configuration, files, given, as_json=as_json, dry_run=True, yes=True)


@windows.command()
@_source_options
@click.option("--dry-run", is_flag=True, help="Only show the plan.")
@yes_option
@pass_configuration
def apply(
    configuration: Configuration,
    /,
    files: tuple[Path, ...],
    as_json: bool,
    dry_run: bool,
    yes: bool,
    **given: Any,
) -> None:
    """Make the changes that `plan` shows.

    Only differences are changed, so that a second run changes nothing.  An error ends the run; run
    it again.
    """
    _run(configuration, files, given, as_json=as_json, dry_run=dry_run, yes=yes)


def _run(
    configuration: Configuration,
    files: tuple[Path, ...],
    given: dict[str, Any],
    *,
    as_json: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    from qmd.migration.collection import read_collection

    with failures():
        options = _options(given)
        collections = [read_collection(file) for file in files]

        import asyncio

        async def run() -> None:
            async with configuration.connect() as qm:
                for collection in collections:
                    await _carry_out(qm, collection, options, as_json, dry_run=dry_run, yes=yes)

        asyncio.run(run())


async def _carry_out(
    qm: QueueManager, collection: Any, options: Options, as_json: bool, *, dry_run: bool, yes: bool
) -> None:
    from qmd.migration.plan import make_plan
    from qmd.migration.steps import Step, carry_out

    plan = await make_plan(qm, collection, options)
    if dry_run or not as_json:
        _show(collection, plan, as_json=as_json)
    if dry_run or not plan.steps:
        return
    if not yes:
        confirm(f"make {counted(len(plan.steps), 'change')}")

    def done(step: Step) -> None:
        if as_json:
            print_json({"computer": collection.computer, "done": True, **step.facts()})

    made = await carry_out(qm, plan.steps, done)
    if not as_json:
        click.echo(f"made {counted(made, 'change')}")


def _options(given: dict[str, Any]) -> Options:
    import tomllib

    from qmd.migration.errors import BadSource
    from qmd.migration.plan import Options
    from qmd.migration.rights import Accounts

    principals: dict[str, str] = {}
    if given["accounts_file"] is not None:
        try:
            text = given_files.read_text(given["accounts_file"])
            table = tomllib.loads(text)["accounts"]
            principals |= {str(name): str(value) for name, value in table.items()}
        except (ValueError, KeyError, AttributeError) as error:
            raise BadSource(f"{given['accounts_file']}: it has no table [accounts]") from error
    for pair in given["accounts"]:
        account, equals, principal = pair.rpartition("=")
        if not equals:
            raise BadSource(f"{pair!r} is not ACCOUNT=PRINCIPAL")
        principals[account] = principal
    return Options(
        Accounts(principals),
        given["public_as_private"],
        given["prune"],
        frozenset(each.casefold() for each in given["queues"]),
    )


def _show(collection: Any, plan: Plan, *, as_json: bool) -> None:
    if as_json:
        for step in plan.steps:
            print_json({"computer": collection.computer, "done": False, **step.facts()})
        for gap in plan.gaps:
            print_json({"computer": collection.computer, "gap": gap._asdict()})
        return
    click.secho(
        f"{printable(collection.computer)}: {counted(len(plan.steps), 'change')},"
        f" {counted(plan.unchanged, 'queue')} as collected",
        bold=True,
    )
    if collection.source == "lqs":
        click.echo("the source is a folder of LQS files, a format without a specification")
    for step in plan.steps:
        click.echo(f"  {step.action:<11} {printable(step.about)}  {printable(step.detail)}")
    if plan.gaps:
        click.secho("without a counterpart", bold=True)
    for gap in plan.gaps:
        click.echo(f"  {printable(gap.about)}: {printable(gap.what)}: {printable(gap.why)}")
        if gap.remedy:
            click.echo(f"    {printable(gap.remedy)}")


@windows.command()
@click.argument("folder", type=FOLDER)
@click.argument("output", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--computer", default="", help="The name of the computer.  [default: this one]")
def lqs(folder: Path, output: Path, computer: str) -> None:
    r"""Read FOLDER, a copy of storage\lqs of Windows, and write its definitions to OUTPUT.

    The format of these files has no specification: compare the plan with the computer.
    """
    from qmd.migration.collection import collection_json
    from qmd.migration.lqs import read_folder

    with failures():
        found = read_folder(folder, computer or socket.gethostname())
    try:
        with output.open("xb") as file:
            file.write(collection_json(found))
    except FileExistsError as error:
        raise Failure(ExitCode.FAILED, f"{output} exists already", "file_exists") from error
    click.echo(f"{counted(len(found.queues), 'queue')}: {output}")
    for note in found.notes:
        click.echo(f"  {printable(note.about)}: {printable(note.text)}", err=True)
