"""The real services and workflows in a hostile world of virtual time, and what must hold there whatever happens."""
