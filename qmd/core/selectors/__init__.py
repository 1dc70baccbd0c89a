"""Selectors: conditions on messages in the syntax of JMS (Jakarta Messaging 3.1, clause 3.8)."""
