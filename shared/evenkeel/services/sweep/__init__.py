"""What the sweeper does in a round, a module for each part of the world."""
