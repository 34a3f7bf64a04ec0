"""Read models of the API, with explanations."""
