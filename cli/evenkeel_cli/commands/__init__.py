"""Commands, by noun. Each module is imported only when its noun is typed."""
