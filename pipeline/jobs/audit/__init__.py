"""The audit of a fleet's event logs.  docs/jobs.md"""
