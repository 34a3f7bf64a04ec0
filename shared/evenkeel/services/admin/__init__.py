"""Change the policy and the quotas of teams."""
