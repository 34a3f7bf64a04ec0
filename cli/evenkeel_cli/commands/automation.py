"""`evenkeel automation`."""

import re
from typing import Annotated, Any

import typer

from evenkeel_cli.commands import asking
from evenkeel_cli.commands.answering import answer
from evenkeel_cli.errors import CommandFailed, Exit
from evenkeel_cli.render import Output, Page

Json = dict[str, Any]

app = asking.group("Hold harmful acts (repairs, stopping jobs), or let them go on. Un-cordon is never held.")

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"(\d{1,6})([smhd])", re.ASCII)


@app.command("show")
def show(output: asking.OutputOption = Output.TABLE) -> None:
    """Say how far automation may go now."""
    client = asking.current_client()
    found = client.get(f"/clusters/{client.fleet}/automation")
    answer(found, output, lambda out: _show(out, found))


@app.command("hold")
def hold(
    reason: Annotated[str, typer.Option(help="Why; recorded and shown.")],
    length: Annotated[str, typer.Option("--for", help="How long: 30m, 2h, 1d.", metavar="TIME")] = "1h",
    key: asking.KeyOption = None,
    output: asking.OutputOption = Output.TABLE,
) -> None:
    """Hold harmful acts for a while. What runs already goes on."""
    client = asking.current_client()
    body = {"reason": reason, "forSeconds": seconds_of(length)}
    found = client.post(f"/clusters/{client.fleet}/automation/hold", body, key=key)

    def draw(out: Page) -> None:
        out.line(out.marked("warn", f"held, until {found['until'][:19]}Z: {found['reason']}"))
        out.line(f"{out.dim('next')}  evenkeel automation release")

    answer(found, output, draw)


@app.command("release")
def release(
    reason: Annotated[str, typer.Option(help="Why; recorded.")] = "",
    key: asking.KeyOption = None,
    output: asking.OutputOption = Output.TABLE,
) -> None:
    """End the hold; what waited for it goes on."""
    client = asking.current_client()
    path = f"/clusters/{client.fleet}/automation/release"
    found = client.post(path, {"reason": reason} if reason else {}, key=key)

    def draw(out: Page) -> None:
        out.line(out.marked("ok", "released" if found["wasHeld"] else "nothing was held"))
        out.line(f"{out.dim('next')}  evenkeel status")

    answer(found, output, draw)


def seconds_of(text: str) -> int:
    """Read `90s`, `30m`, `2h`, `1d`.

    Raises:
        CommandFailed: it is none of these.
    """
    match = _DURATION.fullmatch(text.strip().lower())
    if not match:
        raise CommandFailed(Exit.USAGE, f"--for {text}: write a number and s, m, h or d.", code="USAGE")
    return int(match[1]) * _UNITS[match[2]]


def _show(out: Page, found: Json) -> None:
    drills = "drills may act" if found["drillsMayAct"] else "drills are only recorded"
    meaning = f"({_MODES.get(found['mode'], '')}; {drills})"
    out.line(f"mode  {out.bold(found['mode'])}  {out.dim(meaning)}")
    held = found["hold"]
    if held:
        out.line(out.marked("warn", f"held by {held['by']}, until {held['until'][:19]}Z"))
        out.paragraph(held["reason"], indent="  ")
        out.line(f"{out.dim('next')}  evenkeel automation release")
    else:
        out.line(out.marked("ok", "not held"))


_MODES = {
    "observe": "decides and records, touches nothing",
    "recommend": "decides and records, touches nothing",
    "act": "decides, records and acts",
}
