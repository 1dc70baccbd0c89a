"""Incremental reading: each event is processed once.  docs/jobs.md"""
