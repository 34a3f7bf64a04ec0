"""Capacity facts: training plans and UltraServers, read only."""

from __future__ import annotations

import time

from evenkeel_local.gpu_cluster.aws_model import AwsError, Json, paged_answer
from evenkeel_local.gpu_cluster.config import ClusterConfig, TrainingPlanConfig
from evenkeel_local.gpu_cluster.machines import MachineFleet

HOUR = 3600.0
USD_PER_INSTANCE_HOUR = 39.33
"""An invented price of offerings."""


class Capacity:
    """Describes the configured plans and the running machines."""

    def __init__(self, fleet: MachineFleet) -> None:
        self._fleet = fleet
        self._config: ClusterConfig = fleet.config
        self._started_at = time.time()

    def _plan_arn(self, plan: TrainingPlanConfig) -> str:
        return self._config.arn(f"training-plan/{plan.name}")

    def reserved_capacity_arn(self, plan: TrainingPlanConfig) -> str:
        """Return the ARN of a plan's reserved capacity."""
        return self._config.arn(f"reserved-capacity/{plan.name}")

    def describe_plan(self, body: Json) -> Json:
        """Answer DescribeTrainingPlan."""
        plan_name = body["TrainingPlanName"]
        for plan in self._config.training_plans:
            if plan_name in (plan.name, self._plan_arn(plan)):
                return self._describe(plan)
        raise AwsError("ResourceNotFound", f"Training plan {plan_name} does not exist.")

    def _counts(self, plan: TrainingPlanConfig) -> tuple[int, int]:
        machines = [
            machine
            for group in self._fleet.groups.values()
            if group.training_plan == plan.name
            for machine in self._fleet.of_group(group.name)
        ]
        unhealthy = sum(1 for machine in machines if machine.unhealthy is not None or machine.status == "Failure")
        return len(machines) - unhealthy, unhealthy

    def _describe(self, plan: TrainingPlanConfig) -> Json:
        in_use, unhealthy = self._counts(plan)
        start, end = self._period(plan)
        available = max(plan.total_instance_count - plan.spare_instance_count - in_use - unhealthy, 0)
        capacity_document: Json = {
            "ReservedCapacityArn": self.reserved_capacity_arn(plan),
            "ReservedCapacityType": "UltraServer" if plan.ultra_server_type else "Instance",
            "InstanceType": plan.instance_type,
            "TotalInstanceCount": plan.total_instance_count,
            "Status": plan.status,
            "AvailabilityZone": "us-west-2a",
            "AvailabilityZoneId": "usw2-az1",
            "DurationHours": plan.duration_hours,
            "StartTime": start,
            "EndTime": end,
        }
        if plan.ultra_server_type:
            capacity_document |= {
                "UltraServerType": plan.ultra_server_type,
                "UltraServerCount": plan.ultra_server_count,
            }
        return {
            "TrainingPlanArn": self._plan_arn(plan),
            "TrainingPlanName": plan.name,
            "Status": plan.status,
            "DurationHours": plan.duration_hours,
            "StartTime": start,
            "EndTime": end,
            "UpfrontFee": self._fee(plan.total_instance_count, plan.duration_hours),
            "CurrencyCode": "USD",
            "TotalInstanceCount": plan.total_instance_count,
            "AvailableInstanceCount": available,
            "InUseInstanceCount": in_use,
            "UnhealthyInstanceCount": unhealthy,
            "AvailableSpareInstanceCount": plan.spare_instance_count,
            **({"TotalUltraServerCount": plan.ultra_server_count} if plan.ultra_server_count else {}),
            "TargetResources": ["hyperpod-cluster"],
            "ReservedCapacitySummaries": [capacity_document],
        }

    def _period(self, plan: TrainingPlanConfig) -> tuple[float, float]:
        """Return the start and the end of a plan."""
        duration = plan.duration_hours * HOUR
        if plan.remaining_seconds is None:
            return self._started_at - HOUR, self._started_at - HOUR + duration
        end = self._started_at + plan.remaining_seconds
        return end - duration, end

    def _fee(self, instances: int, hours: int) -> str:
        return f"{instances * hours * USD_PER_INSTANCE_HOUR:.2f}"

    def search_offerings(self, body: Json) -> Json:
        """Answer SearchTrainingPlanOfferings: one offering for the request, if it lasts at most a week."""
        instance_type = body.get("InstanceType") or "ml.p5.48xlarge"
        count, hours = int(body.get("InstanceCount") or 1), int(body.get("DurationHours") or 24)
        if hours > 7 * 24:
            return {"TrainingPlanOfferings": []}
        start = max(float(body.get("StartTimeAfter") or 0), time.time() + HOUR)
        if (limit := body.get("EndTimeBefore")) is not None and start + hours * HOUR > limit:
            return {"TrainingPlanOfferings": []}
        offering: Json = {
            "TrainingPlanOfferingId": f"tpo-{instance_type.replace('.', '-')}-{count}-{hours}",
            "TargetResources": body.get("TargetResources") or ["hyperpod-cluster"],
            "DurationHours": hours,
            "UpfrontFee": self._fee(count, hours),
            "CurrencyCode": "USD",
            "ReservedCapacityOfferings": [
                {
                    "InstanceType": instance_type,
                    "InstanceCount": count,
                    "AvailabilityZone": "us-west-2a",
                    "DurationHours": hours,
                    "StartTime": start,
                    "EndTime": start + hours * HOUR,
                }
            ],
        }
        return {"TrainingPlanOfferings": [offering]}

    def list_ultra_servers(self, body: Json) -> Json:
        """Answer ListUltraServersByReservedCapacity."""
        for plan in self._config.training_plans:
            if self.reserved_capacity_arn(plan) == body["ReservedCapacityArn"]:
                break
        else:
            raise AwsError("ResourceNotFound", f"Reserved capacity {body['ReservedCapacityArn']} does not exist.")
        in_use, unhealthy = self._counts(plan)
        servers: list[Json] = []
        for number in range(plan.ultra_server_count):
            total = plan.total_instance_count // plan.ultra_server_count
            spare = plan.spare_instance_count // plan.ultra_server_count
            faulty = unhealthy if number == 0 else 0
            servers.append(
                {
                    "UltraServerId": f"us-{number:017x}",
                    "UltraServerType": plan.ultra_server_type or "ml.u-p6e-gb200x36",
                    "AvailabilityZone": "us-west-2a",
                    "InstanceType": plan.instance_type,
                    "TotalInstanceCount": total,
                    "ConfiguredSpareInstanceCount": spare,
                    "AvailableSpareInstanceCount": spare,
                    "InUseInstanceCount": min(in_use, total),
                    "AvailableInstanceCount": max(total - spare - in_use - faulty, 0),
                    "UnhealthyInstanceCount": faulty,
                    "HealthStatus": plan.ultra_server_health if not faulty else "Impaired",
                }
            )
        return paged_answer("UltraServers", servers, body, "ListUltraServersByReservedCapacity", dict)
