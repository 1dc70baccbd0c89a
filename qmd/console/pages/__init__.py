"""The contents of pages: each function takes a visit, and returns a template with its values."""
