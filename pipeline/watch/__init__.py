"""A continuous audit, and alerts about the findings of any audit.  docs/watch.md

sources.py      the event logs of live queue managers, copied as they grow
announced.py    the findings that were announced, and those that are news
alerts.py       webhooks and commands that get the news
"""
