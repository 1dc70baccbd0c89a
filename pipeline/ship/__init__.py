"""Shipping of events and journals as Parquet files.  docs/ship.md"""
