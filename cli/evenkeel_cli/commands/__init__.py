"""One module per noun. Each is imported only when its noun is typed."""
