"""`evenkeel backtest` on exported files."""

import gzip
import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from random import Random
from typing import Any

import pytest

from evenkeel_cli.main import main

Json = dict[str, Any]

PROJECT = Path(__file__).resolve().parents[3]
EXAMPLE = PROJECT / "docs" / "examples" / "shadow"
PAGE = PROJECT / "docs" / "operate" / "shadow.md"
EVENTS = PROJECT / "tests" / "fixtures" / "events"
ARN = "arn:aws:sagemaker:us-west-2:111122223333:cluster/k3v9x2m7q1ab"
NODE = "i-0a1c4f7b92d36e581"


def run(*words: str | Path) -> tuple[int, str, str]:
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    error = io.StringIO()
    with redirect_stdout(out), redirect_stderr(error):
        code = main(["backtest", *map(str, words)])
    out.seek(0)
    return code, out.read(), error.getvalue()


def backtest_json(*words: str | Path) -> Json:
    code, out, error = run(*words, "-o", "json")
    assert code == 0, error
    document: Json = json.loads(out)
    return document


def verdicts_by_case(document: Json) -> list[tuple[str, str, str]]:
    return [
        (case["decision"]["instanceId"], case["cordon"]["verdict"], case["repair"]["verdict"])
        for case in document["cases"]
    ]


def test_backtest_page_shows_the_output_of_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PROJECT)
    documented_output = PAGE.read_text("utf-8").split("$ evenkeel backtest docs/examples/shadow\n")[1].split("\n```")[0]

    code, out, _ = run("docs/examples/shadow")

    assert code == 0
    assert out.strip().splitlines() == [line.rstrip() for line in documented_output.strip().splitlines()]


def test_backtest_example_contains_each_main_verdict() -> None:
    assert verdicts_by_case(backtest_json(EXAMPLE)) == [
        ("i-0a1c4f7b92d36e581", "EARLIER", "EARLIER"),
        ("i-0b7e25d9c813fa460", "WOULD_HAVE_BEEN_WRONG", "WOULD_HAVE_BEEN_WRONG"),
        ("i-0c93e1b47fa06d528", "LATER", "LATER"),
        ("i-0e5a7b3c9d1f28460", "EARLIER", "EARLIER"),
        ("i-0d4f8a6127be9c053", "UNKNOWN", "UNKNOWN"),
    ]


def test_verdicts_do_not_depend_on_order_copies_or_compression(tmp_path: Path) -> None:
    lines = (EXAMPLE / "hyperpod-events.jsonl").read_text("utf-8").splitlines()[:-1]
    Random(7).shuffle(lines)
    (tmp_path / "z.jsonl").write_text("\n".join([*lines, *lines]), encoding="utf-8")
    for name in ("cloudtrail", "nodes", "kubernetes-events"):
        (tmp_path / f"{name}.json.gz").write_bytes(gzip.compress((EXAMPLE / f"{name}.json").read_bytes()))

    first, second = backtest_json(EXAMPLE), backtest_json(tmp_path)

    assert second["cases"] == first["cases"]
    assert second["summary"] == first["summary"]
    assert second["input"]["records"] == first["input"]["records"]
    assert second["input"]["copies"] > first["input"]["copies"]


def test_unusable_input_is_counted_and_skipped() -> None:
    document = backtest_json(EXAMPLE)["input"]

    assert (document["malformed"], document["copies"]) == (1, 1)
    assert document["malformedDocuments"][0]["line"] == 11
    assert sum(document["unknown"].values()) == 2


def test_backtest_reads_the_sample_events_of_the_event_parsers() -> None:
    document = backtest_json(EVENTS)["input"]

    assert document["drills"] == 1
    assert {Path(malformed["file"]).parent.name for malformed in document["malformedDocuments"]} == {"bad"}


def an_api_event(seconds: int, instance_id: str, description: str, time: Any) -> Json:
    return {
        "EventId": f"c4e81f26-7d0a-4b93-8f5e-{seconds:012d}",
        "ClusterArn": ARN,
        "ClusterName": "research-train",
        "InstanceGroupName": "p5-workers",
        "InstanceId": instance_id,
        "ResourceType": "Instance",
        "EventTime": time,
        "Description": description,
    }


@pytest.mark.parametrize("time", ["2026-11-03T10:21:39.650000+00:00", 1793701299.65])
def test_answer_of_list_cluster_events_counts_like_the_event(time: Any, tmp_path: Path) -> None:
    text = f"Reboot of EC2 Instance {NODE} is currently in progress on Cluster research-train and IG p5-workers"
    summary = an_api_event(1, NODE, text, time) | {"EventId": "c4e81f26-7d0a-4b93-8f5e-21a6d90b3c74"}
    (tmp_path / "api.json").write_text(json.dumps({"Events": [summary], "NextToken": "x"}), encoding="utf-8")
    delivered_event = (EVENTS / "hyperpod-event-reboot-in-progress.json").read_text("utf-8")
    (tmp_path / "bus.json").write_text(delivered_event, encoding="utf-8")

    document = backtest_json(tmp_path)["input"]

    assert (document["records"], document["copies"], document["malformed"]) == (1, 1, 0)


def test_backtest_recognises_a_replacement_by_its_node_slot(tmp_path: Path) -> None:
    lines = (EXAMPLE / "hyperpod-events.jsonl").read_text("utf-8").splitlines()[:-1]
    (tmp_path / "events.jsonl").write_text("\n".join(lines), encoding="utf-8")

    case = backtest_json(tmp_path)["cases"][0]

    assert case["repair"]["verdict"] == "EARLIER"
    assert case["repair"]["actor"] == "HyperPod"
    assert case["repair"]["seconds"] == 2859.0


def test_backtest_with_automatic_node_recovery_leaves_repairs_to_hyperpod() -> None:
    without_node_recovery, automatic = backtest_json(EXAMPLE), backtest_json(EXAMPLE, "--node-recovery", "Automatic")

    assert without_node_recovery["cases"][0]["decision"]["repair"] == "replace"
    assert verdicts_by_case(automatic)[0] == (NODE, "EARLIER", "NOT_DECIDED")


def test_backtest_counts_only_records_within_the_window() -> None:
    assert verdicts_by_case(backtest_json(EXAMPLE, "--window", "1"))[0][1] == "EARLIER"
    assert verdicts_by_case(backtest_json(EXAMPLE, "--window", "48"))[1][1] == "UNKNOWN"


def a_node(at: str, **spec: Any) -> Json:
    return {
        "kind": "Node",
        "metadata": {"name": f"hyperpod-{NODE}", "creationTimestamp": "2026-11-01T00:00:00Z"},
        "spec": {"providerID": f"aws:///usw2-az2/sagemaker/cluster/hyperpod-k3v9x2m7q1ab-{NODE}", **spec},
        "status": {
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "lastHeartbeatTime": at,
                    "lastTransitionTime": "2026-11-01T00:00:00Z",
                }
            ],
            "nodeInfo": {"bootID": "boot-1"},
        },
    }


def test_manual_cordon_is_read_from_a_recorded_node_watch(tmp_path: Path) -> None:
    taint = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule", "timeAdded": "2026-11-03T10:25:02Z"}
    cordoned = a_node("2026-11-03T10:40:00Z", unschedulable=True, taints=[taint])
    watched = [
        {"type": "ADDED", "object": a_node("2026-11-03T10:00:00Z")},
        {"type": "MODIFIED", "object": cordoned},
        {"type": "DELETED", "object": a_node("2026-11-03T12:15:02Z")},
    ]
    (tmp_path / "watch.json").write_text(
        "\n".join(json.dumps(observation, indent=2) for observation in watched), encoding="utf-8"
    )
    (tmp_path / "fault.json").write_text((EVENTS / "hyperpod-node-unhealthy.json").read_text("utf-8"))

    (case,) = backtest_json(tmp_path)["cases"]

    assert (case["cordon"]["actor"], case["cordon"]["seconds"]) == ("a person", 600.0)
    assert (case["repair"]["verdict"], case["repair"]["seconds"]) == ("EARLIER", 7200.0)


def test_node_that_ended_as_planned_does_not_count_as_replaced(tmp_path: Path) -> None:
    event = {
        "kind": "Event",
        "metadata": {"uid": "uid-1"},
        "involvedObject": {"kind": "Node", "name": f"hyperpod-{NODE}"},
        "reason": "DisruptionTerminating",
        "message": "Disrupting Node: Drift",
        "lastTimestamp": "2026-11-03T12:00:00Z",
    }
    removed = event | {"metadata": {"uid": "uid-2"}, "reason": "RemovingNode", "lastTimestamp": "2026-11-03T12:05:00Z"}
    (tmp_path / "events.json").write_text(json.dumps({"kind": "List", "items": [event, removed]}))
    (tmp_path / "fault.json").write_text((EVENTS / "hyperpod-node-unhealthy.json").read_text("utf-8"))

    (case,) = backtest_json(tmp_path)["cases"]

    assert (case["cordon"]["verdict"], case["cordon"]["cause"]) == ("UNKNOWN", "NOTHING_KNOWN")
    assert case["cordon"]["reason"].startswith("The node ended as planned.")


def test_ec2_termination_notice_ends_a_node_but_opens_no_case(tmp_path: Path) -> None:
    termination_notice = json.loads((EVENTS / "ec2-instance-state-change.json").read_text("utf-8"))
    termination_notice["detail"] = {"instance-id": NODE, "state": "shutting-down"}
    termination_notice["time"] = "2026-11-03T12:15:02Z"
    (tmp_path / "ended.json").write_text(json.dumps(termination_notice))
    notice_alone = backtest_json(tmp_path)
    (tmp_path / "fault.json").write_text((EVENTS / "hyperpod-node-unhealthy.json").read_text("utf-8"))

    (case,) = backtest_json(tmp_path)["cases"]

    assert notice_alone["cases"] == []
    assert (case["repair"]["verdict"], case["repair"]["seconds"]) == ("EARLIER", 7200.0)


def test_wide_backtest_output_shows_the_rates_of_each_fault() -> None:
    _, out, _ = run(EXAMPLE, "-o", "wide")

    rows = [" ".join(line.split()) for line in out.splitlines()]
    assert "node:not_ready 2 1 of 2, 1.3% to 98.7% 0 of 1, 0.0% to 97.5%" in rows


def test_record_about_an_unidentified_node_is_counted(tmp_path: Path) -> None:
    event = {
        "kind": "Event",
        "metadata": {"uid": "uid-1"},
        "involvedObject": {"kind": "Node", "name": "ip-10-0-0-1"},
        "reason": "NodeNotSchedulable",
        "lastTimestamp": "2026-11-03T12:00:00Z",
    }
    (tmp_path / "events.json").write_text(json.dumps(event))

    assert backtest_json(tmp_path)["unmatched"] == 1


def test_answers_of_lookup_events_are_read(tmp_path: Path) -> None:
    record = json.loads((EXAMPLE / "cloudtrail.json").read_text("utf-8"))["Records"][0]
    answer = {"Events": [{"EventId": record["eventID"], "CloudTrailEvent": json.dumps(record)}]}
    delivered_event = {"source": "aws.sagemaker", "detail-type": "AWS API Call via CloudTrail", "detail": record}
    (tmp_path / "lookup.json").write_text(json.dumps(answer))
    (tmp_path / "bus.json").write_text(json.dumps(delivered_event))

    document = backtest_json(tmp_path)["input"]

    assert (document["records"], document["copies"]) == (1, 1)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["missing.json"], "missing.json"),
        ([str(EXAMPLE), "--node-recovery", "sometimes"], "--node-recovery"),
        ([str(EXAMPLE), "--window", "0"], "--window"),
        ([], "FILE"),
    ],
)
def test_invalid_backtest_option_is_named(words: list[str], problem: str) -> None:
    code, _, error = run(*words)

    assert code == 2
    assert problem in error


def test_backtest_of_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    code, _, error = run(tmp_path)

    assert code == 2
    assert "No file ends in" in error


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "0 documents in 1 file, but no record to replay."),
        ('{"a":', "1 malformed. The first: "),
        ('{"a": 1}', "1 of a kind without a parser. The first: a document with the fields a."),
    ],
)
def test_export_without_usable_record_is_error_with_next_step(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "export.jsonl"
    file.write_text(text)

    code, out, error = run(file)

    assert (code, out) == (2, "")
    assert problem in error
    assert "docs/operate/shadow.md" in error
