"""`evenkeel version`."""

from evenkeel_cli.commands.lookup import single_command
from evenkeel_cli.render import stdout_printer

app = single_command("version")


@app.command("version")
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as installed

    stdout_printer().line(f"evenkeel {installed('evenkeel')}")
