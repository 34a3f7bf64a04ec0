"""The pages of the console in a real browser, against the real API functions."""

import dataclasses
import json
import re
import threading
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from evenkeel.domain.values import rfc3339
from evenkeel.ports import ExecutionState, ExecutionTrace, Put, Row, RowChange, StateVisit, WorkflowName
from evenkeel.services.publishing import publish_events
from evenkeel.services.storage import fleet_rows, incident_rows, job_rows
from evenkeel_cli.commands import lookup
from evenkeel_cli.console.server import ConsoleServer
from tests import browser
from tests.fakes import InMemoryLedger
from tests.fakes.cluster import CLUSTER, instance_id
from tests.fakes.system import A_MOMENT
from tests.fakes.world import a_context
from tests.unit.api.gateway import ROOT, ApiResponse
from tests.unit.api.seeds import ASKS, a_fleet_node, a_job, an_incident, stored
from tests.unit.api.test_receipts import a_lost_job, an_incident_of
from tests.unit.cli.busy_fleet import busy_fleet
from tests.unit.cli.conftest import CliFixture
from tests.unit.cli.recovery_fixture import recovery_at_work

CHANGED = fleet_rows.nodes_changed_key()
NOW = rfc3339(A_MOMENT)
NEXT = re.compile(r"validate the replacement, at the latest by \d\d:\d\d:\d\dZ")
POLL_MILLISECONDS = 3_000
"""The page reads the overview this often. In this time exactly one of its timers is due."""
PAGES = (
    *("", "incidents", "incidents/inc-0000000001", "nodes", f"nodes/{instance_id(1)}"),
    *("jobs", "jobs/job-0000000001", "queue", "teams", "teams/default", "costs", "policy", "events", "nowhere"),
)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser.running() as started:
        yield started


@pytest.fixture
def console(served: CliFixture) -> Iterator[ConsoleServer]:
    server = ConsoleServer(lookup.current_client())
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join(5)


@pytest.fixture
def page(chromium: Browser, console: ConsoleServer) -> Iterator[Page]:
    """A signed-in page. The test fails after a script error or a request to another address."""
    context = chromium.new_context(viewport={"width": 1280, "height": 800})
    opened = context.new_page()
    opened.set_default_timeout(10_000)
    wrong: list[str] = []
    own = f"http://127.0.0.1:{console.server_port}/"
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("request", lambda request: None if request.url.startswith(own) else wrong.append(request.url))
    opened.goto(console.link)
    opened.wait_for_selector(".panel")
    yield opened
    context.close()
    assert wrong == []


def open_page(page: Page, words: str) -> None:
    """Open a page of the console, and wait until every panel has loaded."""
    page.evaluate("words => { location.hash = `#/${words}`; }", words)
    expect(page.locator("main .loading")).to_have_count(0)


def test_operator_approves_a_plan_and_sees_the_answer(served: CliFixture, page: Page) -> None:
    recovery_at_work(served.gateway)
    asking = an_incident(2, plan=ASKS)
    stored(served.gateway.fakes.ledger, asking)

    page.reload()
    page.locator("#needs-you").get_by_role("link").first.click()
    expect(page.get_by_text("Waits for approval. Plan: replace, and move the jobs.").first).to_be_visible()
    page.get_by_role("button", name="Approve…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Evenkeel checks every guardrail again before it acts.")
    dialog.get_by_label("Reason").fill("seen the log")
    dialog.get_by_role("button", name="Approve", exact=True).click()
    expect(dialog.get_by_role("status")).to_contain_text("approved the plan")
    dialog.get_by_role("button", name="Close").click()

    expect(page.get_by_text("approved it")).to_be_visible()
    expect(page.get_by_role("button", name="Approve…")).to_have_count(0)


def test_operator_acknowledges_an_incident(served: CliFixture, page: Page) -> None:
    recovery_at_work(served.gateway)
    open_page(page, "incidents/inc-0000000001")
    expect(page.get_by_text("by nobody yet")).to_be_visible()

    page.get_by_role("button", name="Acknowledge…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Reason").fill("I look at it")
    dialog.get_by_role("button", name="Acknowledge", exact=True).click()
    expect(dialog.get_by_role("status")).to_contain_text("works on it")
    dialog.get_by_role("button", name="Close").click()

    expect(page.locator("dd", has_text="I look at it")).to_be_visible()


def test_incident_shows_its_next_step_and_when(served: CliFixture, page: Page) -> None:
    recovery_at_work(served.gateway)

    page.reload()
    expect(page.get_by_text(NEXT).first).to_be_visible()
    open_page(page, "incidents/inc-0000000001")
    expect(page.get_by_text(NEXT).first).to_be_visible()


def test_incident_shows_guardrails_that_do_not_block(served: CliFixture, page: Page) -> None:
    recovery_at_work(served.gateway)
    open_page(page, "incidents/inc-0000000001")

    row = page.get_by_role("region", name="Guardrails").get_by_role("row").filter(has_text="fleet repairs")

    expect(row).to_contain_text("passes")
    expect(row).to_contain_text("10")
    expect(row.locator("time")).to_be_visible()


def test_lost_answer_of_a_change_keeps_its_key(served: CliFixture, page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(served.gateway.fakes.ledger, a_fleet_node(1))
    open_page(page, f"nodes/{instance_id(1)}")
    page.get_by_role("button", name="Cordon…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Reason").fill("fans are loud")
    keys: list[str] = []
    inner = served.answer
    cut = ApiResponse(502, {}, "<html>Bad Gateway</html>")

    def answer(method: str, path: str, body: str, headers: dict[str, str]) -> ApiResponse:
        if method != "POST":
            return inner(method, path, body, headers)
        keys.append(headers["Idempotency-Key"])
        done = inner(method, path, body, headers)
        return cut if len(keys) == 1 else done

    monkeypatch.setattr(served, "answer", answer)
    dialog.get_by_role("button", name="Cordon", exact=True).click()
    expect(dialog.get_by_role("alert")).to_be_visible()
    dialog.get_by_role("button", name="Cordon", exact=True).click()
    expect(dialog.get_by_role("status")).to_be_visible()

    assert len(keys) == 2
    assert len(set(keys)) == 1


def test_click_on_a_column_title_sorts_the_list(served: CliFixture, page: Page) -> None:
    stored(served.gateway.fakes.ledger, *(a_fleet_node(number, accelerators_in_use=9 - number) for number in (1, 2, 3)))
    open_page(page, "nodes")
    rows = page.get_by_role("region", name="Nodes", exact=True).last.locator("tbody tr")
    column = page.get_by_role("columnheader", name="GPUs in use")

    column.get_by_role("link").click()
    expect(rows.first).to_contain_text(instance_id(3))
    expect(column).to_have_attribute("aria-sort", "ascending")
    column.get_by_role("link").click()
    expect(rows.first).to_contain_text(instance_id(1))
    page.reload()
    expect(column).to_have_attribute("aria-sort", "descending")
    column.get_by_role("link").click()
    expect(column).to_have_attribute("aria-sort", "none")


def test_live_figures_need_only_the_overview_request(served: CliFixture, page: Page) -> None:
    busy_fleet(served.gateway)
    page.reload()
    open_page(page, "")
    expect(page.get_by_text("p5-on-demand").first).to_be_visible()
    page.wait_for_load_state("networkidle")

    paths = {path for _, path, _ in served.requests}

    assert "/v1/overview" in paths
    assert "/v1/status" not in paths, "it reads every node and job"


def test_replacement_shows_its_plan_before_it_starts(served: CliFixture, page: Page) -> None:
    stored(served.gateway.fakes.ledger, a_fleet_node(1))

    open_page(page, f"nodes/{instance_id(1)}")
    page.get_by_role("button", name="Replace…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Reason").fill("fans are loud")
    dialog.get_by_role("button", name="Show the plan").click()
    expect(dialog.get_by_role("heading", name="Plan")).to_be_visible()

    changes = [body for (method, path, _), body in zip(served.requests, served.bodies, strict=True) if method == "POST"]
    assert all('"dryRun": true' in body.replace('":true', '": true') for body in changes)
    dialog.get_by_role("button", name="Replace the node").click()
    expect(dialog.get_by_role("status")).to_contain_text("The recovery starts.")


def test_refused_change_shows_the_reason(served: CliFixture, page: Page) -> None:
    stored(served.gateway.fakes.ledger, a_job(1, state="RUNNING"))
    open_page(page, "jobs/job-0000000001")
    page.get_by_role("button", name="Priority…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Priority class").fill("unknown-class")
    dialog.get_by_label("Reason", exact=True).fill("a test")

    dialog.get_by_role("button", name="Change").click()

    expect(dialog.get_by_role("alert")).to_contain_text("unknown-class")


def test_incident_and_job_show_their_receipt(served: CliFixture, page: Page) -> None:
    job, lost, again = a_lost_job()
    stored(served.gateway.fakes.ledger, job, lost, again, an_incident_of(job))

    open_page(page, "incidents/inc-0000000001")
    cost = page.get_by_role("region", name="Cost", exact=True)
    expect(cost).to_contain_text("6.4 GPU-hours, $44.03")
    stages = cost.get_by_role("region", name=f"Stages of {job.job_id}")
    expect(stages.get_by_role("row", name="wait for nodes")).to_contain_text("$7.34")
    expect(stages.get_by_role("row", name="restore")).to_contain_text("unknown")
    expect(cost).to_contain_text("Estimates, not measurements")

    open_page(page, f"jobs/{job.job_id}")
    time = page.get_by_role("region", name="Time of the job")
    expect(time.get_by_role("row", name="lost")).to_contain_text("10.0 %")


def test_costs_page_ranks_changes_and_shows_the_window(served: CliFixture, page: Page) -> None:
    job, lost, again = a_lost_job()
    nodes = [a_fleet_node(number) for number in range(1, 6)]
    stored(served.gateway.fakes.ledger, job, lost, again, an_incident_of(job), *nodes)

    open_page(page, "costs")
    changes = page.get_by_role("region", name="Changes")
    expect(changes.get_by_role("row").nth(1)).to_contain_text("Fill or return idle committed nodes")
    expect(page.get_by_role("region", name="Use and cost", exact=True)).to_contain_text("p5-workers")
    page.get_by_label("Days").select_option("7")
    expect(page.get_by_role("region", name="Costs")).to_contain_text("2026-10-27T11:00")


def test_panels_are_marked_stale_while_the_api_fails(
    served: CliFixture, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    recovery_at_work(served.gateway)
    open_page(page, "jobs")
    expect(page.get_by_role("link", name="llama-1")).to_be_visible()

    silent = ApiResponse(503, {}, '{"message": "Service Unavailable"}')
    monkeypatch.setattr(served, "answer", lambda *_request: silent)

    expect(page.locator(".panel.stale")).to_contain_text("Not current since", timeout=10_000)
    expect(page.get_by_role("link", name="llama-1")).to_be_visible()


def test_hidden_browser_tab_sends_no_requests(served: CliFixture, page: Page) -> None:
    page.clock.install()
    page.reload()
    open_page(page, "")
    with page.expect_request("**/v1/overview"):
        page.clock.run_for(6_000)
    page.evaluate("""() => {
        Object.defineProperty(document, 'hidden', {get: () => true, configurable: true});
        document.dispatchEvent(new Event('visibilitychange'));
    }""")
    page.wait_for_load_state("networkidle")
    before = len(served.requests)

    page.clock.run_for(60_000)

    assert len(served.requests) == before


def test_text_from_jobs_is_never_rendered_as_html(served: CliFixture, page: Page) -> None:
    hostile = "<img src=x onerror=document.title='owned'>"
    stored(served.gateway.fakes.ledger, a_job(1, reason=hostile))

    open_page(page, "queue")

    expect(page.get_by_text(hostile)).to_be_visible()
    expect(page.locator("main img")).to_have_count(0)


def change_node(ledger: InMemoryLedger, number: int) -> None:
    """Change a node and record that nodes changed, as a sweep does."""
    for key, change in (
        (fleet_rows.node_key(CLUSTER, instance_id(number)), {"isReady": False}),
        (CHANGED, {"at": NOW}),
    ):
        row = ledger.get(key) or Row(key, {})
        ledger.commit(Put(dataclasses.replace(row, doc=row.doc | change)))


@pytest.mark.parametrize("size", [2, 2000])
def test_changed_node_reaches_the_grid_within_five_seconds(served: CliFixture, page: Page, size: int) -> None:
    ledger = served.gateway.fakes.ledger
    stored(ledger, *(a_fleet_node(number) for number in range(1, size + 1)))
    page.clock.install()
    page.reload()
    expect(page.locator(".square")).to_have_count(size, timeout=20_000)
    square = page.locator(".square", has=page.locator(f"xpath=self::*[contains(@title, '{instance_id(2)}')]"))
    expect(square).to_have_attribute("title", re.compile("in service"))
    with page.expect_response(lambda response: "/v1/overview" in response.url):
        page.clock.run_for(POLL_MILLISECONDS)

    change_node(ledger, 2)
    with page.expect_response(lambda response: "/v1/overview" in response.url):
        page.clock.run_for(POLL_MILLISECONDS)

    expect(square).to_have_attribute("title", re.compile("starting"))


def test_unchanged_nodes_are_not_read_again(served: CliFixture, page: Page) -> None:
    stored(served.gateway.fakes.ledger, a_fleet_node(1))
    page.clock.install()
    page.reload()
    expect(page.locator(".square")).to_have_count(1)

    def poll() -> None:
        with page.expect_response(lambda response: "/v1/overview" in response.url):
            page.clock.run_for(6_000)

    # The grid reads all nodes once more, 5 s after the first time.
    with page.expect_response(lambda response: "/v1/nodes" in response.url):
        poll()
    served.requests.clear()
    for _ in range(5):
        poll()

    assert "/v1/nodes" not in {path.split("?")[0] for _, path, _ in served.requests}


def test_problem_comes_first_among_2000_nodes(served: CliFixture, page: Page) -> None:
    nodes = [a_fleet_node(number, is_ready=number != 1234) for number in range(1, 2001)]
    stored(served.gateway.fakes.ledger, *nodes)

    page.reload()
    squares = page.locator(".square")
    expect(squares).to_have_count(2000, timeout=20_000)

    assert instance_id(1234) in (squares.first.get_attribute("title") or "")
    box = squares.first.bounding_box()
    assert box is not None
    assert box["y"] < 800, "visible without scrolling"


def test_long_word_in_an_outcome_fits_small_screens(served: CliFixture, page: Page) -> None:
    outcome = f"The command of the lifecycle script failed: {'x' * 120}"
    stored(served.gateway.fakes.ledger, an_incident(1, state="FAILED", outcome=outcome))
    page.set_viewport_size({"width": 360, "height": 800})

    for words in ("", "incidents/inc-0000000001"):
        open_page(page, words)
        expect(page.get_by_text("xxxxx").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, words


def test_grid_is_loading_until_the_nodes_are_read(
    served: CliFixture, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(served.gateway.fakes.ledger, a_fleet_node(1))
    inner, may_answer = served.answer, threading.Event()

    def answer(method: str, path: str, body: str, headers: dict[str, str]) -> ApiResponse:
        if path.startswith("/v1/nodes"):
            may_answer.wait(20)
        return inner(method, path, body, headers)

    monkeypatch.setattr(served, "answer", answer)
    page.reload()
    grid = page.get_by_role("region", name="Nodes")
    expect(grid).to_contain_text("Loading…")
    expect(grid).not_to_contain_text("No node is known yet.")
    may_answer.set()

    expect(page.locator(".square")).to_have_count(1)


def test_keyboard_shortcuts_move_the_selection_and_open_an_item(served: CliFixture, page: Page) -> None:
    recovery_at_work(served.gateway)
    page.keyboard.press("g")
    page.keyboard.press("j")
    expect(page.get_by_role("link", name="llama-1")).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.locator("tr[data-here]")).to_have_count(1)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Attempts")).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()


def test_list_of_changes_links_its_subjects_and_keeps_its_filter(served: CliFixture, page: Page) -> None:
    world = served.gateway.fakes
    job, incident = a_job(1), an_incident(2)
    publish_events.run(RowChange(None, job_rows.job_row(job, 1), A_MOMENT), a_context(world))
    publish_events.run(RowChange(None, incident_rows.incident_row(incident, 1), A_MOMENT), a_context(world))

    open_page(page, "events")
    table = page.get_by_role("region", name="Events")
    expect(table.locator("tbody tr")).to_have_count(2)
    expect(table.get_by_role("link", name=job.job_id)).to_have_attribute("href", f"#/jobs/{job.job_id}")
    page.get_by_label("Kind").select_option("Incident Opened")

    expect(table.locator("tbody tr")).to_have_count(1)
    expect(table).to_contain_text("GPU")
    page.reload()
    expect(page.get_by_role("region", name="Events").locator("tbody tr")).to_have_count(1)


def test_workflow_graph_highlights_current_state_and_links_to_aws(served: CliFixture, page: Page) -> None:
    incident = an_incident(1)
    stored(served.gateway.fakes.ledger, incident)
    arn = f"arn:aws:states:us-west-2:111122223333:execution:evenkeel-recover_node:{incident.execution_name}"
    served.gateway.fakes.workflows.traces[WorkflowName.RECOVER_NODE, incident.execution_name] = ExecutionTrace(
        arn=arn,
        state=ExecutionState.RUNNING,
        started_at=A_MOMENT,
        stopped_at=None,
        definition=json.loads((ROOT / "statemachines" / "recover_node.asl.json").read_text(encoding="utf-8")),
        visits=(StateVisit("PlanRecovery", A_MOMENT, A_MOMENT), StateVisit("CordonNode", A_MOMENT, None)),
        is_cut=False,
    )

    open_page(page, f"incidents/{incident.incident_id}")

    panel = page.get_by_role("region", name="Execution")
    expect(panel.locator("[aria-current=step]")).to_have_count(1)
    expect(panel.locator("[aria-current=step]")).to_contain_text("CordonNode")
    expect(panel.locator(".step.ok")).to_contain_text("PlanRecovery")
    expect(panel.get_by_text("PlanResume")).to_be_visible()
    expect(panel.get_by_role("link", name="AWS console")).to_have_attribute(
        "href", f"https://us-west-2.console.aws.amazon.com/states/home?region=us-west-2#/v2/executions/details/{arn}"
    )
    states = panel.locator(".step").count()
    panel.get_by_label("all states").check()
    assert panel.locator(".step").count() > states


def test_policy_draft_shows_its_diff_and_replayed_decisions(served: CliFixture, page: Page) -> None:
    open_page(page, "policy")
    draft = page.get_by_label("Changes to the shipped policy, as JSON")
    draft.fill('{"guardrails": {"maxRepairsInFlight": 1}')
    expect(page.get_by_role("alert")).to_be_visible()
    draft.fill('{"watch": {"maxRuns": 9}}')

    expect(page.get_by_role("region", name="Differences")).to_contain_text("watch.maxRuns")
    page.get_by_role("button", name="Test on recorded decisions").click()
    expect(page.get_by_role("status")).to_contain_text("decisions since")
    page.get_by_role("button", name="Apply…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Reason").fill("a test")
    dialog.get_by_role("button", name="Apply", exact=True).click()
    expect(dialog.get_by_role("status")).to_contain_text("Change 1 is in force.")


def test_chart_names_its_peak_and_each_hour(served: CliFixture, page: Page) -> None:
    busy_fleet(served.gateway)
    open_page(page, "costs")
    chart = page.locator(".chart svg")

    expect(chart).to_have_attribute("aria-label", re.compile(r"Peak: [\d.]+ GPUs at .*Z\. Committed now: \d+ GPUs\."))
    assert chart.locator("title").filter(has_text="GPUs on committed nodes").count() > 0


@pytest.mark.parametrize("words", ["incidents/inc-0000000099", "jobs/job-0000000099"])
def test_page_of_a_missing_item_shows_one_error(served: CliFixture, page: Page, words: str) -> None:
    open_page(page, words)

    expect(page.locator("main .problem")).to_have_count(1)
    name, number = words.removesuffix("/").split("/")
    expect(page.locator("main .problem")).to_contain_text(f"There is no {name[:-1]} {number}. NOT_FOUND")


def test_team_without_settings_shows_no_error(served: CliFixture, page: Page) -> None:
    busy_fleet(served.gateway)
    open_page(page, "teams/default")

    expect(page.get_by_text("The platform has not set up this team.")).to_be_visible()
    expect(page.locator("main .problem")).to_have_count(0)


def test_incident_shows_the_age_of_guardrail_readings_without_scrolling(served: CliFixture, page: Page) -> None:
    busy_fleet(served.gateway)
    open_page(page, "incidents/inc-0000000001")
    guardrails = page.get_by_role("region", name="Guardrails")

    expect(guardrails).to_be_visible()
    assert guardrails.evaluate("region => region.scrollWidth <= region.clientWidth")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pages_are_accessible_and_fit_small_screens(served: CliFixture, page: Page, theme: str) -> None:
    busy_fleet(served.gateway)
    page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    if browser.AXE.exists():
        page.evaluate(browser.AXE.read_text(encoding="utf-8"))

    findings = []
    for words in PAGES:
        open_page(page, words)
        for width in (360, 1280):
            page.set_viewport_size({"width": width, "height": 800})
            wide = page.evaluate("document.documentElement.scrollWidth")
            if wide > width:
                findings.append(f"{words or 'overview'} is {wide} px wide on a screen of {width}")
            if browser.AXE.exists():
                report = page.evaluate("axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa']})")
                findings += [
                    f"{words or 'overview'} at {width}: {rule['id']}: {rule['nodes'][0]['html'][:120]}"
                    for rule in report["violations"]
                ]

    assert findings == []
