"""Programs that print the numbers we promise."""
