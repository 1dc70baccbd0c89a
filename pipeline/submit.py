"""`spark-submit pipeline/submit.py JOB --input ... --output ...`: the jobs on a cluster.

The same as `qmd pipeline run JOB`, on the master and with the settings that spark-submit was given.
Which queue manager a replay is for is told by QMD_CONFIG, or QMD_HOST and QMD_TOKEN_FILE.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from qmd.cli import main

    main(["pipeline", "run", *sys.argv[1:]], prog_name="submit.py")
