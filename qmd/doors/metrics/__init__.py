"""The door for metrics: it reads the figures of the daemon and shows them to Prometheus.

It is a process of its own: however often it is asked, the daemon answers one collection at a time.
"""
