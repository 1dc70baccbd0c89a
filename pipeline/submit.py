"""`spark-submit pipeline/submit.py JOB --input ... --output ...`: the jobs on a cluster.

It does the same as `qmd pipeline run JOB`, with the master and the settings of spark-submit.
QMD_CONFIG, or QMD_HOST and QMD_TOKEN_FILE, select the queue manager for a replay.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from qmd.cli import main

    main(["pipeline", "run", *sys.argv[1:]], prog_name="submit.py")
