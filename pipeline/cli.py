"""`qmd pipeline`: jobs and streams on Spark.  docs/pipeline.md

The command line of qmd loads this only when it is asked for; each command's own module, and with it
Spark, only when that command runs.
"""

from __future__ import annotations

import click

from qmd.cli.program import Program

COMMANDS = {
    "archive": "pipeline.commands.archiving:archive",
    "replay": "pipeline.commands.archiving:replay",
    "finish": "pipeline.commands.finish:finish",
    "run": "pipeline.commands.jobs:run",
    "generate": "pipeline.commands.jobs:generate",
}


@click.group("pipeline", cls=Program, commands_at=COMMANDS)
def pipeline() -> None:
    """Queues and events in Spark: run jobs, close streams.  See docs/pipeline.md."""
