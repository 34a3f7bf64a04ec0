"""`evenkeel console`."""

import contextlib
import os
import tempfile
import threading
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from evenkeel_cli.commands import lookup
from evenkeel_cli.render import note, stdout_printer
from evenkeel_client.client import ApiClient
from evenkeel_client.errors import CommandFailed, Exit

app = lookup.single_command("console")


@app.command("console")
def console(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of 127.0.0.1; 0 chooses a free one.")] = 0,
    read_only: Annotated[bool, typer.Option("--read-only", help="Refuse every change.")] = False,
    no_open: Annotated[bool, typer.Option("--no-open", help="Print the link, and open no browser.")] = False,
) -> None:
    """Open the operator console in the browser, until Ctrl-C.

    The console listens on 127.0.0.1 only. It signs each request with your AWS credentials.
    """
    from evenkeel_cli.console.server import ConsoleServer

    client = lookup.current_client()
    try:
        server = ConsoleServer(client, port=port, read_only=read_only)
    except OSError as error:
        raise CommandFailed(
            Exit.USAGE, f"Port {port} cannot be used: {error.strerror}.", code="PORT_IN_USE", hint="Omit --port."
        ) from error
    printer = stdout_printer()
    printer.line(f"Console of {client.context.name or client.context.url}: {server.link}")
    printer.stream.flush()
    note("The link works once. Press Ctrl-C to stop the console.")
    threading.Thread(target=_prepare, args=(client,), daemon=True).start()
    with server, tempfile.TemporaryDirectory(prefix="evenkeel-console-") as folder:
        if not no_open:
            _open_browser(server.link, Path(folder))
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            raise CommandFailed(Exit.INTERRUPTED, "The console has stopped. This did not change the fleet.") from None


def _prepare(client: ApiClient) -> None:
    """Prepare the client while the browser opens. The first request reports missing credentials."""
    with contextlib.suppress(CommandFailed):
        client.prepare()


def _open_browser(link: str, folder: Path) -> None:
    """Open the link through a private file, because every user of this machine can read a browser's arguments."""
    import webbrowser

    file = folder / "open.html"
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as target:
        target.write(f'<!doctype html><meta http-equiv="refresh" content="0;url={link}"><title>Evenkeel</title>')
    webbrowser.open(f"file://{quote(str(file))}")
