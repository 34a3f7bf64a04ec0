"""`make demo`: a training job loses a node in mid-step and resumes. The demo prints each step live.

All output is read from the running parts: the timelines of the API, the log of the job, the stages of the incident.
The demo exits non-zero if the job did not come back, the node was not returned, or the weights differ.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.resources
import json
import random
import re
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from evenkeel_client.client import ApiClient
from evenkeel_local import PROJECT
from evenkeel_local.data_centre import CHECKPOINTS_BUCKET, DataCentre, FleetShape
from evenkeel_local.deployment import DeploymentError
from evenkeel_local.drills import (
    ENDED,
    SETTLED,
    DrillTimeoutError,
    TrainingWork,
    await_all_nodes_ready,
    dead_letter_counts,
    last_step,
    node_of_rank,
    read_object,
    wait_for,
)
from evenkeel_local.engine import EngineError
from evenkeel_local.gpu_cluster import ClusterFailed
from evenkeel_local.processes import interruptible
from evenkeel_local.reference_run import reference_digest

WORK: Final = TrainingWork(nodes=3, steps=80, checkpoint_every=5, step_seconds=0.25, seed=2026)
INJECT_BETWEEN_STEPS: Final = (17, 28)
INJECT_TIMEOUT_SECONDS: Final = 120.0
RECOVERY_SECONDS: Final = 150.0
_RECORDED_WITHIN: Final = timedelta(seconds=5)
"""An entry of a timeline is recorded at most this long after its time, on this machine. Receipts are an exception."""
SETUP_STEPS: Final = 5
"""Steps that the data centre reports while it starts, and the validation of its nodes."""

GLYPHS: Final = {"fault": "✖", "failed": "✖", "settled": "●", "decided": "●", "job": "▶", "node": "◆"}


class DemoOutput:
    """Prints the demo: plain lines in a pipe, and a progress line on a terminal."""

    def __init__(self, *, is_verbose: bool = False) -> None:
        self.is_verbose = is_verbose
        self._is_tty = sys.stdout.isatty()
        self._width = shutil.get_terminal_size((96, 24)).columns
        self._has_live = False
        self._began = time.monotonic()
        self._lock = threading.RLock()

    def print_chapter(self, title: str) -> None:
        self.line("")
        self.line(self._bold(f"── {title}"))

    def line(self, text: str) -> None:
        with self._lock:
            if self._has_live:
                print("\r\x1b[K", end="")
                self._has_live = False
            print(text, flush=True)

    def paragraph(self, text: str, *, head: str = "  ") -> None:
        """Print a text after a head. All lines after the first are indented to the width of its beginning."""
        width = max(40, min(self._width, 120))
        lines = textwrap.wrap(
            text,
            width,
            initial_indent=head,
            subsequent_indent=" " * len(head),
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in lines:
            self.line(line)

    def step(self, text: str) -> None:
        self.paragraph(text, head=f"  {time.monotonic() - self._began:6.1f}s  ")

    def show_progress_line(self, text: str) -> None:
        """Replace the progress line on a terminal; print nothing in a pipe."""
        if self._is_tty:
            with self._lock:
                print(f"\r\x1b[K  {text}"[: self._width + 4], end="", flush=True)
                self._has_live = True

    @contextlib.contextmanager
    def progress(self, count: int) -> Iterator[Callable[[str], None]]:
        """Show a bar of `count` steps while the body runs; call the yielded function as each step begins."""
        begun: list[str] = []
        is_over = threading.Event()

        def step(text: str) -> None:
            begun.append(text)
            self.step(text)

        def draw() -> None:
            start = time.monotonic()
            while not is_over.wait(0.2):
                done = max(0, len(begun) - 1)
                seconds = time.monotonic() - start
                self.show_progress_line(
                    f"{_bar_text(done / count)}  step {min(done + 1, count)} of {count}, {seconds:.0f} s"
                )

        painter = threading.Thread(target=draw, daemon=True)
        painter.start()
        try:
            yield step
        finally:
            is_over.set()
            painter.join()

    def _bold(self, text: str) -> str:
        return f"\x1b[1m{text}\x1b[0m" if self._is_tty else text


class TimelinePrinter:
    """Prints the new entries of timelines, with seconds since the fault."""

    def __init__(self, output: DemoOutput, client: ApiClient) -> None:
        self._output, self._client = output, client
        self._seen: set[str] = set()
        self._waiting: list[tuple[str, str, dict[str, Any]]] = []
        self._last_printed_at = datetime.min.replace(tzinfo=UTC)
        self.injected_at: datetime | None = None

    def mark_as_printed(self, path: str) -> None:
        """Mark the present entries of a timeline as printed."""
        self._seen.update(_entry_key(path, entry) for entry in self._client.get(path)["entries"])

    def print_new(self, *paths: str, until: datetime) -> None:
        """Read the timelines, and print their new entries up to a time, in order.

        Evenkeel records some entries a little later than their time. Later entries wait for the next call.
        Receipts are omitted: each read computes them again, long after their time and with other figures.
        """
        for path in paths:
            lane = "job" if path.startswith("/jobs") else "node"
            for entry in self._client.get(path)["entries"]:
                if entry["kind"] != "receipt" and _entry_key(path, entry) not in self._seen:
                    self._seen.add(_entry_key(path, entry))
                    self._waiting.append((str(entry["at"]), lane, entry))
        self._waiting.sort(key=lambda item: (_parse_time(item[0]), item[1]))
        while self._waiting and _parse_time(self._waiting[0][0]) <= until:
            self._print(*self._waiting.pop(0))

    def print_receipts(self, *paths: str) -> None:
        """Print the receipts of the timelines, without their times."""
        for path in paths:
            for entry in self._client.get(path)["entries"]:
                if entry["kind"] == "receipt":
                    self._output.paragraph(entry["text"], head="  ● ")

    def _print(self, at: str, lane: str, entry: dict[str, Any]) -> None:
        """Print an entry. An entry that is recorded even later has no time, so the times stay in order."""
        since = (_parse_time(at) - (self.injected_at or _parse_time(at))).total_seconds()
        time_text = f"{since:+7.2f}s" if _parse_time(at) >= self._last_printed_at else ""
        self._last_printed_at = max(self._last_printed_at, _parse_time(at))
        head = f"  {time_text:<8}  {lane:<4} {GLYPHS.get(entry['kind'], '●')} {entry['kind']:<9} "
        self._output.paragraph(_shorten_instance_ids(entry["text"]), head=head)


def main() -> int:
    """Run the demo; return its exit code. `--verbose` lists each timing that is shorter than in production."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--verbose", action="store_true", help="list each timing that is shorter than in production")
    output = DemoOutput(is_verbose=options.parse_args().verbose)
    output.line("Evenkeel demo: a node fails and its job resumes, all on this machine.")
    try:
        with interruptible():
            return _run_demo(output)
    except (DrillTimeoutError, EngineError, DeploymentError, ClusterFailed) as failure:
        output.paragraph(f"✖ {failure}")
        return 1
    except KeyboardInterrupt:
        output.line("\nInterrupted. All processes of the demo have ended.")
        return 130


def _run_demo(output: DemoOutput) -> int:
    output.print_chapter("Start a data centre on this machine")
    with ThreadPoolExecutor(1) as background:
        reference: Future[str] = background.submit(reference_digest, WORK.nodes, WORK.steps, WORK.seed)
        run_dir = PROJECT / ".evenkeel" / "demo"
        with contextlib.ExitStack() as resources:
            with output.progress(SETUP_STEPS) as step:
                centre = resources.enter_context(DataCentre.start(run_dir, fleet=FleetShape(nodes=5), say=step))
                client = centre.client(warn=output.step)
                step("waiting until every node is validated")
                await_all_nodes_ready(client, centre)
            output.step(f"{centre.node_count} nodes are validated and in service")
            return _inject_and_recover(output, centre, client, reference)


def _inject_and_recover(output: DemoOutput, centre: DataCentre, client: ApiClient, reference: Future[str]) -> int:
    output.print_chapter(
        f"Run a training job: {WORK.nodes} nodes, {WORK.steps} steps, a checkpoint every {WORK.checkpoint_every} steps"
    )
    uri = f"s3://{CHECKPOINTS_BUCKET}/demo"
    job_id = client.post("/jobs", WORK.submission("demo", uri))["jobId"]
    path = f"/jobs/{job_id}"
    output.step(f"submitted {job_id}, which saves checkpoints to {uri}")
    fault_step = random.SystemRandom().randint(*INJECT_BETWEEN_STEPS)

    def has_reached_fault_step() -> bool:
        step = last_step(client, job_id)
        output.show_progress_line(_progress_text(step))
        return step >= fault_step

    wait_for(f"step {fault_step}", INJECT_TIMEOUT_SECONDS, has_reached_fault_step)
    job = client.get(path)
    for attempt in job["attempts"][:1]:
        names = ", ".join("…" + node["name"][-6:] for node in attempt["nodes"])
        output.step(f"attempt {attempt['attempt']} runs on {names}")
    return _recover(output, centre, client, job, fault_step, reference)


def _recover(
    output: DemoOutput,
    centre: DataCentre,
    client: ApiClient,
    job: dict[str, Any],
    fault_step: int,
    reference: Future[str],
) -> int:
    job_id, path = job["jobId"], f"/jobs/{job['jobId']}"
    timelines = TimelinePrinter(output, client)
    timelines.mark_as_printed(f"{path}/timeline")
    node = node_of_rank(centre, job, random.SystemRandom().randrange(WORK.nodes))
    output.print_chapter(f"Step {fault_step}: break a GPU of {node}")
    timelines.injected_at = datetime.now(UTC)
    centre.cluster.control("POST", "faults", {"fault": "gpu-xid79", "node": node})
    output.paragraph(
        "Xid 79: a GPU has fallen off the bus; the rank on it died", head=f"  {0:+7.2f}s  node ✖ fault     "
    )
    incident: dict[str, Any] = {}

    def timeline_paths() -> list[str]:
        return [f"{path}/timeline", *([f"/incidents/{incident['incidentId']}/timeline"] if incident else [])]

    def is_recovery_over() -> bool:
        nonlocal incident, job
        incidents = [item for item in client.get("/incidents")["items"] if item["node"]["name"] == node]
        incident = incidents[0] if incidents else {}
        job = client.get(path)
        timelines.print_new(*timeline_paths(), until=datetime.now(UTC) - _RECORDED_WITHIN)
        output.show_progress_line(
            f"{job['state'].lower()}, attempt {job['currentAttempt']}  {_progress_text(last_step(client, job_id))}"
        )
        return job["state"] in ENDED and incident.get("state") in SETTLED

    wait_for("the job to end and the incident to settle", RECOVERY_SECONDS, is_recovery_over)
    timelines.print_new(*timeline_paths(), until=datetime.max.replace(tzinfo=UTC))
    incident = client.get(f"/incidents/{incident['incidentId']}")
    checks = _check_result(output, centre, job, incident, reference)
    _print_durations(output, timelines.injected_at, job, incident)
    output.print_chapter("What the failure cost")
    timelines.print_receipts(*timeline_paths())
    _print_shortened_timings(output)
    _print_summary(output, timelines.injected_at, fault_step, job, incident, is_proven=all(checks))
    _print_next_commands(output)
    return 0 if all(checks) else 1


def _check_result(
    output: DemoOutput, centre: DataCentre, job: dict[str, Any], incident: dict[str, Any], reference: Future[str]
) -> list[bool]:
    output.print_chapter("Check the result")
    document = read_object(centre, f"s3://{CHECKPOINTS_BUCKET}/demo", f"result/attempt={job['currentAttempt']}.json")
    digest = str(json.loads(document)["digest"]) if document else "no result"
    reference_digest_text = reference.result(timeout=60)
    output.line(f"  weights, this run                    {digest[:30]}…")
    output.line(f"  weights, same run without the fault  {reference_digest_text[:30]}…")
    dead_letters = dead_letter_counts(centre)
    checks = [
        (job["state"] == "SUCCEEDED", f"the job ended {job['state']}"),
        (job["currentAttempt"] >= 2, f"it took {job['currentAttempt']} attempts"),
        (digest == reference_digest_text, "the final weights are identical"),
        (
            incident["state"] == "RECOVERED",
            f"the incident ended {incident['state']}: {_shorten_instance_ids(incident['outcome'])}",
        ),
        (not dead_letters, f"dead-letter queues: {dead_letters or 'empty'}"),
    ]
    for ok, text in checks:
        output.paragraph(text, head=f"  {'●' if ok else '✖'} ")
    return [ok for ok, _ in checks]


def _print_durations(output: DemoOutput, injected_at: datetime, job: dict[str, Any], incident: dict[str, Any]) -> None:
    output.print_chapter("Time of each stage (seconds after the fault, on this machine)")
    stages = incident["stages"]
    attempt, last_attempt = job["attempts"][0], job["attempts"][-1]
    rows = [
        ("detected", stages.get("detectedAt"), "the health agent sent the first signal"),
        ("planned", stages.get("plannedAt"), ""),
        ("cordoned", stages.get("cordonedAt"), "Kubernetes places no new pods on the node"),
        ("job stopped", stages.get("jobsStoppedAt"), "all ranks of the job stop together"),
        ("attempt ended", last_attempt.get("endedAt"), "the first attempt ended with its node"),
        (
            "job admitted",
            attempt.get("admittedAt"),
            "on " + ", ".join("…" + node["name"][-6:] for node in attempt["nodes"]),
        ),
        ("job running", attempt.get("runningAt"), _resumed_from(attempt)),
        ("repair requested", stages.get("repairRequestedAt"), " then ".join(incident["repairs"])),
        (
            "node back",
            stages.get("nodeBackAt"),
            _shorten_instance_ids(str(incident.get("replacementInstanceId") or "")),
        ),
        ("node returned", stages.get("returnedAt"), "validated and ready for jobs"),
    ]
    for name, at, note in rows:
        if at:
            output.line(f"  {name:<16} {(_parse_time(at) - injected_at).total_seconds():7.2f}   {note}".rstrip())


def _resumed_from(attempt: dict[str, Any]) -> str:
    resume_point = attempt.get("resumeFrom")
    return (
        f"from step {resume_point['step']} of attempt {resume_point['attempt']}, checksums verified"
        if resume_point
        else "from step 0"
    )


def _print_shortened_timings(output: DemoOutput) -> None:
    folder = importlib.resources.files("evenkeel").joinpath("policy")
    production, local = (
        json.loads(folder.joinpath(f"{name}.json").read_text("utf-8")) for name in ("production", "local")
    )
    shorter = [
        f"  {section + '.' + name:<36} {local_value:>6g}  instead of {value:>12,}"
        for section, values in production.items()
        for name, value in (values.items() if isinstance(values, dict) else ())
        if (local_value := local.get(section, {}).get(name, value)) != value and isinstance(value, int | float)
    ]
    replacement = f"{FleetShape().delays['replace']:g} s"
    output.line("")
    output.paragraph(
        f"Here a replacement takes {replacement}; AWS publishes about 940 s on p5.48xlarge. {len(shorter)} other waits "
        "are also shorter than in production. make demo VERBOSE=1 lists them."
    )
    if output.is_verbose:
        output.print_chapter("Timings that the demo shortens (seconds)")
        for line in shorter:
            output.line(line)


def _print_summary(
    output: DemoOutput,
    injected_at: datetime,
    fault_step: int,
    job: dict[str, Any],
    incident: dict[str, Any],
    *,
    is_proven: bool,
) -> None:
    """Print a summary of the run in a few sentences."""
    stages, first_attempt = incident["stages"], job["attempts"][0]

    def after(at: str | None) -> str:
        return f"after {(_parse_time(at) - injected_at).total_seconds():.1f} s" if at else "at an unknown time"

    node = _shorten_instance_ids(incident["node"]["name"])
    output.print_chapter("What happened")
    for text in (
        f"A GPU of {node} failed at step {fault_step}. Evenkeel cordoned it {after(stages.get('cordonedAt'))}.",
        f"The job ran again {after(first_attempt.get('runningAt'))}, {_resumed_from(first_attempt)}.",
        f"The node was replaced, validated and back in service {after(stages.get('returnedAt'))}.",
        "The final weights equal the weights of a run without the fault." if is_proven else "A check above failed.",
    ):
        output.paragraph(text)


def _print_next_commands(output: DemoOutput) -> None:
    output.print_chapter("Try next")
    for command in (
        "make dev                     start a data centre, and keep it running",
        ".venv/bin/evenkeel console   see the whole fleet in your browser",
        "docs/start.md                run a job, break its node, ask why",
    ):
        output.line(f"  {command}")


def _progress_text(step: int) -> str:
    return f"step {step:>3}/{WORK.steps} {_bar_text(step / WORK.steps)}"


def _bar_text(share: float) -> str:
    done = round(share * 30)
    return f"{'█' * done}{'░' * (30 - done)}"


def _shorten_instance_ids(text: str) -> str:
    """Shorten instance ids to their last digits, as in the table below, so that the line fits."""
    return re.sub(r"(?:hyperpod-)?i-[0-9a-f]{11}([0-9a-f]{6})", r"…\1", text)


def _entry_key(path: str, entry: dict[str, Any]) -> str:
    return f"{path} {entry['at']} {entry['kind']} {entry['text']}"


def _parse_time(text: str) -> datetime:
    return datetime.fromisoformat(text)


if __name__ == "__main__":
    sys.exit(main())
