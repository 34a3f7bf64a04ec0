"""Routes of administrators: the policy (the shipped policy with the site's changes), the teams and the quotas."""

from evenkeel.runtime import api, api_queries, entry, request_bodies, wiring
from evenkeel.services.admin import change_policy, remove_team, set_quotas, try_policy
from evenkeel.services.queries import read_policy
from evenkeel.services.storage import pagination, team_setup

app = api.Resolver(lambda: wiring.ports().telemetry)


@app.get("/v1/clusters/<cluster>/policy")
def show_policy(cluster: str) -> api.Reply:
    query = app.parse_query(api_queries.PageQuery)
    context = wiring.context()
    app.require_fleet(cluster, context.site.fleet)
    page = pagination.PageRequest(query.page_size, query.next_page_token)
    policies = wiring.ports().policies
    policy_in_force = policies.in_force()
    shown = read_policy.show_policy(policy_in_force, policies.change, ledger=context.ledger, page=page)
    return app.read_reply(shown)


@app.post("/v1/clusters/<cluster>/policy")
def give_policy(cluster: str) -> api.Reply:
    context = wiring.context()
    app.require_fleet(cluster, context.site.fleet)
    body = app.parse_body(request_bodies.PolicyBody)
    request = change_policy.ChangePolicyRequest(
        changes=body.changes,
        by=app.caller().actor,
        reason=body.reason,
        based_on=body.based_on,
        request_id=app.request_id(),
        fingerprint=app.fingerprint(),
    )
    policies = wiring.ports().policies
    change = change_policy.run(
        request, ledger=context.ledger, base=policies.base, now=context.now, kept_hash=policies.kept_hash
    )
    return app.change_reply(change.to_json())


@app.post("/v1/clusters/<cluster>/policy/test")
def try_policy_out(cluster: str) -> api.Reply:
    context = wiring.context()
    app.require_fleet(cluster, context.site.fleet)
    body = app.parse_body(request_bodies.PolicyTestBody)
    policies, now = wiring.ports().policies, context.now
    comparison = try_policy.run(
        body.changes,
        ledger=context.ledger,
        base=policies.base,
        current=policies.policy_to_show(),
        stack_mode=context.mode,
        since=body.since,
        now=now,
    )
    return app.change_reply(comparison)


@app.put("/v1/teams/<team>/quota")
def set_team(team: str) -> api.Reply:
    body = app.parse_body(request_bodies.TeamBody)
    app.require(body.team.name == team, "VALIDATION_FAILED", f"team.name: the path names {team}")
    return _set(body.team, body.reason, app.expected_version())


@app.delete("/v1/teams/<team>")
def remove_a_team(team: str) -> api.Reply:
    context = wiring.context()
    reason = app.parse_query(api_queries.RemovalQuery).reason
    request = remove_team.RemoveTeamRequest(
        team=team, expected=app.expected_version(), by=app.caller().actor, reason=reason
    )
    return app.change_reply(remove_team.run(request, context).to_json())


@app.put("/v1/clusters/<cluster>/quotas")
def set_quotas_of_the_fleet(cluster: str) -> api.Reply:
    app.require_fleet(cluster, wiring.context().site.fleet)
    body = app.parse_body(request_bodies.QuotasBody)
    return _set(body.quotas, body.reason, app.expected_version())


def _set(part: set_quotas.SetupPart, reason: str, expected: int) -> api.Reply:
    context = wiring.context()
    request = set_quotas.SetQuotasRequest(part=part, expected=expected, by=app.caller().actor, reason=reason)
    result = set_quotas.run(
        request, context, own_namespaces=(context.site.job_namespace, context.policy.burst.capacity_pod_namespace)
    )
    return app.change_reply(team_setup.to_document(result.part, result.version))


@entry.api
def handler(event: entry.Json, context: entry.LambdaContext) -> entry.Json:
    return app.handle_request(event, context)
