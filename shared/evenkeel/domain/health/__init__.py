"""The fault catalogue, the facts that report faults, and the incidents that they open."""
