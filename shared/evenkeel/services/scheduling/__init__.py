"""The scheduling cycle: load, decide, commit."""
