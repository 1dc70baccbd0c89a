"""The event log: what becomes of each message, recorded in the commit that makes it so."""
