"""Submit, cancel, suspend and rank jobs."""
