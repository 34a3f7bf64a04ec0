"""`evenkeel backtest`."""

from pathlib import Path
from typing import Annotated

import typer

from evenkeel_cli.commands import lookup
from evenkeel_cli.commands.faults import PolicyOption
from evenkeel_cli.commands.output import print_object
from evenkeel_cli.render import OutputFormat

app = lookup.single_command("backtest")

WindowOption = Annotated[
    int,
    typer.Option(
        "--window",
        metavar="HOURS",
        min=1,
        max=168,
        help="Observation window: hours after a decision in which later events judge it.",
    ),
]


@app.command("backtest")
def backtest(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE…", help="Files or folders of exported events, node objects and CloudTrail records."
        ),
    ],
    policy: PolicyOption = None,
    window: WindowOption = 24,
    cluster: Annotated[str, typer.Option(metavar="NAME", help="Cluster of the node objects.")] = "export",
    node_recovery: Annotated[
        str,
        typer.Option(
            "--node-recovery",
            metavar="MODE",
            help="HyperPod's NodeRecovery setting: Automatic or None. Default: the value in the events, else None.",
        ),
    ] = "",
    output: lookup.OutputOption = OutputFormat.TABLE,
) -> None:
    """Replay exported events, and compare the decisions with what happened. Needs no fleet and no AWS."""
    from evenkeel_cli.offline import backtest as offline
    from evenkeel_cli.offline import policies

    report = offline.run_backtest(
        files, policies.load_policy(policy), cluster, window_hours=window, node_recovery=node_recovery
    )
    print_object(
        report,
        output,
        lambda out: offline.draw_backtest(out, report, is_wide=output is OutputFormat.WIDE),
        has_wide=True,
    )
