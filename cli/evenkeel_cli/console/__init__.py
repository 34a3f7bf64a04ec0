"""The operator console: a loopback server and the static pages that it serves."""
