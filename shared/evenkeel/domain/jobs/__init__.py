"""Jobs and their attempts: specification, states, validation, endings."""
