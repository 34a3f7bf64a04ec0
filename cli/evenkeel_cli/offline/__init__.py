"""Commands that need no fleet: the fault catalogue, a policy, and previews of their effects."""
