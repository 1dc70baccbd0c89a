"""Results of jobs: tables, pages and state of each run, as one commit.  docs/decisions/0042"""
