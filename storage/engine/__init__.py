"""The database connection, the writer with its batches, the files and their recovery."""
