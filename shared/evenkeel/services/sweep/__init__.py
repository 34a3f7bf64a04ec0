"""The steps of the sweep, with a module for each part of the fleet."""
