"""Exact output for people, at 80 columns."""

from datetime import UTC, datetime
from textwrap import dedent

import pytest

from tests.unit.api.seeds import a_job, store, store_fleet_counts, store_timeline_entries
from tests.unit.cli.conftest import CliFixture
from tests.unit.cli.recovery_fixture import store_running_recovery

STATUS = """\
fleet laptop                                                mode: act  10:15:02Z
▲ DEGRADED  1 incident working, 0 need you
SOURCES 30 current ●  nodes and jobs counted 0s ago
NODES   p5-workers  4 nodes: 3 in service ●  1 repairing ◐
GPUs    32 in the fleet  16 in use 50%  8 free in service
JOBS    class    run  pend  preempted  avg run  max run  avg wait  max wait
        (unset)    1     1          0      25m      25m       28m       28m
WORKING inc-0000000001  i-00000000000000001  GPU has fallen off the bus
        node  ◐ replacing for 11m48s
        next  validate the replacement; at the latest by 10:33:14Z
        job   ● job-0000000001 (llama-1) running again, attempt 2
NEXT    evenkeel incidents show inc-0000000001
"""

JOBS = """\
JOB             NAME     STATE        NODES  TRY  AGE  REASON
job-0000000003  llama-3  ● succeeded      2    1  27m  Every pod ended with 0.
job-0000000002  llama-2  ○ pending        2    0  28m
    Needs 2 free nodes of one pool; 1 is free.
job-0000000001  llama-1  ● running        2    2  29m  All 2 pods are running.
"""

JOB = """\
● job-0000000001  llama-1  running
  All 2 pods are running.

  size         2 nodes × 8 GPUs
  team         default, class (unset)
  runs         python -m train
  image        registry/trainer:1
  checkpoints  s3://checkpoints/llama
  submitted    29m ago by role/Researcher (ana)

  TRY  STATE      FROM         RAN  NODES        REASON
    2  ● running  step 412   9m00s  00003,00002
    1  ▲ lost     –         13m00s  00001,00002  Its node failed.

next  evenkeel why job-0000000001
"""

INCIDENT = """\
◐ inc-0000000001  recovering  drill

  fault      GPU has fallen off the bus (xid:79), critical
  node       i-00000000000000001, ml.p5.48xlarge, pool p5-workers
  opened     12m ago
  mode       act
  execution  inc-0000000001-r1

  node  ◐ replacing for 11m48s
  next  validate the replacement; at the latest by 10:33:14Z
  job   ● job-0000000001 (llama-1) running again, attempt 2

  REACHED           AT         AFTER
  detected          10:03:02Z
  planned           10:03:03Z  +1.8s
  cordoned          10:03:04Z  +0.3s
  jobs stopped      10:03:12Z  +7.9s
  repair requested  10:03:14Z  +2.0s

  EVIDENCE  SEEN       SOURCE                DETAIL
  xid:79    10:03:02Z  hyperpod.node-health
      NVRM: Xid (PCI:0000:b3:00): 79, GPU has fallen off the bus.

next  evenkeel incidents timeline inc-0000000001
"""

TIMELINE = """\
10:03:02Z ▲ fault     hyperpod-i-00000000000000001: Xid 79, GPU has fallen off
                      the bus.
10:03:04Z ● decided   ACT: Xid 79 calls for a replacement.
10:03:05Z ● cordoned  New pods stay off the node.
10:03:12Z ● job       job-0000000001: attempt 1 is stopped; it resumes on a free
                      node.
10:03:14Z ● repair    Replace was asked of HyperPod and accepted; published p90
                      of a replacement is about 16 minutes.
"""

NODES = """\
NODE                 POOL        STATE         GPUS  AGE  INCIDENT
i-00000000000000001  p5-workers  ◐ repairing    0/8   3d  inc-0000000001
i-00000000000000002  p5-workers  ● in service   8/8   3d  –
i-00000000000000003  p5-workers  ● in service   8/8   3d  –
i-00000000000000004  p5-workers  ● in service   0/8   3d  –
"""

WHY = """\
◐ inc-0000000001  recovering
  hyperpod-i-00000000000000001 showed GPU has fallen off the bus (xid:79).
  Recovery has run for 12m; the node is being replaced.

  decided  11m ago: FREE_NODE, dec-0000000003
  because  A free node is ready now; nothing is quicker.

  CONSIDERED         START  GPU-H LOST    LOSS  CHOSEN
  free node         ~2m00s        0.53   $2.67  ● yes
  spare                  –           –       –  no: No spare is configured for
                                                this pool.
  wait for repair  ~16m00s        4.27  $21.33  no: The replacement takes about
                                                16 minutes, and the job would
                                                stand still.

  GUARDRAIL       READING  LIMIT    READ  COUNTS
  hold                  0      1  0s ago  holds in force on the node
  group trouble         0      1  0s ago  launch or cluster failures
  shared cause          –      3       –  unhealthy nodes that share a cause
  stale evidence       12     30  0s ago  minutes since the last fault signal
  fleet repairs         0     10  0s ago  other nodes of the fleet in repair
  pool repairs          0      –  0s ago  other nodes of p5-workers in repair
  repair rate           0     20  0s ago  repair requests in the last hour

  BEFORE     DECIDED  DECISION        BECAUSE
  10:03:03Z  ACT      dec-0000000001  Xid 79 calls for a replacement.

  execution  inc-0000000001-r1
  next       evenkeel incidents timeline inc-0000000001
"""


@pytest.mark.parametrize(
    ("words", "picture"),
    [
        ("status", STATUS),
        ("jobs ls", JOBS),
        ("jobs show llama-1", JOB),
        ("incidents show @latest", INCIDENT),
        ("incidents timeline @latest", TIMELINE),
        ("nodes ls", NODES),
        ("why @latest", WHY),
    ],
    ids=lambda value: value.partition("\n")[0] if "\n" not in value else "",
)
def test_terminal_output_matches_its_snapshot(cli: CliFixture, words: str, picture: str) -> None:
    store_running_recovery(cli.gateway)
    store_fleet_counts(cli.gateway.fakes)

    result = cli.run(*words.split(), terminal=True)

    assert result.out == picture
    assert (result.exit_code, result.err) == (0, "")
    assert max(len(line) for line in result.out.splitlines()) <= 80


OVERNIGHT = """\
2026-11-01 23:59:50Z ● submitted  Submitted by role/Researcher (ana).
           23:59:59Z ● running    Attempt 1 runs on 2 nodes; it began from
                                  nothing.
2026-11-02 00:00:10Z ▲ lost       Its node failed.
           09:00:00Z ● running    Attempt 2 runs, from step 412.
2026-11-03 10:15:00Z ● ended      Every pod ended with 0.
"""


def test_timeline_of_several_days_shows_each_date_once(cli: CliFixture) -> None:
    store(cli.gateway.fakes.ledger, a_job(1))
    store_timeline_entries(
        cli.gateway.fakes.ledger,
        "job-0000000001",
        (datetime(2026, 11, 1, 23, 59, 50, tzinfo=UTC), "submitted", "Submitted by role/Researcher (ana)."),
        (datetime(2026, 11, 1, 23, 59, 59, tzinfo=UTC), "running", "Attempt 1 runs on 2 nodes; it began from nothing."),
        (datetime(2026, 11, 2, 0, 0, 10, tzinfo=UTC), "lost", "Its node failed."),
        (datetime(2026, 11, 2, 9, 0, tzinfo=UTC), "running", "Attempt 2 runs, from step 412."),
        (datetime(2026, 11, 3, 10, 15, tzinfo=UTC), "ended", "Every pod ended with 0."),
    )

    assert cli.run("jobs", "timeline", "llama-1", terminal=True).out == OVERNIGHT


def test_incident_of_an_earlier_day_shows_dates_within_80_columns(
    cli: CliFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_running_recovery(cli.gateway)
    monkeypatch.setenv("EVENKEEL_NOW", "2026-11-04T02:00:00+00:00")

    shown_result = [cli.run(*f"{words} @latest".split(), terminal=True).out for words in ("incidents show", "why")]

    assert (
        "  detected          2026-11-03 10:03:02Z\n  planned                      10:03:03Z  +1.8s\n" in shown_result[0]
    )
    assert "  xid:79    2026-11-03 10:03:02Z  hyperpod.node-health\n      NVRM: Xid" in shown_result[0]
    assert "  2026-11-03 10:03:03Z  ACT      dec-0000000001  Xid 79 calls for" in shown_result[1]
    assert max(len(line) for text in shown_result for line in text.splitlines()) <= 80


def test_output_in_a_pipe_has_full_times_and_texts(cli: CliFixture) -> None:
    store_running_recovery(cli.gateway)

    result = cli.run("incidents", "timeline", "@latest")

    assert result.out.splitlines()[-1] == (
        "2026-11-03T10:03:14Z ● repair    Replace was asked of HyperPod and accepted; "
        "published p90 of a replacement is about 16 minutes."
    )


def test_output_without_colour_contains_the_same_words(cli: CliFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    store_running_recovery(cli.gateway)
    plain_output = cli.run("jobs", "ls", terminal=True).out
    monkeypatch.setenv("TERM", "xterm")
    from evenkeel_cli.render import Printer
    from tests.unit.cli.conftest import _Terminal

    terminal = _Terminal()
    coloured = Printer(terminal, {"TERM": "xterm"})
    coloured.line(coloured.with_glyph("failed", "quarantined"))

    assert "\x1b" not in plain_output
    assert terminal.getvalue() == "\x1b[31m✖\x1b[0m quarantined\n"


def test_output_for_terminal_without_unicode_is_ascii(cli: CliFixture) -> None:
    import io

    from evenkeel_cli.render import Printer

    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    page = Printer(stream, {})
    page.line(page.with_glyph("working", "replacing… 2 × 8 – so"))
    stream.flush()

    assert raw.getvalue() == b"~ replacing~ 2 ? 8 - so\n"


def test_external_text_cannot_control_the_terminal(cli: CliFixture) -> None:
    store(cli.gateway.fakes.ledger, a_job(1, reason="a\x1b[2Jb\x07c\rd\x9b31m"))

    result = cli.run("jobs", "show", "llama-1", terminal=True)

    assert not any(character in result.out for character in "\x1b\x07\r\x9b")


def test_empty_fleet_has_a_message(cli: CliFixture) -> None:
    cli.gateway.fakes.ledger.rows.clear()

    result = cli.run("status", terminal=True)

    assert result.out == dedent("""\
        fleet laptop                                                mode: act  10:15:02Z
        ▲ DEGRADED  0 incidents working, 0 need you
          nothing has been observed yet
          no heartbeat yet from schedule_jobs, sweep_fleet, watch_cluster
          no sweep has counted the fleet yet
        SOURCES 30 unknown ▲
        """)
    outputs = [
        cli.run(*words.split(), terminal=True).err.splitlines() for words in ("jobs ls", "incidents ls", "nodes ls")
    ]
    assert [lines[-1] for lines in outputs] == [
        "No jobs.",
        "No incidents.",
        "No nodes are known yet. The first sweep adds them.",
    ]
    assert {lines[0] for lines in outputs} == {"▲ These facts may be stale. Nothing has read cluster research-eks yet."}
