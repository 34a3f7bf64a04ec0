"""What administrators own: the policy. In this release it is deployed with the layer, so it can only be read."""

from evenkeel.runtime import api, api_types, entry, wiring

app = api.Resolver(lambda: wiring.world().telemetry)


@app.get("/v1/clusters/<cluster>/policy")
def show_policy(cluster: str) -> api.Reply:
    app.query(api_types.NoQuery)
    world = wiring.world()
    app.expect_fleet(cluster, world.settings.fleet)
    return app.answer({"hash": world.policy.hash, "policy": world.policy.to_json()})


@entry.api
def handler(event: entry.Json, context: entry.Context) -> entry.Json:
    return app.reply(event, context)
