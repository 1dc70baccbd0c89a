"""Names of queues become destinations; a message to many of them is copied."""
