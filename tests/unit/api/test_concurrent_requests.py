"""The test API answers concurrent requests like Lambda: an execution environment gets one event at a time."""

from concurrent.futures import ThreadPoolExecutor

from tests.unit.api.gateway import Gateway

PATHS = ("/v1/overview", "/v1/incidents", "/v1/jobs", "/v1/nodes", "/v1/events")


def test_concurrent_requests_get_their_own_answers() -> None:
    gateway = Gateway()
    fields = {path: set(gateway.get(path).document) for path in PATHS}
    assert fields["/v1/overview"] != fields["/v1/incidents"], "the answers must differ for this test to see anything"

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda path: (path, gateway.get(path)), PATHS * 40))

    assert [path for path, answer in answers if set(answer.document) != fields[path]] == []
