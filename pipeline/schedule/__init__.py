"""Operators for schedulers; each module needs its scheduler.  docs/watch.md"""
