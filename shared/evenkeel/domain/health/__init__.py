"""Faults, the catalogue of their recoveries, and the incidents that they open."""
