"""Exceptions of the checks, with reasons. An unused waiver fails a test."""

from typing import Final

from tests.template.documents import resources

# Statements whose resource needs a wildcard, by Sid.
WAIVERS: Final = {
    "SendTraces": "X-Ray has no resource level.",
    "CallItsFunctions": "The end of the ARN is a version: an execution ends on the release that it began on.",
    "DeliverExecutionLogs": "The delivery of execution logs has no resource level.",
    "WriteApiLogs": "API Gateway tries the role against log groups of its own choice. Only with ApiLogRole=set-up.",
    "ManageNetworkInterfaces": "Lambda asks for these on every resource: the interfaces do not exist yet.",
    "FindKubernetes": "A list of cluster names becomes a list of ARNs only with a literal separator, so account and "
    "region are wildcards; the names are exact, and the call reaches this account and region alone.",
    "ReadNodeGroups": "EC2 Auto Scaling has no resource level for its descriptions.",
    "ReadUtilization": "CloudWatch has no resource level for metrics.",
    "ReadManagedNodeGroups": "As for FindKubernetes; the end of the ARN names a node group and an id of EKS.",
    "ReplaceNodesOfGroups": "AWS generates the id in the ARN of a group. The tag of EKS limits the groups.",
    "ReadCapacityReservations": "EC2 has no resource level for its descriptions; the region is named.",
    "ReadTrainingPlans": "An instance group may change to a plan that does not exist yet, in this account and region.",
    "LookUpRecoveries": "Executions are named after incidents; the machine is exact.",
    "ReadRecoveries": "Executions are named after incidents; the machine is exact.",
    "LookUpRentals": "Executions are named after rentals; the machine is exact.",
    "LookUpAttempts": "Executions are named after attempts; the machine is exact.",
    "ArchiveRawEvents": "Objects of the one bucket.",
    "ReadCheckpoints": "Objects of the buckets that the parameter names.",
    "ReadManifests": "The manifests, and nothing else, of the buckets that the parameter names.",
    "RaiseFences": "The fences, and nothing else, of the buckets that the parameter names.",
    "FailOwnTaskOnLocalEngine": "The local engine knows a token by no other ARN. Only there, by condition.",
    "AnswerWaitsOnLocalEngine": "The local engine knows a token by no other ARN. Only there, by condition.",
    "ReadStack": "This stack; the end of its ARN is new with each deployment from scratch.",
    "ReadLogs": "Log groups of this stack, whose names all begin alike.",
    "ReadExecutions": "Executions of this stack's machines, whose names all begin alike.",
    "ReadAccountLimits": "Account settings and metrics have no resource level.",
    "ReadRawEvents": "Objects of the one bucket.",
    "Read": "Stands for one id. Behind `jobs/*` and `incidents/*` it opens every read route of that id.",
    "Operate": "Stands for one id within a route that is written out.",
    "Administer": "Stands for one team within a route that is written out.",
    "Submit": "Stands for one id within a route that is written out.",
}

_DEAD_LETTERS = [name for name, queue in resources("AWS::SQS::Queue").items() if "RedrivePolicy" not in queue]
_BY_ITS_OWN_NAME = "It takes only Lambda's default name for a function's log group. Ours are set by LoggingConfig."
_NOT_FOR_QUEUES = "AWS takes an on-failure destination for streams only; the queue has its redrive policy."
_REPEATED_UNTIL_IT_SUCCEEDS = (
    "Without a limit of retries, no batch fails for good; alarms watch its age and its errors."
)
_NOT_READ_THROUGH_IF = "The access log stands behind a condition, which the rule does not read."
_IS_THE_LAST_STOP = "It is a dead-letter queue itself; an alarm watches it."

# Findings of cfn-lint and its serverless rules, by rule and logical id.
LINT_WAIVERS: Final = (
    {("WS1004", function): _BY_ITS_OWN_NAME for function in resources("AWS::Serverless::Function")}
    | {("ES1001", mapping): _NOT_FOR_QUEUES for mapping in ("ReceiveEventEvents", "ScheduleJobsCycles")}
    | {
        ("ES1001", f"PublishEvents{table}"): _REPEATED_UNTIL_IT_SUCCEEDS
        for table in ("Jobs", "Incidents", "Fleet", "Quotas")
    }
    | {("ES2000", "ApiapiStage"): _NOT_READ_THROUGH_IF}
    | {("ES6000", queue): _IS_THE_LAST_STOP for queue in _DEAD_LETTERS}
)
