"""An example trainer: a small network that learns on several ranks. It shows how a script adopts Evenkeel."""
