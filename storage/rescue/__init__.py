"""Damaged data folders: examined, and rescued into new ones."""
