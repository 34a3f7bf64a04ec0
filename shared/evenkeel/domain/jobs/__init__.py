"""Jobs and their attempts: specification, validation, states, charges, and how an attempt ends."""
