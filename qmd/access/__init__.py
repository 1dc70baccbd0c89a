"""Access: the rights of a client on queues and messages."""
