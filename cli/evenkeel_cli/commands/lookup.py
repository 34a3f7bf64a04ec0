"""Shared parts of the commands: options, the API client, and the lookup of ids."""

import os
import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from evenkeel_cli.render import OutputFormat, require_format, stdout_printer, warn
from evenkeel_cli.state_signs import JOB
from evenkeel_client import context
from evenkeel_client.client import ApiClient
from evenkeel_client.errors import CommandFailed, Exit

Json = dict[str, Any]

MAX_LISTED = 1000

OutputOption = Annotated[OutputFormat, typer.Option("-o", "--output", help="Output format.")]


def _check_result_format(output: OutputFormat) -> OutputFormat:
    """Refuse a format that a change cannot print, before the change happens."""
    return require_format(output, (OutputFormat.TABLE, OutputFormat.JSON))


ResultOption = Annotated[
    OutputFormat,
    typer.Option("-o", "--output", help="Output format.", metavar="table|json|yaml", callback=_check_result_format),
]
KeyOption = Annotated[
    str | None,
    typer.Option("--idempotency-key", help="Idempotency key; reuse it to retry the same change.", metavar="KEY"),
]
ReasonOption = Annotated[str, typer.Option(help="Reason; recorded.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show the plan; change nothing.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
StateOption = Annotated[
    str | None, typer.Option("--state", help="Only these states, comma-separated.", metavar="STATE,…")
]
SortOption = Annotated[
    str | None, typer.Option("--sort", help="Sort by this field; a - before it sorts in descending order.")
]
WatchOption = Annotated[bool, typer.Option("-w", "--watch", help="Refresh every two seconds until Ctrl-C.")]
LimitOption = Annotated[
    int, typer.Option("--limit", min=1, max=MAX_LISTED, help="Maximum number of items, newest first.")
]

_FULL_ID = re.compile(r"(job|inc|dec|op)-[0-9a-z]{10}", re.ASCII)
_KINDS_OF_IDS = {"job": "a job", "inc": "an incident", "dec": "a decision", "op": "an operation"}
_LENGTH = re.compile(r"(?P<count>[0-9]{1,4})(?P<unit>[mhd])", re.ASCII)
_MAX_SHOWN = 40
"""Characters of a wrong value in a message."""
_MAX_LOOKUP = 600
"""Number of newest items that are searched for a prefix or a name."""
_TIME_FIELDS = {"/jobs": "submittedAt", "/incidents": "openedAt", "/nodes": "launchedAt"}
"""Field that orders each list by time; the API does not sort every list this way."""
ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")
"""Final states of jobs."""
_MAX_NAMED = 10
"""Maximum number of candidates that an error lists."""


def command_group(help_text: str) -> typer.Typer:
    """Create the app of a command group; without a subcommand it prints its help."""
    app = typer.Typer(help=help_text, rich_markup_mode=None, add_completion=False)

    @app.callback(invoke_without_command=True)
    def print_help(ctx: typer.Context) -> None:
        if ctx.invoked_subcommand is None:
            stdout_printer().line(ctx.get_help())

    return app


def single_command(name: str) -> typer.Typer:
    """Create the app of a single command; `main` finds it by the command name."""
    return typer.Typer(name=name, rich_markup_mode=None, add_completion=False)


def current_context() -> context.ApiContext:
    """Return the context that this command uses."""
    return context.find_context(os.environ, Path.cwd())


def current_client() -> ApiClient:
    """Return an API client for the context that this command uses."""
    return ApiClient(current_context(), warn=warn)


def list_items(client: ApiClient, path: str, limit: int, **query: Any) -> list[Json]:
    """Read a list to its end or to `limit`, page by page."""
    return list_items_and_token(client, path, limit, **query)[0]


def list_items_and_token(
    client: ApiClient, path: str, limit: int, *, within: str = "", **query: Any
) -> tuple[list[Json], str | None]:
    """Read a list to its end or to `limit`; also return the token of the next page, None at the end.

    Args:
        client: The client to read with.
        path: Path of the list.
        limit: Maximum number of items.
        within: Field of the answer that holds the list, if it is not the answer itself.
        query: The filter.
    """
    documents: list[Json] = []
    token: str | None = None
    while len(documents) < limit:
        try:
            answer = client.get(path, pageSize=min(200, limit - len(documents)), nextPageToken=token, **query)
        except CommandFailed as failure:
            raise _with_option(failure, query) from failure
        list_page = answer[within] if within else answer
        documents.extend(list_page["items"])
        token = list_page.get("nextPageToken") or None
        if not token:
            break
    return documents, token


def _with_option(failure: CommandFailed, query: Json) -> CommandFailed:
    """Name the option of the command instead of the parameter of the API, if a filter of a list is refused."""
    match = re.match(r"(\w+)(\[\d+\])?: ", failure.text)
    if failure.code == "VALIDATION_FAILED" and match and query.get(match[1]) is not None:
        failure.text = f"--{match[1]}: {failure.text[match.end() :]}"
        failure.hint = "Correct this option."
    return failure


def list_for_lookup(client: ApiClient, path: str, count: int = _MAX_LOOKUP) -> list[Json]:
    """Read as many items as a name lookup needs."""
    rows, token = list_items_and_token(client, path, count)
    if token and path == "/jobs":
        # Pending jobs come first in the list and may fill it.
        known_ids = {item["jobId"] for item in rows}
        documents = list_items(client, path, count, state=",".join(state for state in JOB if state != "PENDING"))
        rows += [item for item in documents if item["jobId"] not in known_ids]
    return rows


def find_job(client: ApiClient, typed_value: str, *, is_to_change: bool = False) -> str:
    """Return the id of a job from an id, a unique prefix, a name, or `@latest`.

    If several jobs have the name, return the newest.

    Args:
        client: The client to read with.
        typed_value: The argument on the command line.
        is_to_change: Whether the command changes the job. Then a name shared by several active jobs is an error.

    Raises:
        CommandFailed: no job matches, or several match.
    """
    return _find_id(client, "/jobs", "jobId", typed_value, names=("name",), is_to_change=is_to_change)


def find_incident(client: ApiClient, typed_value: str) -> str:
    """Return the id of an incident from an id, a unique prefix, or `@latest`."""
    return _find_id(client, "/incidents", "incidentId", typed_value)


def find_node(client: ApiClient, typed_value: str) -> str:
    """Return the instance id of a node from an id, a name, or a unique prefix."""
    if is_instance_id(typed_value):
        return typed_value
    return _find_id(client, "/nodes", "instanceId", typed_value, names=("name", "slot"))


def is_instance_id(typed_value: str) -> bool:
    """Whether the text is a full instance id."""
    return re.fullmatch(r"i-[0-9a-f]{17}", typed_value, re.ASCII) is not None


def _find_id(
    client: ApiClient, path: str, key: str, typed_value: str, names: tuple[str, ...] = (), *, is_to_change: bool = False
) -> str:
    noun = path[1:-1]
    if full_id := _FULL_ID.fullmatch(typed_value):
        noun_text = "an incident" if noun == "incident" else f"a {noun}"
        if _KINDS_OF_IDS[full_id[1]] != noun_text:
            message = f"{typed_value} names {_KINDS_OF_IDS[full_id[1]]}, but this command takes {noun_text}."
            raise CommandFailed(Exit.USAGE, message, code="USAGE", hint=f"evenkeel why {typed_value}")
        return typed_value
    if not typed_value.strip():
        # An unset shell variable: an empty prefix matches every name.
        raise CommandFailed(Exit.USAGE, f"The {noun} argument is empty.", code="USAGE", hint=f"evenkeel {noun}s ls")
    if typed_value == "@latest" and path == "/nodes":
        raise CommandFailed(
            Exit.USAGE,
            "@latest does not work for nodes. Give an instance id or a node name.",
            code="USAGE",
            hint="evenkeel nodes ls",
        )
    if typed_value == "@latest":
        latest_documents = list_for_lookup(client, path, 200)
        if not latest_documents:
            raise CommandFailed(Exit.NOT_FOUND, f"There is no {noun} yet.", code="NOT_FOUND")
        return str(_newest(latest_documents, path)[key])
    documents = list_for_lookup(client, path)
    exact = [item for item in documents if typed_value in (item[key], *(item.get(name) for name in names))]
    active = [item for item in exact if item["state"] not in ENDED] if is_to_change else []
    if len(active) > 1:
        raise CommandFailed(
            Exit.USAGE,
            f"{len(active)} {noun}s that have not ended are named {typed_value!r}: {_join_names(active, key)}.",
            code="AMBIGUOUS",
            hint="Use the id of the job.",
        )
    if exact:
        return str(_newest(exact, path)[key])
    matches = [
        item
        for item in documents
        if str(item[key]).startswith(typed_value)
        or any(str(item.get(name) or "").startswith(typed_value) for name in names)
    ]
    if len(matches) == 1:
        return str(matches[0][key])
    if matches:
        raise CommandFailed(
            Exit.USAGE,
            f"{typed_value!r} matches {len(matches)} {noun}s: {_join_names(matches, key)}.",
            code="AMBIGUOUS",
            hint="Type more characters, or the whole id.",
        )
    hint = f"evenkeel {noun}s ls"
    raise CommandFailed(Exit.NOT_FOUND, f"There is no {noun} {typed_value!r}.", code="NOT_FOUND", hint=hint)


def _newest(documents: list[Json], path: str) -> Json:
    return max(documents, key=lambda item: item[_TIME_FIELDS[path]] or "")


def _join_names(documents: list[Json], key: str) -> str:
    more = ", …" if len(documents) > _MAX_NAMED else ""
    return ", ".join(str(item[key]) for item in documents[:_MAX_NAMED]) + more


def parse_instant(option: str, text: str, now: datetime) -> str:
    """Return an instant in RFC 3339 from a time before now, such as `12h`, or from an instant.

    Raises:
        CommandFailed: it is neither.
    """
    match = _LENGTH.fullmatch(text)
    if match:
        unit = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)}[match["unit"]]
        return f"{now - int(match['count']) * unit:%Y-%m-%dT%H:%M:%SZ}"
    if "T" not in text:
        message = f"{option} is 30d, 12h, 10m or 2026-11-03T10:15:00Z, not {text[:_MAX_SHOWN]!r}."
        raise CommandFailed(Exit.USAGE, message, code="USAGE")
    return text


def read_cost_report(since: str, until: str | None) -> Json:
    """Return the cost report of a window; without `until`, it ends now.

    Raises:
        CommandFailed: `--since` or `--until` is no time, or the API refuses the window.
    """
    now = stdout_printer().now()
    end = None if until is None else parse_instant("--until", until, now)
    document: Json = current_client().get("/cost-report", since=parse_instant("--since", since, now), until=end)
    return document
