"""The command `evenkeel`. It calls the API through `evenkeel_client`; `offline` uses the domain."""
