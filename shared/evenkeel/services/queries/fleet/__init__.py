"""The fleet for the API: its overview, its nodes and their utilization."""
