"""What the command answers without a fleet: the catalogue, a policy, and what they lead to."""
