"""Which statements the local engine or the local GPU cluster decides by, and which neither can prove.

For each permission of the first kind a test takes it away and sees something fail. The second kind is this table, the
same as in docs/iam.md; what can be read off the template is tested there all the same.
"""

from typing import Final

from tests.template.statements import Statement

NOT_ENFORCED: Final = {
    "WriteOwnLogs": "The engine writes a function's log itself, whatever its role says.",
    "SendTraces": "The engine takes no traces.",
    "JoinTheVpc": "There is no VPC on the engine; the statement exists only with `SubnetIds`.",
    "EncryptPages": "The engine's SNS does not ask KMS.",
    "TakeEvents": "The engine polls the queue for the function, whatever its role says.",
    "TakePasses": "The engine polls the queue for the function, whatever its role says.",
    "KeepFailedInvocations": "The engine delivers to an on-failure destination itself.",
    "AnswerWaits": "The engine knows a task token by no ARN but `*`: its own variant is tested instead.",
    "FailOwnTask": "The engine knows a task token by no ARN but `*`: its own variant is tested instead.",
    "CallItsFunctions": "The engine does not ask what a state machine's role may do.",
    "DeliverExecutionLogs": "The engine does not ask what a state machine's role may do.",
    "StartScheduledFunctions": "The engine does not ask what a schedule's role may do.",
    "KeepMissedStarts": "The engine does not ask what a schedule's role may do.",
    "WriteApiLogs": "The engine writes no access log; the role exists only with `ApiLogRole=set-up`.",
}

_OF_MACHINES = ("RecoverNodeMachineRole", "RunJobMachineRole")


def is_enforced(statement: Statement) -> bool:
    """Return whether taking a permission of this statement away can make a test on the engine fail."""
    return statement.sid not in NOT_ENFORCED and statement.owner not in _OF_MACHINES
