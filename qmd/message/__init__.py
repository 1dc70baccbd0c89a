"""Messages become packets: building, templates, shared parts."""
