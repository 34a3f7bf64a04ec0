"""Output of the commands: a JSON document or names for a script, a page for a person."""

from collections.abc import Callable
from typing import Any

from evenkeel_cli.commands import lookup
from evenkeel_cli.render import OutputFormat, Printer, note, only, page

Json = dict[str, Any]


def answer(found: Json, output: OutputFormat, draw: Callable[[Printer], None], *, has_wide: bool = False) -> None:
    """Print one object. `has_wide`: accept `-o wide`, which draws the same page."""
    out = page()
    forms = (
        (OutputFormat.TABLE, OutputFormat.WIDE, OutputFormat.JSON)
        if has_wide
        else (OutputFormat.TABLE, OutputFormat.JSON)
    )
    if only(output, forms) is OutputFormat.JSON:
        out.json(found)
    else:
        draw(out)


def answer_model(found: Any, output: OutputFormat, draw: Callable[[Printer], None]) -> None:
    """Answer with a pydantic model. It writes its own JSON: `json` takes ten times as long to indent a large plan."""
    out = page()
    if output is OutputFormat.JSON and out.has_unicode:
        out.line(found.model_dump_json(by_alias=True, indent=2))
    else:
        answer(found.model_dump(mode="json", by_alias=True), output, draw)


def answer_list(
    found: list[Json],
    output: OutputFormat,
    *,
    name_key: str,
    nothing: str,
    table: Callable[[Printer, list[Json], bool], None],
    page_token: str | None = None,
    ends_after: int | None = None,
) -> None:
    """Answer with a list.

    Args:
        found: The items.
        output: The form asked for.
        name_key: Key of the field that `-o name` prints.
        nothing: Text to print if the list is empty.
        table: Draws the items; its last argument is whether to draw the wide form.
        page_token: Token of the next page.
        ends_after: Number of items requested; None = the list has no pages.
    """
    out = page()
    match output:
        case OutputFormat.JSON:
            out.json({"items": found} | ({} if ends_after is None else {"nextPageToken": page_token}))
        case OutputFormat.NAME:
            for item in found:
                out.line(str(item[name_key]))
        case _ if not found:
            note(nothing)
        case _:
            table(out, found, output is OutputFormat.WIDE)
    if page_token:
        way = f": --limit accepts up to {lookup.MOST_LISTED}" if ends_after != lookup.MOST_LISTED else ""
        note(f"Listed the first {ends_after} items. There may be more{way}.")
