"""What operators change: holding harmful acts, and letting them go on."""

from datetime import timedelta

from evenkeel.runtime import api, api_types, entry, wiring
from evenkeel.services import hold_automation

app = api.Resolver(lambda: wiring.world().telemetry)


@app.post("/v1/clusters/<cluster>/automation/hold")
def hold(cluster: str) -> api.Reply:
    world = wiring.world()
    app.expect_fleet(cluster, world.settings.fleet)
    body = app.body(api_types.HoldBody)
    now = world.clock.now()
    request = hold_automation.HoldRequest(
        by=app.caller().actor,
        reason=body.reason,
        until=body.until or now + timedelta(seconds=body.for_seconds or 0),
        request_id=app.request_id(),
        fingerprint=app.fingerprint(),
    )
    return app.done(hold_automation.hold(world.ledger, request, now=now).to_json())


@app.post("/v1/clusters/<cluster>/automation/release")
def release(cluster: str) -> api.Reply:
    world = wiring.world()
    app.expect_fleet(cluster, world.settings.fleet)
    body = app.body(api_types.ReleaseBody)
    request = hold_automation.ReleaseRequest(
        by=app.caller().actor, reason=body.reason, request_id=app.request_id(), fingerprint=app.fingerprint()
    )
    return app.done(hold_automation.release(world.ledger, request, now=world.clock.now()))


@entry.api
def handler(event: entry.Json, context: entry.Context) -> entry.Json:
    return app.reply(event, context)
