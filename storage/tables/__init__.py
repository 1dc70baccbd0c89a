"""The tables of the database, one module each."""
