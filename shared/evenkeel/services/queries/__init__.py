"""What the API reads, and why."""
