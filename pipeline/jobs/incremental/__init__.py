"""Jobs that read each event once.  docs/jobs.md"""
