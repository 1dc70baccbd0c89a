"""`qmd pipeline`: jobs and streams on Spark.  docs/pipeline.md

qmd's command line loads this module only when the command is called.  Each subcommand's module,
and Spark with it, is loaded only when that subcommand runs.
"""

from __future__ import annotations

import click

from qmd.cli.program import Program

COMMANDS = {
    "archive": "pipeline.commands.archive:archive",
    "replay": "pipeline.commands.archive:replay",
    "finish": "pipeline.commands.finish:finish",
    "run": "pipeline.commands.jobs:run",
    "generate": "pipeline.commands.jobs:generate",
    "watch": "pipeline.commands.watch:watch",
    "alert": "pipeline.commands.watch:alert",
}


@click.group("pipeline", cls=Program, commands_at=COMMANDS)
def pipeline() -> None:
    """Run jobs on queues and events in Spark, and close streams.  See docs/pipeline.md."""
