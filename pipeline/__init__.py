"""The data pipeline on Spark: queues as tables and streams, and jobs over a fleet's event logs.

`spark/session.py` starts Spark; `source/` is `spark.read.format("qmd")`, `readStream`, `write` and
`writeStream`.  The daemon loads nothing of this package; docs/pipeline.md is the manual.
"""
