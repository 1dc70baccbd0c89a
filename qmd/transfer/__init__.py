"""Messages between queue managers: incoming, relayed, released, confirmed."""
