"""`qmd ship`: events and journals as Parquet, to a folder or an object store."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.stores import StoreUnknown
from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.parameters import json_option
from qmd.cli.program import ExitCode, Failure

if TYPE_CHECKING:
    from pipeline.ship.shipment import Shipped


@click.command("ship")
@click.option("--to", "target", required=True, help="A folder, or a URL such as s3://lake/qmd.")
@click.option("--events/--no-events", default=True, help="Whether to ship the event log.")
@click.option("--journal", "journals", multiple=True, help="A journal to ship, as orders;journal.")
@click.option(
    "--remove",
    is_flag=True,
    help="Remove journaled messages from the journal once they are durable at the target.",
)
@click.option("--reader", default="ship", show_default=True, help="The reader of the journals.")
@click.option("--keep-days", type=click.IntRange(min=1), help="Remove older files at the target.")
@click.option(
    "--notes",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="STATE_DIRECTORY",
    help="Where to store the progress.  [default: ~/.local/state/qmd; systemd's STATE_DIRECTORY]",
)
@click.option(
    "--new-epoch",
    is_flag=True,
    help="After a restored backup: ship the events that differ, beside the old files.",
)
@click.option("--dry-run", is_flag=True, help="Only print what would be shipped.")
@json_option
@pass_configuration
def ship(
    configuration: Configuration,
    target: str,
    events: bool,
    journals: tuple[str, ...],
    remove: bool,
    reader: str,
    keep_days: int | None,
    notes: Path | None,
    new_epoch: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Ship new events and messages, each once.

    After a run was killed, the next run continues where it stopped.  A log that
    is not the shipped one (a backup was restored) is refused.
    """
    from dataclasses import asdict

    from qmd.cli.output import print_json

    try:
        from pipeline.ship.destination import Target, require_libraries
        from pipeline.ship.shipment import Notes, Ship, ShipFailed

        require_libraries()
    except ImportError as error:
        raise Failure(
            ExitCode.FAILED,
            f"this needs the extra spark ({error}): pip install '.[spark]'",
            "pipeline_extra_missing",
        ) from error
    folder = notes or Path(os.path.expanduser("~/.local/state/qmd"))
    try:
        noted = Notes(folder, target)
        with noted.locked(), configuration.connect_blocking() as qm:
            run = Ship(qm, Target(target), noted, dry_run=dry_run, new_epoch=new_epoch)
            if events:
                run.events()
            for journal in journals:
                run.journal(journal, reader=reader, remove=remove)
            if keep_days is not None:
                run.retire(keep_days)
    except StoreUnknown as error:
        raise Failure(ExitCode.USAGE, str(error), "wrong_usage") from error
    except ShipFailed as error:
        raise Failure(ExitCode.FAILED, str(error), error.code) from error
    except OSError as error:
        raise Failure(
            ExitCode.FAILED,
            f"{target} cannot be written ({error}); earlier files are complete, and the next"
            " run continues after them",
            "ship_target_failed",
        ) from error
    done = run.done
    if as_json:
        print_json(asdict(done))
    else:
        click.echo(_summary(done, dry_run=dry_run))
    if done.missing_blocks:
        raise Failure(
            ExitCode.FAILED,
            f"{done.missing_blocks} blocks of events were dropped here before they were shipped;"
            " ship more often, keep more (size in the section [events]), or set keep_unshipped"
            " there",
            "events_dropped_unshipped",
        )


def _summary(done: Shipped, *, dry_run: bool) -> str:
    from qmd.cli.output import counted

    would = "would be " if dry_run else ""
    return (
        f"{counted(done.events, 'event')} and {counted(done.messages, 'message')} {would}shipped"
        + (f" in {counted(done.files, 'file')}" if done.files else "")
        + (f", {counted(done.removed_files, 'old file')} removed" if done.removed_files else "")
    )
