"""Write the man pages and the scripts for shells into a folder."""

import sys
from pathlib import Path

from release.manual.files import write

for file in write(Path(sys.argv[1])):
    print(file)
