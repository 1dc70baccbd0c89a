"""Other queue managers: listener, connections, sessions, links, next hops."""
