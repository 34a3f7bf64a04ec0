"""One scheduling cycle: load, decide, commit."""
