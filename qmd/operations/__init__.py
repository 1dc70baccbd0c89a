"""The operations on queues and messages: send, receive, move, administer, transactions."""
