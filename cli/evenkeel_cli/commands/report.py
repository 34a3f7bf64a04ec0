"""`evenkeel report`."""

from enum import StrEnum
from typing import Annotated

import typer

from evenkeel_cli import report_page
from evenkeel_cli.commands import lookup
from evenkeel_cli.commands.output import write_csv
from evenkeel_cli.render import OutputFormat, note, stdout_printer

app = lookup.single_command("report")


class ReportFormat(StrEnum):
    """Forms of the report."""

    TABLE = "table"
    WIDE = "wide"
    MD = "md"
    HTML = "html"
    CSV = "csv"
    JSON = "json"
    YAML = "yaml"


SinceOption = Annotated[str, typer.Option(metavar="WHEN", help="30d, 12h, or 2026-11-03T10:15:00Z.")]
UntilOption = Annotated[str | None, typer.Option(metavar="WHEN", help="End of the window; if omitted, now.")]
OutputOption = Annotated[ReportFormat, typer.Option("-o", "--output", help="Output format.")]


@app.command("report")
def report(since: SinceOption = "30d", until: UntilOption = None, output: OutputOption = ReportFormat.TABLE) -> None:
    """Show what failures, idle nodes and rent cost, and what to change first.

    It has no `-o name`, because a report has no id, and no `--watch`, because it adds up whole days.
    """
    printer = stdout_printer()
    document = lookup.read_cost_report(since, until)
    match output:
        case ReportFormat.JSON:
            printer.json(document)
        case ReportFormat.YAML:
            printer.document(document, OutputFormat.YAML)
        case ReportFormat.CSV:
            write_csv(printer, report_page.figure_rows(document), ("section", "item", "figure", "value"))
        case ReportFormat.MD:
            printer.text(report_page.markdown(document))
        case ReportFormat.HTML:
            printer.text(report_page.web_page(document))
        case ReportFormat.TABLE | ReportFormat.WIDE:
            is_wide = output is ReportFormat.WIDE or not printer.is_terminal
            report_page.draw_fleet_report(printer, document, is_wide=is_wide)
    if not document["isComplete"]:
        note("The report is incomplete: its notes list what was left out.")
