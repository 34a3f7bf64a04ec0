"""Jobs, attempts, and who runs where."""
