"""The data pipeline on Spark: queues as tables and streams, and what a fleet did with its messages.

`session.py` starts Spark, `source/` is `spark.read.format("qmd")` and its kin.  Nothing here is
loaded by the daemon; docs/pipeline.md is the manual.
"""
