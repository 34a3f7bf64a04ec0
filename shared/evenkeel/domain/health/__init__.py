"""Faults, the catalogue that says what they call for, and the incidents they open."""
