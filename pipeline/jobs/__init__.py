"""Spark jobs on queues and events.  docs/jobs.md"""
