"""What is true and what to do: pure functions of facts, policy and the time passed in."""
