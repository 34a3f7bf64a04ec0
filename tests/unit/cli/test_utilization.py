"""`evenkeel utilization ls`: exact tables of 80 columns, JSON and CSV."""

import csv
import json

import pytest

from evenkeel.domain.capacity.utilization import Measure, Sample
from evenkeel.domain.nodes import FleetNode, NodeLife
from evenkeel.ports import Throttled
from tests.fakes.cluster import CLUSTER, instance_id
from tests.unit.api.seeds import a_fleet_node, ago, store
from tests.unit.cli.conftest import CliFixture

BY_POOL = """\
POOL        NODES  RUN  RECOVERY   GPUS   GPU  LOW-HIGH  GPU MEM  CPU  MEM
burst           1    1         0    8/8     –         –        –    –    –
p5-workers      3    2         1  16/24  46%*     2-90%     60%*  2%*    –
(all)           4    3         1  24/32  46%*     2-90%     60%*  2%*    –
GPU utilization over 15 min: lowest 2.5% on i-00000000000000002, highest 90%,
unknown for 2 nodes.
Each reading is from 2m02s ago or later.
–  unknown   *  average of the measured nodes only
"""
BY_NODE = """\
NODE                 POOL        STATE          GPUS  GPU  GPU MEM  CPU  MEM
i-00000000000000004  burst       ● in service    8/8    –        –    –    –
i-00000000000000001  p5-workers  ● in service    8/8  90%      60%   2%    –
i-00000000000000002  p5-workers  ● in service    8/8   2%        –    –    –
i-00000000000000003  p5-workers  ✖ quarantined   0/8    –        –    –    –
GPU utilization over 15 min: lowest 2.5% on i-00000000000000002, highest 90%,
unknown for 2 nodes.
Each reading is from 2m02s ago or later.
"""
WIDE = """\
GPUS MEASURED ON  STARTING  GPU MEM GIB   VCPU  MEM GIB   MEASURED  TYPES           CLUSTER
             2/3         0         1920  0/576   0/6144  2m02s ago  ml.p5.48xlarge  research-eks
"""
PROBLEM = (
    "▲ CloudWatch Container Insights has no metrics of the nodes of burst-eks in the last 15 minutes. The EKS add-on "
    "amazon-cloudwatch-observability publishes them (docs/operate/utilization.md).\n"
)


@pytest.fixture
def fleet(cli: CliFixture) -> CliFixture:
    """Three nodes, of which two have measurements, and a cluster without the CloudWatch add-on."""
    life = NodeLife(cluster="burst-eks", instance_id=instance_id(4), launched_at=ago(hours=1))
    busy, idle = a_fleet_node(1, accelerators_in_use=8), a_fleet_node(2, accelerators_in_use=8)
    faulty = a_fleet_node(3, is_cordoned=True, incident_id="inc-0000000009")
    store(cli.gateway.fakes.ledger, busy, idle, faulty, a_fleet_node(4, life=life, pool="burst", accelerators_in_use=8))
    publish_samples(cli, busy, gpu=90, gpu_memory=60, cpu=2)
    publish_samples(cli, idle, gpu=2.5)
    return cli


def publish_samples(cli: CliFixture, node: FleetNode, **percent: float) -> None:
    start = (ago(minutes=3)).replace(second=0)
    for name, value in percent.items():
        cli.gateway.fakes.utilization_metrics.put(node, Measure[name.upper()], Sample(start, value))


def test_pool_table_shows_lowest_and_highest_utilization(fleet: CliFixture) -> None:
    result = fleet.run("utilization", "ls", terminal=True)

    assert result.out == BY_POOL
    assert (result.exit_code, " ".join(result.err.split())) == (0, PROBLEM.strip())
    assert max(map(len, (result.out + result.err).splitlines())) <= 80


def test_node_table_shows_utilization_and_state(fleet: CliFixture) -> None:
    result = fleet.run("utilization", "ls", "--by", "node", terminal=True)

    assert result.out == BY_NODE
    assert max(map(len, result.out.splitlines())) <= 80


def test_wide_utilization_table_adds_amounts_and_ages(fleet: CliFixture) -> None:
    result = fleet.run("utilization", "ls", "--pool", "p5-workers", "-o", "wide", terminal=True)

    start = result.out.index("GPUS MEASURED")
    assert [line[start:] for line in result.out.splitlines()[:2]] == WIDE.splitlines()
    assert result.err == ""


def test_utilization_as_json_equals_the_api_response(fleet: CliFixture) -> None:
    result = fleet.run("utilization", "ls", "--cluster", CLUSTER, "-o", "json")

    document = json.loads(result.out)
    assert document == fleet.gateway.get(f"/v1/utilization?cluster={CLUSTER}").document
    assert [item["cluster"] for item in document["items"]] == [CLUSTER]


def test_utilization_csv_has_empty_cells_for_unknown_figures(fleet: CliFixture) -> None:
    result = fleet.run("utilization", "ls", "-o", "csv")

    burst, committed = csv.DictReader(result.out.splitlines())
    assert (burst["gpus"], burst["utilization.gpu.average"], burst["utilization.gpu.unknownNodes"]) == ("8", "", "1")
    assert (burst["measuredAt"], burst["isStale"]) == ("", "")
    assert (committed["utilization.gpu.average"], committed["utilization.gpu.lowest"]) == ("46.2", "2.5")
    assert committed["utilization.gpu.lowestNode"] == instance_id(2)
    assert result.err == PROBLEM


def test_utilization_csv_by_node_has_one_line_per_node(fleet: CliFixture) -> None:
    result = fleet.run("utilization", "ls", "--by", "node", "-o", "csv")

    lines = list(csv.DictReader(result.out.splitlines()))
    assert [line["instanceId"] for line in lines] == [instance_id(number) for number in (4, 1, 2, 3)]
    assert [line["utilization.gpu"] for line in lines] == ["", "90.0", "2.5", ""]


@pytest.mark.parametrize(("by", "names"), [("pool", ["burst", "p5-workers"]), ("node", None)])
def test_utilization_can_be_shown_by_pool_or_instance_id(fleet: CliFixture, by: str, names: list[str] | None) -> None:
    result = fleet.run("utilization", "ls", "--by", by, "-o", "name")

    assert result.out.splitlines() == (names or [instance_id(number) for number in (4, 1, 2, 3)])


def test_failed_read_of_utilization_is_only_a_warning(fleet: CliFixture) -> None:
    fleet.gateway.fakes.utilization_metrics.errors[CLUSTER] = Throttled("read: Throttling: Rate exceeded")

    result = fleet.run("utilization", "ls", "--pool", "p5-workers", terminal=True)

    assert result.exit_code == 0
    assert "unknown for 3 nodes" in result.out
    assert "was not read for 3 of 3 nodes" in result.err


def test_utilization_filter_that_matches_no_node_is_reported(fleet: CliFixture) -> None:
    assert fleet.run("utilization", "ls", "--pool", "typo").err == "No nodes match.\n"
    assert fleet.run("utilization", "ls", "--pool", "typo", "-o", "csv").out.startswith("pool,cluster,")


def test_empty_fleet_says_that_no_nodes_are_known(cli: CliFixture) -> None:
    result = cli.run("utilization", "ls", terminal=True)

    assert (result.exit_code, result.out) == (0, "")
    assert "No nodes are known yet." in result.err
