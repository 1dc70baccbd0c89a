"""Backups of a data folder while its daemon serves, and their restoration."""
