"""Where Spark finds the data source `qmd`: it looks into every top-level module named pyspark_...

So `spark.read.format("qmd")` works wherever qmd is installed, without a word of registration.
"""

import qmd  # first: from then on `pipeline` is ours, whatever the program's folder has
from pipeline.source import DefaultSource

__all__ = ["DefaultSource", "qmd"]
