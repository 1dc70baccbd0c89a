"""The history of messages: queries, look-ups here and on other hosts, explanations."""
