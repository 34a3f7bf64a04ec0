"""The command `evenkeel`. It knows HTTP, and the local data centre's control address; nothing else of the project."""
