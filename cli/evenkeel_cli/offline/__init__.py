"""Commands that need no fleet: the fault catalogue, policies, quotas and plans."""
