"""An example trainer: a small network that really learns, on several ranks, and shows how a script adopts Evenkeel."""
