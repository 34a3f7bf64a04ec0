"""Records for the API: decisions with explanations, timelines, and the acts of people."""
