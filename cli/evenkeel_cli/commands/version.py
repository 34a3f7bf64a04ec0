"""`evenkeel version`."""

from evenkeel_cli.commands.lookup import single
from evenkeel_cli.render import page

app = single("version")


@app.command("version")
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as installed

    page().line(f"evenkeel {installed('evenkeel')}")
