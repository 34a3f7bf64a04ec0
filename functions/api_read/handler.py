"""GET routes: states and their reasons. They change nothing."""

from evenkeel.runtime import api, api_queries, entry, wiring
from evenkeel.services.jobs.check_role import Requester
from evenkeel.services.queries import disclosure, read_events, sorted_list
from evenkeel.services.queries.costs import read_cost_report, read_receipts, read_showback
from evenkeel.services.queries.fleet import read_nodes, read_overview, read_sources, read_status, read_utilization
from evenkeel.services.queries.incidents import read_execution, read_incidents, read_shadow_report
from evenkeel.services.queries.jobs import read_jobs, read_teams
from evenkeel.services.queries.records import explain, read_audit, read_decisions, read_timelines
from evenkeel.services.recovery import hold_automation
from evenkeel.services.storage import pagination, team_setup

app = api.Resolver(lambda: wiring.ports().telemetry)


def _reader() -> disclosure.Reader:
    """Return the caller, with the facts that decide which jobs it may read."""
    context = wiring.context_to_show()
    caller = app.caller()
    requester = Requester(principal=caller.principal, identity=caller.identity, actor=caller.actor)
    return disclosure.Reader.for_requester(requester, context.ledger, context.site.operators)


def _ages() -> read_sources.Ages:
    """Return the age of every source of facts."""
    context = wiring.context_to_show()
    return read_sources.read_source_ages(context)


def _seen(document: entry.Json) -> entry.Json:
    """Return an answer that says which of its facts are stale."""
    return read_sources.with_staleness(document, _ages())


@app.get("/v1/status")
def status() -> api.Reply:
    app.parse_query(api_queries.NoQuery)
    context = wiring.context_to_show()
    return app.read_reply(read_status.show_status(_ages(), context))


@app.get("/v1/overview")
def overview() -> api.Reply:
    app.parse_query(api_queries.NoQuery)
    context = wiring.context_to_show()
    return app.read_reply(read_overview.show_overview(_ages(), _reader(), context), undated=read_overview.UNDATED)


@app.get("/v1/clusters/<cluster>/automation")
def show_automation(cluster: str) -> api.Reply:
    app.parse_query(api_queries.NoQuery)
    context = wiring.context_to_show()
    app.require_fleet(cluster, context.site.fleet)
    return app.read_reply(hold_automation.show_automation(context))


@app.get("/v1/jobs")
def list_jobs() -> api.Reply:
    query = app.parse_query(api_queries.JobsQuery)
    if query.unmanaged:
        context = wiring.context_to_show()
        return app.read_reply(_seen(read_jobs.list_unmanaged(context)))
    page = pagination.PageRequest(query.page_size, query.next_page_token)
    filters = read_jobs.JobFilter(states=query.state, team=query.team, priority_class=query.priority_class)
    context = wiring.context_to_show()
    jobs = read_jobs.list_jobs(filters, page, _reader(), context, sort=sorted_list.Sort.parse(query.sort))
    return app.read_reply(_seen(jobs))


@app.get("/v1/jobs/<job_id>")
def show_job(job_id: str) -> api.Reply:
    app.parse_query(api_queries.NoQuery)
    context = wiring.context_to_show()
    job = read_jobs.show_job(job_id, _reader(), context)
    return app.read_reply(_seen(job), undated=("queue",))


@app.get("/v1/jobs/<job_id>/timeline")
def job_timeline(job_id: str) -> api.Reply:
    app.parse_query(api_queries.NoQuery)
    return app.read_reply(read_timelines.show_job(job_id, _reader(), wiring.context_to_show()))


@app.get("/v1/jobs/<job_id>/why")
def why_job(job_id: str) -> api.Reply:
    app.parse_query(api_queries.NoQuery)
    context = wiring.context_to_show()
    return app.read_reply(_seen(explain.why_job(job_id, _reader(), context)))


@app.get("/v1/jobs/<job_id>/logs")
def job_logs(job_id: str) -> api.Reply:
    query = app.parse_query(api_queries.LogsQuery)
    context = wiring.context_to_show()
    log = read_jobs.job_logs(
        job_id,
        _reader(),
        context,
        attempt=query.attempt,
        rank=query.rank,
        tail=query.tail,
        timestamps=bool(query.timestamps),
    )
    return app.read_reply(log)


@app.get("/v1/jobs/<job_id>/receipt")
def job_receipt(job_id: str) -> api.Reply:
    app.parse_query(api_queries.NoQuery)
    return app.read_reply(read_receipts.show_job(job_id, _reader(), wiring.context_to_show()))


@app.get("/v1/teams")
def list_teams() -> api.Reply:
    app.parse_query(api_queries.NoQuery)
    context = wiring.context_to_show()
    return app.read_reply(_seen(read_teams.list_teams(context)))


@app.get("/v1/teams/<team>/quota")
def show_team(team: str) -> api.Reply:
    app.parse_query(api_queries.NoQuery)
    return app.read_reply(team_setup.read_team(wiring.context_to_show().ledger, team))


@app.get("/v1/clusters/<cluster>/quotas")
def show_quotas(cluster: str) -> api.Reply:
    app.parse_query(api_queries.NoQuery)
    context = wiring.context_to_show()
    app.require_fleet(cluster, context.site.fleet)
    return app.read_reply(team_setup.read_fleet(context.ledger))


@app.get("/v1/incidents")
def list_incidents() -> api.Reply:
    query = app.parse_query(api_queries.IncidentsQuery)
    page = pagination.PageRequest(query.page_size, query.next_page_token)
    context = wiring.context_to_show()
    return app.read_reply(_seen(read_incidents.list_incidents(query.state, page, context)))


@app.get("/v1/incidents/<incident_id>")
def show_incident(incident_id: str) -> api.Reply:
    app.parse_query(api_queries.NoQuery)
    context = wiring.context_to_show()
    incident = read_incidents.show_incident(incident_id, _reader(), context)
    return app.read_reply(_seen(incident))


@app.get("/v1/incidents/<incident_id>/execution")
def incident_execution(incident_id: str) -> api.Reply:
    app.parse_query(api_queries.NoQuery)
    return app.read_reply(read_execution.show_execution(incident_id, wiring.context_to_show()))


@app.get("/v1/incidents/<incident_id>/timeline")
def incident_timeline(incident_id: str) -> api.Reply:
    app.parse_query(api_queries.NoQuery)
    return app.read_reply(read_timelines.show_incident(incident_id, _reader(), wiring.context_to_show()))


@app.get("/v1/incidents/<incident_id>/why")
def why_incident(incident_id: str) -> api.Reply:
    app.parse_query(api_queries.NoQuery)
    context = wiring.context_to_show()
    return app.read_reply(_seen(explain.why_incident(incident_id, _reader(), context)))


@app.get("/v1/incidents/<incident_id>/receipt")
def incident_receipt(incident_id: str) -> api.Reply:
    app.parse_query(api_queries.NoQuery)
    return app.read_reply(read_receipts.show_incident(incident_id, _reader(), wiring.context_to_show()))


@app.get("/v1/decisions")
def list_decisions() -> api.Reply:
    query = app.parse_query(api_queries.DecisionsQuery)
    page = pagination.PageRequest(query.page_size, query.next_page_token)
    decision_filter = read_decisions.DecisionFilter(subject=query.subject, kinds=query.kind)
    return app.read_reply(read_decisions.list_decisions(decision_filter, page, _reader(), wiring.context_to_show()))


@app.get("/v1/decisions/<decision_id>")
def show_decision(decision_id: str) -> api.Reply:
    app.parse_query(api_queries.NoQuery)
    return app.read_reply(read_incidents.show_decision(wiring.context_to_show().ledger, decision_id, _reader()))


@app.get("/v1/nodes")
def list_nodes() -> api.Reply:
    query = app.parse_query(api_queries.NodesQuery)
    page = pagination.PageRequest(query.page_size, query.next_page_token)
    node_filter = read_nodes.NodeFilter(pool=query.pool, states=query.state, with_gone=bool(query.gone))
    sort = sorted_list.Sort.parse(query.sort)
    return app.read_reply(_seen(read_nodes.list_nodes(wiring.context_to_show().ledger, page, node_filter, sort=sort)))


@app.get("/v1/events")
def list_events() -> api.Reply:
    query = app.parse_query(api_queries.EventsQuery)
    page = pagination.PageRequest(query.page_size, query.next_page_token)
    event_filter = read_events.EventFilter(kinds=query.kind, subject=query.subject, team=query.team, since=query.since)
    return app.read_reply(read_events.list_events(event_filter, page, _reader(), wiring.context_to_show()))


@app.get("/v1/shadow-report")
def show_shadow_report() -> api.Reply:
    query = app.parse_query(api_queries.ShadowReportQuery)
    page = pagination.PageRequest(query.page_size, query.next_page_token)
    filters = read_shadow_report.ShadowFilter(since=query.since, pool=query.pool, window_hours=query.window_hours)
    return app.read_reply(_seen(read_shadow_report.show_shadow_report(filters, page, wiring.context_to_show())))


@app.get("/v1/cost-report")
def show_cost_report() -> api.Reply:
    query = app.parse_query(api_queries.CostReportQuery)
    report_window = read_cost_report.ReportWindow(since=query.since, until=query.until)
    report = read_cost_report.show_cost_report(report_window, _reader(), wiring.context_to_show())
    return app.read_reply(report, undated=("until",))


@app.get("/v1/showback")
def show_showback() -> api.Reply:
    query = app.parse_query(api_queries.ShowbackQuery)
    showback_filter = read_showback.ShowbackFilter(
        since=query.since, until=query.until, team=query.team, label=query.label
    )
    page = pagination.PageRequest(query.page_size, query.next_page_token)
    return app.read_reply(read_showback.read_showback(showback_filter, page, _reader(), wiring.context_to_show()))


@app.get("/v1/audit")
def list_acts() -> api.Reply:
    query = app.parse_query(api_queries.AuditQuery)
    page = pagination.PageRequest(query.page_size, query.next_page_token)
    return app.read_reply(
        read_audit.list_acts(read_audit.AuditFilter(query.since, query.by), page, wiring.context_to_show())
    )


@app.get("/v1/utilization")
def show_utilization() -> api.Reply:
    query = app.parse_query(api_queries.UtilizationQuery)
    utilization = read_utilization.show_utilization(
        query.by, wiring.context_to_show(), cluster=query.cluster, pool=query.pool
    )
    return app.read_reply(_seen(utilization))


@app.get("/v1/nodes/<node_id>")
def show_node(node_id: str) -> api.Reply:
    app.parse_query(api_queries.NoQuery)
    context = wiring.context_to_show()
    return app.read_reply(_seen(read_nodes.show_node(node_id, context)))


@entry.api
def handler(event: entry.Json, context: entry.LambdaContext) -> entry.Json:
    return app.handle_request(event, context)
