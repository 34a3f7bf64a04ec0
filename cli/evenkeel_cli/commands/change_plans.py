"""The plan of a change, shown instead of the change or before it."""

from collections.abc import Callable, Sequence
from typing import Any

from evenkeel_cli.commands.output import confirm, print_object
from evenkeel_cli.render import OutputFormat, Printer
from evenkeel_client.errors import CommandFailed, Exit

Json = dict[str, Any]


def show_plan_or_confirm(
    read_plan: Callable[[], Json],
    *,
    title: Callable[[Json], str],
    texts: Callable[[Json], Sequence[str]],
    verb: str,
    output: OutputFormat,
    is_dry_run: bool,
    is_sure: bool,
) -> bool:
    """Show the plan of a change. Return whether that was all: in a dry run, nothing follows.

    Without a dry run, print the plan and ask, unless the person is sure. Without a terminal, the command ends before it
    reads the plan.

    Args:
        read_plan: Reads the plan.
        title: Returns the first line of the plan.
        texts: Returns the further lines.
        verb: The verb of the question.
        output: Format of the plan in a dry run.
        is_dry_run: Whether only the plan was asked for.
        is_sure: Whether to ask no question.

    Raises:
        CommandFailed: the change is refused, or there is no terminal to ask on.
    """

    def notes() -> Sequence[str]:
        try:
            plan = read_plan()
        except CommandFailed as failure:
            if failure.exit_code is not Exit.USAGE or "dryRun" not in failure.text:
                raise
            return ["This stack is older than the command and cannot show a plan."]
        return [f"{title(plan)}.", *texts(plan)]

    if is_dry_run:
        plan = read_plan()

        def draw(out: Printer) -> None:
            out.line(f"{out.with_glyph('next', title(plan))}, in a dry run")
            for text in texts(plan):
                out.paragraph(text, indent="  ")

        print_object(plan, output, draw)
    elif not is_sure:
        confirm(verb, notes)
    return is_dry_run
