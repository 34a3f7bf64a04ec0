"""The shapes of built-in objects, as far as this cluster reads them: what does not decode is refused at the door.

A real API server decodes into typed structures and answers 400 for a string where a list belongs. Here the same parts
are held to the schemas below; fields that nothing here reads pass as they are.
"""

from __future__ import annotations

from typing import Any

from evenkeel_local.gpu_cluster import catalogue, errors, schemas
from evenkeel_local.gpu_cluster.errors import Obj
from evenkeel_local.gpu_cluster.store import ResourceType, TypeKey


def _object(required: tuple[str, ...] = (), /, **properties: Obj) -> Obj:
    return {"type": "object", "properties": properties, "required": list(required)}


def _list(items: Obj) -> Obj:
    return {"type": "array", "items": items}


def _map(values: Obj) -> Obj:
    return {"type": "object", "additionalProperties": values}


TEXT: Obj = {"type": "string"}
NUMBER: Obj = {"type": "integer"}
FLAG: Obj = {"type": "boolean"}
EITHER: Obj = {"x-kubernetes-int-or-string": True}
ANY_OBJECT: Obj = {"type": "object"}
TEXTS, TEXT_MAP, AMOUNTS = _list(TEXT), _map(TEXT), _map(EITHER)

METADATA = _object(
    name=TEXT,
    generateName=TEXT,
    namespace=TEXT,
    uid=TEXT,
    resourceVersion=TEXT,
    labels=TEXT_MAP,
    annotations=TEXT_MAP,
    finalizers=TEXTS,
    ownerReferences=_list(_object(apiVersion=TEXT, kind=TEXT, name=TEXT, uid=TEXT, controller=FLAG)),
    managedFields=_list(_object(manager=TEXT, operation=TEXT, subresource=TEXT, fieldsV1=ANY_OBJECT)),
)
CONDITIONS = _list(
    _object(("type", "status"), type=TEXT, status=TEXT, reason=TEXT, message=TEXT, lastTransitionTime=TEXT)
)
EXPRESSION = _object(key=TEXT, operator=TEXT, values=TEXTS)
SELECTOR = _object(matchLabels=TEXT_MAP, matchExpressions=_list(EXPRESSION))
POD_TERM = _object(topologyKey=TEXT, labelSelector=SELECTOR, namespaces=TEXTS)
VOLUME = _object(
    name=TEXT,
    persistentVolumeClaim=_object(claimName=TEXT),
    hostPath=_object(path=TEXT),
    emptyDir=ANY_OBJECT,
    configMap=_object(name=TEXT, optional=FLAG),
    secret=_object(secretName=TEXT, optional=FLAG),
)
NODE_TERM = _object(matchExpressions=_list(EXPRESSION), matchFields=_list(EXPRESSION))
KEY_REF = _object(key=TEXT, name=TEXT, optional=FLAG)
NAME_REF = _object(name=TEXT, optional=FLAG)
CONTAINER = _object(
    name=TEXT,
    image=TEXT,
    command=TEXTS,
    args=TEXTS,
    env=_list(
        _object(
            name=TEXT,
            value=TEXT,
            valueFrom=_object(
                fieldRef=_object(fieldPath=TEXT),
                resourceFieldRef=_object(resource=TEXT),
                configMapKeyRef=KEY_REF,
                secretKeyRef=KEY_REF,
            ),
        )
    ),
    envFrom=_list(_object(prefix=TEXT, configMapRef=NAME_REF, secretRef=NAME_REF)),
    resources=_object(limits=AMOUNTS, requests=AMOUNTS),
    ports=_list(_object(containerPort=NUMBER, protocol=TEXT, name=TEXT)),
    terminationMessagePolicy=TEXT,
    volumeMounts=_list(_object(name=TEXT, mountPath=TEXT, subPath=TEXT)),
)
POD_SPEC = _object(
    containers=_list(CONTAINER),
    initContainers=_list(CONTAINER),
    restartPolicy=TEXT,
    terminationGracePeriodSeconds=NUMBER,
    activeDeadlineSeconds=NUMBER,
    nodeName=TEXT,
    nodeSelector=TEXT_MAP,
    hostname=TEXT,
    subdomain=TEXT,
    serviceAccountName=TEXT,
    serviceAccount=TEXT,
    schedulerName=TEXT,
    schedulingGates=_list(ANY_OBJECT),
    priorityClassName=TEXT,
    priority=NUMBER,
    preemptionPolicy=TEXT,
    tolerations=_list(_object(key=TEXT, operator=TEXT, value=TEXT, effect=TEXT, tolerationSeconds=NUMBER)),
    volumes=_list(VOLUME),
    topologySpreadConstraints=_list(
        _object(topologyKey=TEXT, maxSkew=NUMBER, minDomains=NUMBER, labelSelector=SELECTOR)
    ),
    affinity=_object(
        podAffinity=_object(requiredDuringSchedulingIgnoredDuringExecution=_list(POD_TERM)),
        podAntiAffinity=_object(requiredDuringSchedulingIgnoredDuringExecution=_list(POD_TERM)),
        nodeAffinity=_object(
            requiredDuringSchedulingIgnoredDuringExecution=_object(nodeSelectorTerms=_list(NODE_TERM)),
            preferredDuringSchedulingIgnoredDuringExecution=_list(_object(weight=NUMBER, preference=NODE_TERM)),
        ),
    ),
)
CONTAINER_STATUS = _object(
    ("name",), name=TEXT, ready=FLAG, restartCount=NUMBER, state=_map(ANY_OBJECT), lastState=_map(ANY_OBJECT)
)
JOB_SPEC = _object(
    parallelism=NUMBER,
    completions=NUMBER,
    completionMode=TEXT,
    backoffLimit=NUMBER,
    activeDeadlineSeconds=NUMBER,
    ttlSecondsAfterFinished=NUMBER,
    suspend=FLAG,
    manualSelector=FLAG,
    podReplacementPolicy=TEXT,
    selector=SELECTOR,
    template=_object(metadata=METADATA, spec=POD_SPEC),
    podFailurePolicy=_object(
        rules=_list(
            _object(
                action=TEXT,
                onExitCodes=_object(operator=TEXT, values=_list(NUMBER), containerName=TEXT),
                onPodConditions=_list(_object(type=TEXT, status=TEXT)),
            )
        )
    ),
)
REPLICA_STATUS = _object(
    replicas=NUMBER, readyReplicas=NUMBER, availableReplicas=NUMBER, observedGeneration=NUMBER, conditions=CONDITIONS
)
REPLICA_SPEC = {
    "replicas": NUMBER,
    "minReadySeconds": NUMBER,
    "selector": SELECTOR,
    "template": _object(metadata=METADATA, spec=POD_SPEC),
}
RULES = _list(_object(verbs=TEXTS, apiGroups=TEXTS, resources=TEXTS, resourceNames=TEXTS, nonResourceURLs=TEXTS))
ROLE = _object(rules=RULES, aggregationRule=_object(clusterRoleSelectors=_list(SELECTOR)))
BINDING = _object(
    roleRef=_object(apiGroup=TEXT, kind=TEXT, name=TEXT),
    subjects=_list(_object(kind=TEXT, name=TEXT, namespace=TEXT, apiGroup=TEXT)),
)
DEFINITION_VERSION = _object(
    ("name",),
    name=TEXT,
    served=FLAG,
    storage=FLAG,
    schema=_object(openAPIV3Schema=ANY_OBJECT),
    subresources=_map(ANY_OBJECT),
    additionalPrinterColumns=_list(_object(("name", "jsonPath"), name=TEXT, type=TEXT, jsonPath=TEXT, priority=NUMBER)),
)

SHAPES: dict[TypeKey, Obj] = {
    catalogue.PODS.key: _object(
        spec=POD_SPEC,
        status=_object(
            phase=TEXT,
            podIP=TEXT,
            startTime=TEXT,
            nominatedNodeName=TEXT,
            conditions=CONDITIONS,
            containerStatuses=_list(CONTAINER_STATUS),
            initContainerStatuses=_list(CONTAINER_STATUS),
        ),
    ),
    catalogue.NODES.key: _object(
        spec=_object(
            unschedulable=FLAG,
            providerID=TEXT,
            taints=_list(_object(key=TEXT, value=TEXT, effect=TEXT, timeAdded=TEXT)),
        ),
        status=_object(
            allocatable=AMOUNTS,
            capacity=AMOUNTS,
            conditions=CONDITIONS,
            addresses=_list(_object(("address", "type"), address=TEXT, type=TEXT)),
            nodeInfo=ANY_OBJECT,
        ),
    ),
    catalogue.JOBS.key: _object(
        spec=JOB_SPEC,
        status=_object(
            active=NUMBER,
            ready=NUMBER,
            succeeded=NUMBER,
            failed=NUMBER,
            terminating=NUMBER,
            completedIndexes={"type": "string", "pattern": r"^(\d+(-\d+)?(,\d+(-\d+)?)*)?$"},
            startTime=TEXT,
            completionTime=TEXT,
            conditions=CONDITIONS,
        ),
    ),
    catalogue.REPLICA_SETS.key: _object(spec=_object(**REPLICA_SPEC), status=REPLICA_STATUS),
    catalogue.DEPLOYMENTS.key: _object(
        spec=_object(
            **REPLICA_SPEC,
            paused=FLAG,
            revisionHistoryLimit=NUMBER,
            progressDeadlineSeconds=NUMBER,
            strategy=_object(type=TEXT, rollingUpdate=_object(maxSurge=EITHER, maxUnavailable=EITHER)),
        ),
        status=REPLICA_STATUS,
    ),
    catalogue.SERVICES.key: _object(
        spec=_object(
            type=TEXT,
            clusterIP=TEXT,
            selector=TEXT_MAP,
            ports=_list(_object(port=NUMBER, name=TEXT, protocol=TEXT, targetPort=EITHER)),
        )
    ),
    catalogue.VOLUME_CLAIMS.key: _object(spec=ANY_OBJECT),
    catalogue.RESOURCE_QUOTAS.key: _object(
        spec=_object(hard=AMOUNTS, scopes=TEXTS, scopeSelector=ANY_OBJECT), status=_object(hard=AMOUNTS, used=AMOUNTS)
    ),
    catalogue.LIMIT_RANGES.key: _object(
        spec=_object(
            limits=_list(
                _object(
                    type=TEXT,
                    max=AMOUNTS,
                    min=AMOUNTS,
                    default=AMOUNTS,
                    defaultRequest=AMOUNTS,
                    maxLimitRequestRatio=AMOUNTS,
                )
            )
        )
    ),
    catalogue.NAMESPACES.key: _object(spec=_object(finalizers=TEXTS), status=_object(phase=TEXT)),
    catalogue.CONFIG_MAPS.key: _object(data=TEXT_MAP, binaryData=TEXT_MAP, immutable=FLAG),
    catalogue.SECRETS.key: _object(data=TEXT_MAP, stringData=TEXT_MAP, type=TEXT, immutable=FLAG),
    catalogue.EVENTS.key: _object(
        involvedObject=ANY_OBJECT, source=ANY_OBJECT, count=NUMBER, message=TEXT, reason=TEXT
    ),
    catalogue.LEASES.key: _object(spec=_object(holderIdentity=TEXT, renewTime=TEXT, leaseDurationSeconds=NUMBER)),
    catalogue.BUDGETS.key: _object(
        spec=_object(minAvailable=EITHER, maxUnavailable=EITHER, selector=SELECTOR),
        status=_object(
            currentHealthy=NUMBER,
            desiredHealthy=NUMBER,
            disruptionsAllowed=NUMBER,
            expectedPods=NUMBER,
            conditions=CONDITIONS,
        ),
    ),
    catalogue.PRIORITY_CLASSES.key: _object(value=NUMBER, globalDefault=FLAG, preemptionPolicy=TEXT, description=TEXT),
    catalogue.ROLES.key: ROLE,
    catalogue.CLUSTER_ROLES.key: ROLE,
    catalogue.ROLE_BINDINGS.key: BINDING,
    catalogue.CLUSTER_ROLE_BINDINGS.key: BINDING,
    catalogue.DEFINITIONS.key: _object(
        spec=_object(
            group=TEXT,
            scope=TEXT,
            names=_object(plural=TEXT, kind=TEXT, singular=TEXT, listKind=TEXT, shortNames=TEXTS, categories=TEXTS),
            versions=_list(DEFINITION_VERSION),
        ),
        status=_object(conditions=CONDITIONS),
    ),
}


def without_nulls(value: Any) -> Any:
    """Return a value without its nulls, which decode to nothing at all."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def check(rt: ResourceType, obj: Obj) -> None:
    """Refuse an object that would not decode.

    Raises:
        ApiError: 400, as for JSON that does not fit the type.
    """
    schema = SHAPES.get(rt.key, {"type": "object"})
    problems = [*schemas.check(METADATA, obj.get("metadata"), "metadata")]
    for name, part in (schema.get("properties") or {}).items():
        if name in obj:
            problems.extend(schemas.check(part, obj[name], name))
    if problems:
        _, field, told = problems[0]
        raise errors.bad_request(
            f'{rt.kind} in version "{rt.version}" cannot be handled as a {rt.kind}: '
            f"json: cannot unmarshal {field}: {told}"
        )
