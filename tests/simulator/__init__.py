"""The real services and workflows in a simulated environment with faults and virtual time, and their invariants."""
