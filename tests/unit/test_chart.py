"""The Helm chart: its values, its schema and the objects that it renders."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from evenkeel.domain.jobs.imported_types import import_values
from evenkeel.domain.jobs.read_helm_values import read_helm_values
from evenkeel.domain.jobs.template_findings import KNOWN_FIELDS
from evenkeel.domain.jobs.templates import FindingSeverity
from evenkeel.domain.policy import Policy, changed
from evenkeel_cli.offline import quota_files
from tests.chart_values import BURST, TEAMS, helm, key_of
from tools.chart import CHART

Json = dict[str, Any]
SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
VALUES = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
EXAMPLE = CHART.parents[1] / "docs" / "examples" / "plan" / "x1-quota.yaml"
HYBRID = Path(__file__).parents[1] / "fixtures" / "values" / "hybrid.yaml"


def render_chart(tmp_path: Path, **values: Any) -> dict[tuple[str, str, str], Json]:
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    text = subprocess.run(
        [helm(), "template", "evenkeel", CHART, "-f", tmp_path / "values.yaml"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    return {key_of(document): document for document in yaml.safe_load_all(text) if document}


def schema_errors(values: Json) -> list[str]:
    return [error.message for error in jsonschema.Draft7Validator(SCHEMA).iter_errors(values)]


def test_default_chart_values_follow_their_schema() -> None:
    assert schema_errors(VALUES) == []


def test_chart_schema_accepts_every_value_that_policy_import_reads() -> None:
    assert set(SCHEMA["properties"]) == KNOWN_FIELDS
    assert schema_errors(yaml.safe_load(HYBRID.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"nodePool": {}}, "nodePool"),
        ({"namespaces": {"nlp": {"podSecurty": "restricted"}}}, "podSecurty"),
        ({"namespaces": {"nlp": {"podSecurity": "strict"}}}, "strict"),
        ({"nodeClasses": {"burst": {"role": "nodes", "discovery": "c", "ami": "al2023"}}}, "al2023"),
        ({"nodePools": {"spot": {"nodeClass": "burst", "market": "spott", "instanceType": "p5.48xlarge"}}}, "spott"),
    ],
)
def test_chart_schema_refuses_a_wrong_value(values: Json, named: str) -> None:
    (schema_error,) = schema_errors(values)

    assert named in schema_error


def test_default_chart_values_import_without_refusal() -> None:
    read = read_helm_values(VALUES)
    values_import = import_values(read)

    changed(Policy(), values_import.policy)
    assert [finding.field for finding in read.findings if finding.weight is FindingSeverity.REFUSED] == []
    assert [loss.partition(":")[0] for loss in values_import.losses] == ["checkpointSeconds"]
    assert set(values_import.policy["jobTypes"]["types"]) == {"production", "development", "research"}


def test_chart_and_import_write_the_same_priority_classes(tmp_path: Path) -> None:
    imported_classes = import_values(read_helm_values(VALUES)).priority_classes["items"]

    classes = [
        priority_class for (kind, _, _), priority_class in render_chart(tmp_path).items() if kind == "PriorityClass"
    ]

    def name_value_description(item: Json) -> tuple[str, int, str]:
        return item["metadata"]["name"], item["value"], item["description"]

    assert sorted(map(name_value_description, classes)) == sorted(map(name_value_description, imported_classes))
    assert {name: value for name, value, _ in map(name_value_description, classes)} == {
        "critical": 1_000_000,
        "high": 800_000,
        "medium": 600_000,
        "low": 400_000,
        "preemptible": 200_000,
    }


def test_burst_pools_start_with_limit_zero_and_are_never_disrupted(tmp_path: Path) -> None:
    objects = render_chart(tmp_path, **BURST)

    for name, market in (("burst-on-demand", "on-demand"), ("burst-spot", "spot")):
        spec = objects["NodePool", "", name]["spec"]
        assert spec["limits"] == {"nvidia.com/gpu": "0"}
        assert spec["disruption"] == {
            "consolidationPolicy": "WhenEmpty",
            "consolidateAfter": "Never",
            "budgets": [{"nodes": "0"}],
        }
        assert spec["template"]["spec"]["expireAfter"] == "Never"
        node = spec["template"]["spec"]
        assert ("EC2NodeClass", "", node["nodeClassRef"]["name"]) in objects
        terms = {term["key"]: term["values"] for term in node["requirements"]}
        assert terms["karpenter.sh/capacity-type"] == [market]


def test_pool_of_an_unknown_node_class_is_refused(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError) as error_info:
        render_chart(tmp_path, nodePools=BURST["nodePools"])

    assert "nodePools.burst-on-demand.nodeClass: there is no node class" in error_info.value.stderr


def test_each_namespace_gets_the_same_rights(tmp_path: Path) -> None:
    objects = render_chart(tmp_path, **TEAMS)

    def rights(namespace: str) -> Iterator[tuple[str, str]]:
        return (
            (kind, name) for kind, object_namespace, name in objects if object_namespace == namespace and "Role" in kind
        )

    assert set(rights("nlp")) == set(rights("evenkeel-jobs")) != set()
    quota = objects["ResourceQuota", "nlp", "evenkeel"]
    assert quota["spec"]["hard"] == {"requests.nvidia.com/gpu": "64"}
    assert objects["Namespace", "", "nlp"]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert ("RoleBinding", "research", "evenkeel-restarters") in objects
    assert ("Namespace", "", "research") not in objects


def test_kueue_objects_of_the_chart_match_the_quota_export(tmp_path: Path) -> None:
    exported = quota_files.convert_quotas([EXAMPLE], "kueue")

    objects = render_chart(tmp_path, kueue={"documents": list(exported.documents), "losses": list(exported.losses)})

    assert {key_of(document): document for document in exported.documents}.items() <= objects.items()
    assert {document["kind"] for document in exported.documents} >= {"ClusterQueue", "ResourceFlavor"}


def test_uninstall_leaves_every_object_that_jobs_depend_on(tmp_path: Path) -> None:
    objects = render_chart(tmp_path, **TEAMS, **BURST)

    retained_objects = {
        kind
        for (kind, _, _), rendered_object in objects.items()
        if "helm.sh/resource-policy" in str(rendered_object["metadata"])
    }

    assert retained_objects == {"Namespace", "NodePool", "EC2NodeClass", "PriorityClass"}


def test_strict_lint_accepts_the_chart() -> None:
    completed = subprocess.run(
        [helm(), "lint", "--strict", CHART], capture_output=True, text=True, check=False, timeout=60
    )

    assert completed.returncode == 0, completed.stdout
