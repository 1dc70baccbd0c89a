"""Events and journals are shipped as Parquet files.  docs/ship.md"""
