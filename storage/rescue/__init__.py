"""Examination of damaged data folders, and rescue of their messages into new folders."""
