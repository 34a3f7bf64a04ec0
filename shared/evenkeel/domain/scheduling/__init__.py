"""One scheduling cycle: what it reads, and everything it decides. `admission` holds the rules that it applies."""
