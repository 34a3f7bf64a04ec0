"""What the commands have alike: options, the client of the context in force, and ids found from what was typed."""

import os
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from evenkeel_cli import context
from evenkeel_cli.client import ApiClient
from evenkeel_cli.errors import CommandFailed, Exit
from evenkeel_cli.render import OutputFormat, page
from evenkeel_cli.state_labels import JOB

Json = dict[str, Any]

MOST_LISTED = 1000

OutputOption = Annotated[OutputFormat, typer.Option("-o", "--output", help="Output format.")]
KeyOption = Annotated[
    str | None,
    typer.Option("--idempotency-key", help="Idempotency key; reuse it to retry the same change.", metavar="KEY"),
]
StateOption = Annotated[
    str | None, typer.Option("--state", help="Only these states, comma-separated.", metavar="STATE,…")
]
LimitOption = Annotated[
    int, typer.Option("--limit", min=1, max=MOST_LISTED, help="Maximum number of items, newest first.")
]

_FULL_ID = re.compile(r"(job|inc|dec|op)-[0-9a-z]{10}", re.ASCII)
_MAX_LOOKUP = 600
"""Newest items among which a prefix or a name is looked for."""
_TIME_FIELDS = {"/jobs": "submittedAt", "/incidents": "openedAt", "/nodes": "launchedAt"}
"""By which instant the newest of a list is told; the lists themselves are not all in that order."""
ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")
"""States of jobs that nothing follows."""
_MAX_NAMED = 10
"""Candidates that a refusal lists."""


def group(help_text: str) -> typer.Typer:
    """Make the app of a noun with verbs; alone, it prints its help."""
    app = typer.Typer(help=help_text, rich_markup_mode=None, add_completion=False)

    @app.callback(invoke_without_command=True)
    def _alone(ctx: typer.Context) -> None:
        if ctx.invoked_subcommand is None:
            page().line(ctx.get_help())

    return app


def single(name: str) -> typer.Typer:
    """Make the app of a noun that is a command itself; `main` finds it by its one command's name."""
    return typer.Typer(name=name, rich_markup_mode=None, add_completion=False)


def current_context() -> context.CliContext:
    """Return the context in force."""
    return context.find(os.environ, Path.cwd())


def current_client() -> ApiClient:
    """Return a client of the context in force."""
    return ApiClient(current_context())


def items(client: ApiClient, path: str, limit: int, **query: Any) -> list[Json]:
    """Read a list to its end or to `limit`, page by page."""
    return listed(client, path, limit, **query)[0]


def listed(client: ApiClient, path: str, limit: int, **query: Any) -> tuple[list[Json], str | None]:
    """Read a list to its end or to `limit`; also return the token by which the API goes on, None at the end."""
    found: list[Json] = []
    token: str | None = None
    while len(found) < limit:
        page = client.get(path, pageSize=min(200, limit - len(found)), nextPageToken=token, **query)
        found.extend(page["items"])
        token = page.get("nextPageToken") or None
        if not token:
            break
    return found, token


def list_for_lookup(client: ApiClient, path: str, count: int = _MAX_LOOKUP) -> list[Json]:
    """Read as much of a list as names are looked for in."""
    found, token = listed(client, path, count)
    if token and path == "/jobs":
        # Those that wait in queues stand before all others, and may have filled the list.
        known = {item["jobId"] for item in found}
        others = items(client, path, count, state=",".join(state for state in JOB if state != "PENDING"))
        found += [item for item in others if item["jobId"] not in known]
    return found


def find_job(client: ApiClient, typed: str, *, is_to_change: bool = False) -> str:
    """Return the id of the job that was typed: an id, a unique beginning of one, a name, or `@latest`.

    Of several jobs with one name the newest is meant.

    Args:
        client: To look with.
        typed: What stands on the command line.
        is_to_change: Whether the job is going to be changed: then of several that have not ended none is picked.

    Raises:
        CommandFailed: there is none, or more than one could be meant.
    """
    return _find(client, "/jobs", "jobId", typed, names=("name",), is_to_change=is_to_change)


def find_incident(client: ApiClient, typed: str) -> str:
    """Return the id of the incident that was typed: an id, a unique beginning of one, or `@latest`."""
    return _find(client, "/incidents", "incidentId", typed)


def find_node(client: ApiClient, typed: str) -> str:
    """Return the instance id of the node that was typed: an id or name, or a unique beginning of one."""
    if is_instance_id(typed):
        return typed
    return _find(client, "/nodes", "instanceId", typed, names=("name", "slot"))


def is_instance_id(typed: str) -> bool:
    """Whether this is a machine's whole id."""
    return re.fullmatch(r"i-[0-9a-f]{17}", typed, re.ASCII) is not None


def _find(
    client: ApiClient, path: str, key: str, typed: str, names: tuple[str, ...] = (), *, is_to_change: bool = False
) -> str:
    what = path[1:-1]
    if _FULL_ID.fullmatch(typed):
        return typed
    if not typed.strip():
        # As a script's variable that is not set: the empty word begins every name.
        raise CommandFailed(Exit.USAGE, f"An empty word names no {what}.", code="USAGE", hint=f"evenkeel {what}s ls")
    if typed == "@latest" and path == "/nodes":
        raise CommandFailed(Exit.USAGE, "@latest names no node: say which.", code="USAGE", hint="evenkeel nodes ls")
    if typed == "@latest":
        latest = list_for_lookup(client, path, 200)
        if not latest:
            raise CommandFailed(Exit.NOT_FOUND, f"There is no {what} yet.", code="NOT_FOUND")
        return str(_newest(latest, path)[key])
    known = list_for_lookup(client, path)
    exact = [item for item in known if typed in (item[key], *(item.get(name) for name in names))]
    going = [item for item in exact if item["state"] not in ENDED] if is_to_change else []
    if len(going) > 1:
        raise CommandFailed(
            Exit.USAGE,
            f"{len(going)} {what}s that have not ended are named {typed!r}: {_join_names(going, key)}.",
            code="AMBIGUOUS",
            hint="Name the one that you mean by its id.",
        )
    if exact:
        return str(_newest(exact, path)[key])
    close = [
        item
        for item in known
        if str(item[key]).startswith(typed) or any(str(item.get(name) or "").startswith(typed) for name in names)
    ]
    if len(close) == 1:
        return str(close[0][key])
    if close:
        raise CommandFailed(
            Exit.USAGE, f"{typed!r} begins {len(close)} {what}s: {_join_names(close, key)}.", code="AMBIGUOUS"
        )
    hint = f"evenkeel {what}s ls"
    raise CommandFailed(Exit.NOT_FOUND, f"There is no {what} {typed!r}.", code="NOT_FOUND", hint=hint)


def _newest(found: list[Json], path: str) -> Json:
    return max(found, key=lambda item: item[_TIME_FIELDS[path]] or "")


def _join_names(found: list[Json], key: str) -> str:
    return ", ".join(str(item[key]) for item in found[:_MAX_NAMED]) + (", …" if len(found) > _MAX_NAMED else "")
