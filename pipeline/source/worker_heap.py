"""Python's garbage collector in the workers of Spark.

PySpark collects all garbage after each task.  That examines the 90,000 objects of the modules that
a worker has loaded, and takes 40 ms: as long as to decode 100,000 messages.  Modules are never
garbage, so that they are left out from a worker's second read on.
"""

from __future__ import annotations

import gc
import sys

_READS_BEFORE = 1  # the first read imports the rest, and PySpark collects its garbage

_reads = 0


def begin_read() -> None:
    """Note the begin of a read; the second one leaves all objects that exist to the collector's
    permanent generation.  Does nothing in processes that are not workers of Spark."""
    global _reads
    if not _is_worker():
        return
    if _reads == _READS_BEFORE:
        gc.freeze()
    _reads += 1


def _is_worker() -> bool:
    """Return whether PySpark's daemon has forked this process for tasks."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == "pyspark.daemon"
