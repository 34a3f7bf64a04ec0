"""Submit, cancel, suspend and prioritize jobs."""
