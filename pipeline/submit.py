"""`spark-submit pipeline/submit.py JOB --input ... --output ...`: the jobs on a cluster.

The same as `qmd pipeline run JOB`, with the session that spark-submit has made.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from pipeline.commands.jobs import run
    from qmd.cli.program import reported

    with reported():
        run(prog_name="submit.py")
