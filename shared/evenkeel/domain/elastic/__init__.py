"""Growing and shrinking of elastic jobs."""
