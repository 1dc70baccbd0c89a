"""Properties that an application defines for a message, and their encoding in its extension."""
