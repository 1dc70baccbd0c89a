"""Configuration: the file, the settings with their types and units, the rules of routes."""
