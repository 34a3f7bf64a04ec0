"""The node branch of a recovery: plan, cordon, repair, return, with guardrails and operator acts."""
