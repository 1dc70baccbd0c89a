"""`python -m qmd` is the command `qmd`."""

import os
import sys

# `python -m` puts the working directory first: a `protocol.py` there would stand for ours.
if sys.path and sys.path[0] in ("", os.getcwd()):
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    sys.path.append(sys.path.pop(0))
    if ours not in sys.path:
        sys.path.insert(0, ours)

from qmd.command import main

sys.exit(main())
