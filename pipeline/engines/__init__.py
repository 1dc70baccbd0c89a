"""Engines that execute the jobs: Spark, or DuckDB in this process.  docs/decisions/0041"""
