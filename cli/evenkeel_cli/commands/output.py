"""Output of the commands: JSON, CSV or names for a script, a page for a person."""

import csv
import sys
import time
from collections.abc import Callable, Sequence
from importlib import resources
from io import StringIO
from pathlib import Path
from typing import Any, TypeVar

import typer

from evenkeel_cli.commands import lookup
from evenkeel_cli.render import (
    Column,
    OutputFormat,
    Printer,
    csv_cell,
    note,
    require_format,
    stderr_printer,
    stdout_printer,
)
from evenkeel_client.errors import CommandFailed, Exit

Json = dict[str, Any]
Found = TypeVar("Found")
REFRESH_SECONDS = 2.0
"""Time between two reads of `--watch`."""


def print_object(
    document: Json, output: OutputFormat, draw: Callable[[Printer], None], *, has_wide: bool = False
) -> None:
    """Print one object. `has_wide`: accept `-o wide`, which draws the same page."""
    printer = stdout_printer()
    forms = (OutputFormat.TABLE, OutputFormat.JSON, *([OutputFormat.WIDE] if has_wide else []))
    if require_format(output, forms).is_document:
        printer.document(document, output)
    else:
        draw(printer)


_IDS = ("jobId", "incidentId", "instanceId", "decisionId", "subject", "team", "hash", "fleet", "mode", "fault.key")
"""Fields that identify an object, for `-o name`. The first field that an object has counts."""


def print_read(
    fetch: Callable[[], Json],
    output: OutputFormat,
    draw: Callable[[Printer, Json], None],
    *,
    watch: bool = False,
    items: str = "",
    fields: Sequence[str] = (),
) -> None:
    """Read one object and print it in any format; with `watch`, repeat until Ctrl-C.

    `-o csv` prints a line for each item, or one line for the whole object. `-o name` prints the id of the object.

    Args:
        fetch: Reads the object.
        output: The chosen format.
        draw: Prints the page for a person.
        watch: Whether to repeat.
        items: Field with the items, such as the entries of a timeline.
        fields: The columns of `-o csv`, as for `write_csv`; by default every field. `-o name` then prints the first
            field of each item.
    """
    printer = stdout_printer()

    def show(document: Json) -> None:
        match output:
            case OutputFormat.JSON | OutputFormat.YAML:
                printer.document(document, output, is_part=watch)
            case OutputFormat.CSV:
                objects = document[items] if items else [document]
                write_csv(printer, objects, fields or list(dict.fromkeys(name for item in objects for name in item)))
            case OutputFormat.NAME if fields:
                for item in document[items]:
                    printer.line(csv_cell(_field(item, fields[0])))
            case OutputFormat.NAME:
                printer.line(str(next(filter(None, (_field(document, name) for name in _IDS)), "")))
            case _:
                draw(printer, document)

    print_or_watch(fetch, show, output, watch=watch)


def write_template(name: str, file: Path, *, then: str, force: bool) -> None:
    """Write an example file for a person to edit.

    Args:
        name: The template beside this module.
        file: The file to write.
        then: The suggested next command.
        force: Whether to overwrite an existing file.

    Raises:
        CommandFailed: the file exists, or cannot be written.
    """
    template = resources.files("evenkeel_cli.commands").joinpath(name).read_text(encoding="utf-8")
    try:
        with file.open("w" if force else "x", encoding="utf-8") as target:
            target.write(template)
    except FileExistsError as error:
        raise CommandFailed(
            Exit.USAGE, f"{file} exists.", code="FILE_EXISTS", hint="Choose another name, or overwrite it with --force."
        ) from error
    except OSError as error:
        raise CommandFailed(Exit.USAGE, f"{file}: {error.strerror}.", code="NO_FILE") from error
    printer = stdout_printer()
    printer.line(f"{printer.with_glyph('ok', str(file))}  written")
    printer.next_command(then)


def print_change(document: Json, output: OutputFormat, text: str, *, status: str = "ok", then: str = "") -> None:
    """Print the result of a change on one line, and the suggested next command."""

    def draw(out: Printer) -> None:
        out.line(out.with_glyph(status, text))
        if then:
            out.next_command(f"evenkeel {then}")

    print_object(document, output, draw)


def print_model(model: Any, output: OutputFormat, draw: Callable[[Printer], None]) -> None:
    """Print a pydantic model. The model writes its own JSON: `json` takes ten times as long to indent a large plan."""
    printer = stdout_printer()
    if output is OutputFormat.JSON and printer.has_unicode:
        printer.line(model.model_dump_json(by_alias=True, indent=2))
    else:
        print_object(model.model_dump(mode="json", by_alias=True), output, draw)


def print_or_watch(
    fetch: Callable[[], Found], draw: Callable[[Found], None], form: OutputFormat, *, watch: bool
) -> None:
    """Read and print; with `watch`, repeat every two seconds until Ctrl-C. Each table replaces the previous one.

    Raises:
        CommandFailed: the read failed. With `watch`, a throttled or unreachable API is only printed, and read again.
    """
    if not watch:
        draw(fetch())
        return
    printer = stdout_printer()
    try:
        while True:
            try:
                document = fetch()
            except CommandFailed as failure:
                if failure.exit_code is not Exit.TRY_AGAIN:
                    raise
                printer.line(printer.with_glyph("warn", failure.text))
            else:
                if form in (OutputFormat.TABLE, OutputFormat.WIDE):
                    printer.clear()
                draw(document)
                printer.stream.flush()
            time.sleep(REFRESH_SECONDS)
    except KeyboardInterrupt:
        raise CommandFailed(Exit.INTERRUPTED, "Stopped watching. Nothing was changed.") from None


def print_list(  # noqa: PLR0913 - options, each given by its name
    items: list[Json],
    output: OutputFormat,
    columns: Callable[[Printer], Sequence[Column]],
    *,
    fields: Sequence[str],
    empty_text: str,
    page_token: str | None = None,
    ends_after: int | None = None,
    watch: bool = False,
) -> None:
    """Print a list in the chosen format.

    Args:
        items: The items.
        output: The chosen format.
        columns: Returns the columns of the table.
        fields: The columns of `-o csv`, as for `write_csv`. `-o name` prints the first.
        empty_text: Text to print if the list is empty.
        page_token: Token of the next page.
        ends_after: Number of items requested; None = the list has no pages.
        watch: Whether the list is one of many; then its JSON stands on one line.
    """
    printer = stdout_printer()
    match output:
        case OutputFormat.JSON | OutputFormat.YAML:
            document = {"items": items} | ({} if ends_after is None else {"nextPageToken": page_token})
            printer.document(document, output, is_part=watch)
        case OutputFormat.CSV:
            write_csv(printer, items, fields)
        case OutputFormat.NAME:
            for item in items:
                printer.line(str(item[fields[0]]))
        case _ if not items:
            note(empty_text)
        case _:
            printer.table(columns(printer), items, is_wide=output is OutputFormat.WIDE)
    if page_token:
        limit_hint = f": --limit accepts up to {lookup.MAX_LISTED}" if ends_after != lookup.MAX_LISTED else ""
        note(f"Listed the first {ends_after} items. There may be more{limit_hint}.")


def write_csv(out: Printer, items: Sequence[Json], fields: Sequence[str]) -> None:
    """Write CSV: a header line, and a line for each item. It follows RFC 4180, but lines end with LF.

    Args:
        out: The page.
        items: The items.
        fields: Paths of the columns. A dot leads into an object: `utilization.gpu.average`. A field that an item lacks,
            or that is null, becomes an empty cell.
    """
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(fields)
    writer.writerows([csv_cell(_field(item, field)) for field in fields] for item in items)
    out.text(text.getvalue())


def _field(item: Any, path: str) -> Any:
    for name in path.split("."):
        item = item.get(name) if isinstance(item, dict) else None
    return item


def confirm(verb: str, *notes: str | Callable[[], Sequence[str]]) -> None:
    """Print what will happen, and ask for confirmation.

    Args:
        verb: The verb of the question.
        notes: Lines of the plan. A function is called only if there is a terminal.

    Raises:
        CommandFailed: there is no terminal to ask on.
    """
    if not sys.stdin.isatty():
        raise CommandFailed(
            Exit.USAGE, f"Standard input is not a terminal: add --yes to {verb} without confirmation.", code="USAGE"
        )
    for effects in notes:
        for text in (effects,) if isinstance(effects, str) else effects():
            note(text)
    try:
        typer.confirm(f"{verb.capitalize()}?", abort=True, err=True)
    except typer.Abort as answer:
        if answer.__context__ is not None:  # Ctrl-C or the end of the input: the cursor is still behind the question
            stderr_printer().line()
        note("Nothing was changed.")
        raise


def draw_timeline(out: Printer, entries: list[Json]) -> None:
    """Print a timeline: one row for each entry. A long text wraps within its column."""
    kind_width = max((len(entry["kind"]) for entry in entries), default=0)
    clocks = out.clock_texts(entry["at"] for entry in entries)
    rows = [
        (
            f"{out.dim(at)} {out.glyph(_KINDS.get(entry['kind'], 'ok'))} {entry['kind']:<{kind_width}}",
            entry["text"] + (f" [{entry['decisionId']}]" if entry["decisionId"] else ""),
        )
        for entry, at in zip(entries, clocks, strict=True)
    ]
    out.table([Column("", 0), Column("", 1, wraps=True)], rows)
    if not entries:
        note("Nothing has happened yet.")


def draw_timeline_document(out: Printer, document: Json) -> None:
    """Print the timeline of a job or an incident."""
    draw_timeline(out, document["entries"])


_KINDS = {"fault": "warn", "failed": "failed", "paged": "failed", "held": "warn", "lost": "warn", "planned": "next"}
