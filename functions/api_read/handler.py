"""GET routes: what is so, and why. Changes nothing."""

from evenkeel.runtime import api, api_types, entry, wiring
from evenkeel.services.jobs.check_authority import Requester
from evenkeel.services.queries import (
    disclosure,
    explain,
    read_fleet,
    read_incidents,
    read_jobs,
    read_sources,
    read_teams,
)
from evenkeel.services.recovery import hold_automation
from evenkeel.services.storage import pagination, read_setup

app = api.Resolver(lambda: wiring.world().telemetry)


def _reader() -> disclosure.Reader:
    """Return the caller, as what it may read of other teams' jobs is decided by."""
    world = wiring.world()
    caller = app.caller()
    asker = Requester(principal=caller.principal, identity=caller.identity, actor=caller.actor)
    return disclosure.Reader.of(asker, world.ledger, world.settings.operators)


def _ages() -> read_sources.Ages:
    """Return the age of every source of facts."""
    world = wiring.world()
    settings = world.settings
    return read_sources.run(
        world.ledger,
        clusters=settings.kubernetes_clusters,
        has_hyperpod=bool(settings.hyperpod_cluster_arn),
        policy=world.policy,
        now=world.clock.now(),
        is_running=settings.schedules_are_on,
    )


def _seen(document: entry.Json) -> entry.Json:
    """Return an answer that says which of its facts are stale."""
    return read_sources.marked(document, _ages())


@app.get("/v1/status")
def status() -> api.Reply:
    app.query(api_types.NoQuery)
    world = wiring.world()
    settings = world.settings
    now = world.clock.now()
    return app.answer(
        read_fleet.status(
            world.ledger,
            fleet=settings.fleet,
            clusters=settings.kubernetes_clusters,
            mode=settings.mode,
            drills_may_act=settings.drills_may_act,
            sources=_ages(),
            now=now,
            rules=world.policy.modes,
        )
    )


@app.get("/v1/clusters/<cluster>/automation")
def show_automation(cluster: str) -> api.Reply:
    app.query(api_types.NoQuery)
    world = wiring.world()
    settings = world.settings
    app.expect_fleet(cluster, settings.fleet)
    return app.answer(
        hold_automation.show(
            world.ledger,
            mode=settings.mode,
            drills_may_act=settings.drills_may_act,
            now=world.clock.now(),
            rules=world.policy.modes,
        )
    )


@app.get("/v1/jobs")
def list_jobs() -> api.Reply:
    query = app.query(api_types.JobsQuery)
    if query.unmanaged:
        world = wiring.world()
        return app.answer(_seen(read_jobs.list_unmanaged(world.ledger, world.settings.kubernetes_clusters)))
    page = pagination.Request(query.page_size, query.next_page_token)
    asked = read_jobs.Filter(states=query.state, team=query.team, priority_class=query.priority_class)
    world = wiring.world()
    return app.answer(_seen(read_jobs.list_jobs(world.ledger, asked, page, _reader(), world.policy.priority_classes)))


@app.get("/v1/jobs/<job_id>")
def show_job(job_id: str) -> api.Reply:
    app.query(api_types.NoQuery)
    world = wiring.world()
    found = read_jobs.show_job(world.ledger, job_id, _reader(), world.policy, now=world.clock.now())
    return app.answer(_seen(found), undated=("queue",))


@app.get("/v1/jobs/<job_id>/timeline")
def job_timeline(job_id: str) -> api.Reply:
    app.query(api_types.NoQuery)
    return app.answer(read_jobs.job_timeline(wiring.world().ledger, job_id, _reader()))


@app.get("/v1/jobs/<job_id>/why")
def why_job(job_id: str) -> api.Reply:
    app.query(api_types.NoQuery)
    world = wiring.world()
    return app.answer(_seen(explain.why_job(world.ledger, job_id, _reader(), now=world.clock.now())))


@app.get("/v1/jobs/<job_id>/logs")
def job_logs(job_id: str) -> api.Reply:
    query = app.query(api_types.LogsQuery)
    world = wiring.world()
    return app.answer(
        read_jobs.job_logs(
            world.ledger, world.cluster, job_id, _reader(), attempt=query.attempt, rank=query.rank, tail=query.tail
        )
    )


@app.get("/v1/teams")
def list_teams() -> api.Reply:
    app.query(api_types.NoQuery)
    world = wiring.world()
    return app.answer(_seen(read_teams.list_teams(world.ledger, now=world.clock.now())))


@app.get("/v1/teams/<team>/quota")
def show_team(team: str) -> api.Reply:
    app.query(api_types.NoQuery)
    return app.answer(read_setup.show_team(wiring.world().ledger, team))


@app.get("/v1/clusters/<cluster>/quotas")
def show_quotas(cluster: str) -> api.Reply:
    app.query(api_types.NoQuery)
    world = wiring.world()
    app.expect_fleet(cluster, world.settings.fleet)
    return app.answer(read_setup.show_fleet(world.ledger))


@app.get("/v1/incidents")
def list_incidents() -> api.Reply:
    query = app.query(api_types.IncidentsQuery)
    page = pagination.Request(query.page_size, query.next_page_token)
    world = wiring.world()
    return app.answer(_seen(read_incidents.list_incidents(world.ledger, query.state, page, now=world.clock.now())))


@app.get("/v1/incidents/<incident_id>")
def show_incident(incident_id: str) -> api.Reply:
    app.query(api_types.NoQuery)
    world = wiring.world()
    found = read_incidents.show_incident(world.ledger, incident_id, _reader(), now=world.clock.now())
    return app.answer(_seen(found))


@app.get("/v1/incidents/<incident_id>/timeline")
def incident_timeline(incident_id: str) -> api.Reply:
    app.query(api_types.NoQuery)
    return app.answer(read_incidents.incident_timeline(wiring.world().ledger, incident_id, _reader()))


@app.get("/v1/incidents/<incident_id>/why")
def why_incident(incident_id: str) -> api.Reply:
    app.query(api_types.NoQuery)
    world = wiring.world()
    return app.answer(_seen(explain.why_incident(world.ledger, incident_id, _reader(), now=world.clock.now())))


@app.get("/v1/decisions/<decision_id>")
def show_decision(decision_id: str) -> api.Reply:
    app.query(api_types.NoQuery)
    return app.answer(read_incidents.show_decision(wiring.world().ledger, decision_id, _reader()))


@app.get("/v1/nodes")
def list_nodes() -> api.Reply:
    query = app.query(api_types.NodesQuery)
    page = pagination.Request(query.page_size, query.next_page_token)
    return app.answer(_seen(read_fleet.list_nodes(wiring.world().ledger, page, with_gone=bool(query.gone))))


@app.get("/v1/nodes/<node_id>")
def show_node(node_id: str) -> api.Reply:
    app.query(api_types.NoQuery)
    world = wiring.world()
    return app.answer(_seen(read_fleet.show_node(world.ledger, world.settings.kubernetes_clusters, node_id)))


@entry.api
def handler(event: entry.Json, context: entry.LambdaContext) -> entry.Json:
    return app.reply(event, context)
