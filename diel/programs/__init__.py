"""Programs that a run starts: their supervisor, and the socket to the tuple space."""
