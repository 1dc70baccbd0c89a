"""The event log: each change of a message's state is recorded in the commit that makes it."""
