"""Spark's entry point to the data source `qmd`.

Spark searches every top-level module named pyspark_... for data sources, so
`spark.read.format("qmd")` works wherever qmd is installed, without registration.
"""

import qmd  # first: it makes `pipeline` resolve to this package, not to one in the program's folder
from pipeline.source import DefaultSource

__all__ = ["DefaultSource", "qmd"]
