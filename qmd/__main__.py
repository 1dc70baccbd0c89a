"""`python -m qmd` is the command `qmd`."""

import sys

from qmd.cli import main

sys.exit(main())
