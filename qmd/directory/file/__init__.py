"""The directory in a TOML file."""
