"""The outcomes of messages: dead letters, acknowledgments, reports, expiry."""
