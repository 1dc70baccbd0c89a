"""The data source `qmd`: `spark.read.format("qmd")`, `readStream`, `write` and `writeStream`."""
