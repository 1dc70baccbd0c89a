"""The state of queues in memory: local and outgoing queues, incoming sequences, usage, quotas."""
