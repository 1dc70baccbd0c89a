"""Bodies: the content of message bodies, as applications on Windows and elsewhere write it."""
