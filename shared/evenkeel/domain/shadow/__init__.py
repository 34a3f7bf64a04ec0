"""Compare the decisions of the mode `observe` with the repairs that the fleet's owners made."""
