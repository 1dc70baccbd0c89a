"""`qmd doctor`: checks of this host, and of the way to another one."""
