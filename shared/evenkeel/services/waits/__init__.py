"""Open, evaluate and answer the waits of workflows."""
