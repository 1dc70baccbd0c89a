"""Naming: the queues that names stand for, and the copies of a message to several queues."""
