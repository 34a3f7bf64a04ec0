"""What lost time costs, and how long things are expected to take."""
