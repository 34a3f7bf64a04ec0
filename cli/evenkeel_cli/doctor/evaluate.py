"""Judge facts: pure functions that return findings. They use no clock, network or environment."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from evenkeel_cli.doctor.findings import DoctorFinding, Status, failed, merge_equal_findings, ok, unknown, warning
from evenkeel_cli.state_signs import count_of

Json = dict[str, Any]

MIN_CONCURRENCY = 25
"""Below this, the functions of the stack throttle each other."""
ENOUGH_CONCURRENCY = 100
"""Concurrent invocations in a storm of events (docs/operate/doctor.md)."""
MANY_EVENTS, MANY_REQUESTS = 1000, 50
SILENT_SECONDS, LATE_SECONDS = 600, 180
_SHOWN = 5


def judge_credentials(arn: str) -> list[DoctorFinding]:
    if arn.endswith(":root"):
        return [warning(f"You are signed in as the account's root user, {arn}.", "Use a role: docs/operate/doctor.md")]
    return [ok(f"You are signed in as {arn}.")]


def judge_api(problem: str, fix: str, overview: Json) -> list[DoctorFinding]:
    """Judge the API's answer to `GET /overview`, or the problem that it returned instead."""
    if problem:
        return [failed(problem, fix)]
    automation = overview["automation"]
    mode = automation.get("modeInForce") or automation["mode"]
    means = {
        "observe": "Evenkeel records decisions and changes nothing",
        "recommend": "each plan waits for approval",
        "act": "Evenkeel acts without approval",
    }.get(mode, "unknown to this version of the command")
    findings = [ok(f"The API of fleet {overview['fleet']} answers. Mode {mode}: {means}.")]
    if automation["isHeld"]:
        findings.append(warning("Automation is held: no repair starts.", "evenkeel automation show", "hold"))
    return findings


def judge_stack(status: str, is_of_context: bool, url: str) -> list[DoctorFinding]:
    """Judge the state of the CloudFormation stack, and whether the command talks to this stack's API."""
    findings = []
    if status.endswith("_IN_PROGRESS"):
        findings.append(
            warning(f"A deployment is running ({status}).", "Run evenkeel doctor again after the deployment.")
        )
    elif status in ("CREATE_COMPLETE", "UPDATE_COMPLETE", "IMPORT_COMPLETE"):
        findings.append(ok(f"The stack is deployed ({status})."))
    elif status == "UPDATE_ROLLBACK_COMPLETE":
        text = "The last deployment failed and was rolled back. The previous version runs."
        findings.append(warning(text, "aws cloudformation describe-stack-events --stack-name STACK, then make deploy"))
    else:
        fix = "aws cloudformation describe-stack-events --stack-name STACK, then make deploy"
        findings.append(failed(f"The stack is in state {status}.", fix))
    if not is_of_context:
        text = f"The command talks to {url}, which is not this stack's API."
        findings.append(failed(text, "Name the right stack with --stack, or set EVENKEEL_URL.", "API"))
    return findings


def judge_api_log_role(setting: str, role: str) -> list[DoctorFinding]:
    """Judge the access log of the API. `setting` is the parameter `ApiLogRole`; `role` is the account's log role."""
    if role:
        log_text = "could write an access log" if setting == "off" else "writes its access log"
        return [ok(f"API Gateway {log_text} as {role} (ApiLogRole={setting}).")]
    text = "API Gateway has no role for its logs in this account and region."
    match setting:
        case "off":
            return [ok(f"{text} The API writes no access log (ApiLogRole=off).")]
        case "set-up":
            return [ok(f"{text} The deployment sets one (ApiLogRole=set-up).")]
        case _:
            return [failed(text, "Deploy with ApiLogRole=off, or ApiLogRole=set-up (docs/deploy.md, step 2).")]


def judge_hyperpod(arn: str, description: Json | None) -> list[DoctorFinding]:
    """Judge the HyperPod cluster. `description` is None if no cluster has this ARN."""
    if not arn:
        return [ok("This fleet has no HyperPod cluster (parameter HyperPodClusterArn).")]
    if description is None:
        return [failed(f"There is no HyperPod cluster {arn}.", "Deploy with the right HyperPodClusterArn.")]
    name, status = description["ClusterName"], description["ClusterStatus"]
    fix = f"aws sagemaker describe-cluster --cluster-name {name}"
    if status == "InService":
        findings = [ok(f"{name} is InService, {arn}.")]
    elif status in ("Failed", "RollingBack", "Deleting"):
        findings = [failed(f"{name} is {status}: {description.get('FailureMessage') or 'AWS gives no reason'}.", fix)]
    else:
        findings = [warning(f"{name} is {status}: Evenkeel repairs no node of the cluster until it is InService.", fix)]
    return [
        *findings,
        _judge_node_recovery(description.get("NodeRecovery")),
        *_judge_patches(name, description.get("InstanceGroups", [])),
    ]


def _judge_node_recovery(setting: str | None) -> DoctorFinding:
    subject = "NodeRecovery"
    match setting:
        case "None":
            return ok("NodeRecovery is None: Evenkeel repairs the nodes.", subject)
        case "Automatic":
            text = "NodeRecovery is Automatic: HyperPod repairs the faults that it detects. Evenkeel moves the jobs."
            return ok(f"{text} It repairs a node only if HyperPod does not (docs/ownership.md).", subject)
        case _:
            return unknown(f"HyperPod reports NodeRecovery as {setting}.", "docs/ownership.md", subject)


_PATCHES = {"UpToDate": 0, "UpdateAvailable": 1, "SecurityUpdateRequired": 2, "EndOfLife": 2}


def _judge_patches(cluster: str, groups: Sequence[Json]) -> list[DoctorFinding]:
    subject = "patch level"
    fix = f"aws sagemaker update-cluster-software --cluster-name {cluster}"
    levels = {group["InstanceGroupName"]: group.get("ImageVersionStatus") for group in groups}
    wrong_levels = {name: level for name, level in levels.items() if level and _PATCHES.get(level, 1)}
    if any(_PATCHES.get(level, 1) == 2 for level in wrong_levels.values()):
        return [failed(f"These instance groups need a patch: {_format_pairs(wrong_levels)}.", fix, subject)]
    if wrong_levels:
        return [
            warning(
                f"Newer images are available for these instance groups: {_format_pairs(wrong_levels)}.", fix, subject
            )
        ]
    silent = sorted(name for name, level in levels.items() if not level)
    if silent:
        text = f"HyperPod reports no patch level for {', '.join(silent)}. HyperPod replaces no node by API"
        return [unknown(f"{text} before the cluster was patched once (docs/deploy.md).", fix, subject)]
    return [ok(f"Every instance group is up to date: {', '.join(sorted(levels)) or 'there are none'}.", subject)]


def _format_pairs(pairs: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in sorted(pairs.items()))


def judge_kubernetes(
    states: Mapping[str, str], self_tests: Mapping[str, Json], problems: Mapping[str, tuple[str, str]]
) -> list[DoctorFinding]:
    """Judge which clusters answer.

    Args:
        states: EKS's own state of each cluster; `NOT_FOUND` if EKS has no such cluster, empty if it could not be asked.
        self_tests: Each function's self-test, by function.
        problems: (reason, fix) of the functions that gave no self-test.
    """
    if not states:
        return [failed("No Kubernetes cluster is configured.", "Deploy with the parameter KubernetesClusters.")]
    findings = []
    for cluster, state in states.items():
        if state == "NOT_FOUND":
            text = f"EKS has no cluster {cluster} in this account and region."
            findings.append(failed(text, "Deploy with the right names in KubernetesClusters.", cluster))
            continue
        answers = {
            function: answer for function, test in self_tests.items() if (answer := _find_cluster(test, cluster))
        }
        unreachable = {
            name: answer for name, answer in answers.items() if answer["error"] and not _is_access_denied(answer)
        }
        if unreachable:
            findings.append(_unreachable_finding(cluster, unreachable, len(answers)))
        elif not answers:
            reason, fix = next(iter(problems.values()), ("", _INVOKE))
            findings.append(unknown(f"No function tested {cluster}. {reason}".rstrip(), fix, cluster))
        else:
            versions = sorted({answer["serverVersion"] for answer in answers.values() if answer["serverVersion"]})
            summary = f"{cluster} answers all {len(answers)} tested functions"
            findings.append(ok(f"{summary}, version {', '.join(versions) or 'unknown'}.", cluster))
        if state and state != "ACTIVE":
            findings.append(
                warning(
                    f"EKS reports that {cluster} is {state}.", f"aws eks describe-cluster --name {cluster}", cluster
                )
            )
    return findings


def _unreachable_finding(cluster: str, unreachable: Mapping[str, Json], tested_count: int) -> DoctorFinding:
    name, answer = next(iter(sorted(unreachable.items())))
    saw = f"The error of {name}: {answer['error']}"
    if answer["serverVersion"]:
        text = (
            f"{cluster} answers, but {len(unreachable)} of {tested_count} functions may not read anything there. {saw}"
        )
        return failed(text, "Check the cluster's control plane: kubectl get --raw='/readyz?verbose'", cluster)
    text = f"{cluster} does not answer {len(unreachable)} of {tested_count} functions. {saw}"
    return failed(text, "Check the cluster's endpoint, and the parameters SubnetIds and SecurityGroupIds.", cluster)


_INVOKE = "Run evenkeel doctor with an identity that may invoke the functions (docs/operate/doctor.md)."


def _find_cluster(test: Json, cluster: str) -> Json | None:
    return next((candidate for candidate in test["clusters"] if candidate["cluster"] == cluster), None)


def _is_access_denied(answer: Json) -> bool:
    """Whether the server answered, and let the function's role do nothing."""
    return str(answer["error"]).startswith("NotAllowed")


def judge_access(
    self_tests: Mapping[str, Json], roles: Mapping[str, str], groups: Mapping[str, Sequence[str]]
) -> list[DoctorFinding]:
    """Judge which verbs each function's role lacks.

    Args:
        self_tests: Each function's self-test, by function.
        roles: The ARN of each function's role.
        groups: The Kubernetes groups that its access entry must name.
    """
    findings = []
    for function, test in self_tests.items():
        for answer in test["clusters"]:
            cluster, entry = answer["cluster"], f"--principal-arn {roles[function]}"
            group_option = f"--kubernetes-groups {' '.join(groups[function])}"
            if _is_access_denied(answer):
                text = f"{cluster} denies access to {function}: {answer['error']}"
                findings.append(
                    failed(
                        text, f"aws eks create-access-entry --cluster-name {cluster} {entry} {group_option}", function
                    )
                )
            elif answer["missing"]:
                text = f"In {cluster} the role of the function lacks: {_rights_text(answer['missing'])}."
                fix = (
                    "kubectl apply -f charts/kubernetes-access.yaml (for a team's namespace: docs/operate/teams.md), "
                    f"then aws eks update-access-entry --cluster-name {cluster} {entry} {group_option}"
                )
                findings.append(failed(text, fix, function))
    tested_names = [
        name for name, test in self_tests.items() if any(not answer["error"] for answer in test["clusters"])
    ]
    if tested_names and not findings:
        findings.append(ok(f"The roles of {len(tested_names)} functions have all verbs that they need."))
    return findings


def _rights_text(missing_rights: Sequence[Json]) -> str:
    right_texts = []
    for document in missing_rights:
        kind = f"{document['resource']}.{document['group']}" if document["group"] else document["resource"]
        right_texts.append(
            f"{document['verb']} {kind}" + (f" in {document['namespace']}" if document["namespace"] else "")
        )
    more = f" and {len(right_texts) - _SHOWN} more" if len(right_texts) > _SHOWN else ""
    return ", ".join(right_texts[:_SHOWN]) + more


_BIND_DISCOVERY = (
    "kubectl create clusterrolebinding evenkeel-discovery --clusterrole=system:discovery --group=evenkeel:readers"
)


def judge_kueue(test: Json, namespaces: Sequence[str]) -> list[DoctorFinding]:
    """Judge whether Kueue admits in a namespace of the jobs, and whether the stack is deployed for that."""
    findings, admission = [], test["admission"]
    for answer in test["clusters"]:
        cluster = answer["cluster"]
        if answer["kueueError"]:
            text = f"Evenkeel cannot read whether {cluster} runs Kueue: {answer['kueueError']}"
            findings.append(failed(text, _BIND_DISCOVERY, cluster))
        elif answer["kueueNamespaces"] is None:
            findings.append(unknown(f"{cluster} was not checked for Kueue.", _INVOKE, cluster))
        else:
            findings.append(_judge_cluster_kueue(cluster, admission, answer["kueueNamespaces"], namespaces))
    return findings or [unknown("No cluster could be checked for Kueue.", _INVOKE)]


def _judge_cluster_kueue(
    cluster: str, admission: str, kueue_namespaces: Mapping[str, str], namespaces: Sequence[str]
) -> DoctorFinding:
    shared_namespaces = [name for name in namespaces if name in kueue_namespaces]
    missing_namespaces = [name for name in namespaces if name not in kueue_namespaces]
    if admission == "kueue" and missing_namespaces:
        text = (
            f"Admission=kueue, but Kueue does not admit in {', '.join(missing_namespaces)} of {cluster}: "
            "jobs there never start."
        )
        return failed(text, "Create a LocalQueue there (docs/operate/queues.md).", cluster)
    if admission == "evenkeel" and shared_namespaces:
        text = f"Kueue admits in {', '.join(shared_namespaces)} of {cluster}, so Evenkeel starts no jobs there."
        return failed(text, "Deploy with Admission=kueue (docs/operate/queues.md).", cluster)
    if admission == "kueue":
        return ok(f"Kueue admits in {', '.join(namespaces)} of {cluster}.", cluster)
    beside = f"; Kueue admits in {len(kueue_namespaces)} other namespaces" if kueue_namespaces else ""
    return ok(f"Kueue does not admit in the namespaces of Evenkeel's jobs in {cluster}{beside}.", cluster)


def judge_queues(events: int, requests: int) -> list[DoctorFinding]:
    """Judge the waiting messages of the two queues from which functions read."""
    findings = []
    for name, count, limit, page in (
        ("events", events, MANY_EVENTS, "events-delayed"),
        ("scheduling requests", requests, MANY_REQUESTS, "cycles-delayed"),
    ):
        if count > limit:
            findings.append(failed(f"{count} {name} wait.", f"docs/runbooks/{page}.md", name))
        else:
            findings.append(ok(f"{count} {name} wait.", name))
    return findings


DEAD_LETTERS = {
    "DeadLetterQueue": "malformed-events",
    "UnhandledEventsQueue": "unhandled-events",
    "UndeliveredEventsQueue": "undelivered-events",
    "FailedCyclesQueue": "failed-cycles",
    "FailedInvocationsQueue": "failed-invocations",
    "UndeliveredPagesQueue": "undelivered-pages",
}
"""Each queue that must stay empty, and its runbook."""


def judge_dead_letters(counts: Mapping[str, int]) -> list[DoctorFinding]:
    findings = [
        failed(f"{name} holds {counts[name]} messages.", f"docs/runbooks/{page}.md", name)
        for name, page in DEAD_LETTERS.items()
        if counts[name]
    ]
    return findings or [ok(f"All {len(counts)} dead-letter queues are empty.")]


def judge_schedules(states: Mapping[str, str], enable: str) -> list[DoctorFinding]:
    """Judge the schedules: `ENABLED`, `DISABLED`, or empty if the function has none."""
    missing_schedules = sorted(name for name, state in states.items() if not state)
    disabled_schedules = sorted(name for name, state in states.items() if state and state != "ENABLED")
    if missing_schedules:
        return [
            failed(f"There is no schedule for {', '.join(missing_schedules)}.", "Deploy the stack again: make deploy")
        ]
    if disabled_schedules:
        return [
            warning(f"The schedules of {', '.join(disabled_schedules)} are off: these functions do not run.", enable)
        ]
    return [ok(f"The schedules of {', '.join(sorted(states))} are on.")]


_SILENT_PAGES = {"sweep_fleet": "sweep-silent", "watch_cluster": "watch-silent", "schedule_jobs": "cycles-silent"}


def judge_ages(
    ages: Mapping[str, float | None], states: Mapping[str, str], deployed_seconds: float | None = None
) -> list[DoctorFinding]:
    """Judge how long ago each scheduled function finished.

    Args:
        ages: Seconds since the last run, by function; None if no run was ever seen.
        states: State of each known schedule, by function. A function without a known schedule is missing.
        deployed_seconds: Seconds since the stack was deployed; None if unknown.
    """
    findings = []
    for function, age in ages.items():
        fix = f"docs/runbooks/{_SILENT_PAGES.get(function, 'README')}.md"
        if age is not None and age <= LATE_SECONDS:
            findings.append(ok(f"Last run {_age_text(age)} ago.", function))
            continue
        last_run = "The function has never run." if age is None else f"Last run {_age_text(age)} ago."
        if states.get(function) == "DISABLED":
            findings.append(
                warning(f"{last_run} The schedule of the function is off.", "Turn the schedules on.", function)
            )
        elif age is None and deployed_seconds is not None and deployed_seconds < LATE_SECONDS:
            text = f"The function has not finished a run yet. The stack was deployed {_age_text(deployed_seconds)} ago."
            findings.append(warning(text, "Run evenkeel doctor again in a few minutes.", function))
        elif age is None or age > SILENT_SECONDS:
            findings.append(failed(last_run, fix, function))
        else:
            findings.append(warning(f"{last_run} It must run each minute.", fix, function))
    return findings


def judge_sources(sources: Sequence[Json]) -> list[DoctorFinding]:
    """Judge when each source of facts last answered. The API reports these times."""
    findings = [_judge_source(source) for source in sources]
    bad_findings = [finding for finding in findings if finding.status is not Status.OK]
    current_count = len(findings) - len(bad_findings)
    return [
        *([ok(f"{current_count} of {len(findings)} sources of facts are current.")] if current_count else []),
        *merge_equal_findings(bad_findings),
    ]


def _judge_source(source: Json) -> DoctorFinding:
    name, reason = source["name"], source["reason"]
    match source["state"]:
        case "CURRENT":
            return ok(reason, name)
        case "FAILING":
            return warning(reason, "docs/runbooks/source-stale.md", name)
        case "STALE":
            return failed(reason, "docs/runbooks/source-stale.md", name)
        case "OFF":
            return warning(
                "The schedules are off, so Evenkeel does not read this source.", "Turn the schedules on.", name
            )
        case _:
            return unknown(reason, "docs/runbooks/source-stale.md", name)


def _age_text(seconds: float) -> str:
    return (
        f"{seconds:.0f}s" if seconds < 120 else f"{seconds / 60:.0f}min" if seconds < 7200 else f"{seconds / 3600:.0f}h"
    )


def judge_concurrency(limit: int, unreserved_executions: int, peak: float | None) -> list[DoctorFinding]:
    """Judge how many concurrent Lambda invocations the stack can still use.

    Args:
        limit: The account's limit in this region.
        unreserved_executions: The part that no function has reserved.
        peak: Highest concurrent use during the last day; None if unknown.
    """
    unused_executions = unreserved_executions - round(peak or 0)
    use_text = "current use unknown" if peak is None else f"{peak:.0f} in use at the peak of the last day"
    text = (
        f"{unused_executions} of {limit} concurrent invocations are available: {unreserved_executions} "
        f"unreserved, {use_text}."
    )
    fix = (
        "aws service-quotas request-service-quota-increase --service-code lambda --quota-code L-B99A9384 "
        f"--desired-value {max(1000, limit)}"
    )
    if unused_executions < MIN_CONCURRENCY:
        return [failed(text, fix)]
    if unused_executions < ENOUGH_CONCURRENCY:
        return [warning(text, fix)]
    return [ok(text)]


def judge_events(rules: Mapping[str, Json]) -> list[DoctorFinding]:
    """Judge the event rules.

    Args:
        rules: By name `{"state", "matched", "failed"}` of the last day; a count is None if it is not known.
    """
    findings = []
    for name, rule in rules.items():
        if rule["state"] != "ENABLED":
            text = f"Rule {name} is {rule['state'] or 'missing'}: its events are lost."
            findings.append(failed(text, "Deploy the stack again, or: aws events enable-rule --name RULE", name))
        elif rule["failed"]:
            events = count_of(round(rule["failed"]), "event")
            text = f"EventBridge could not deliver {events} of rule {name} in the last day."
            findings.append(failed(text, "docs/runbooks/undelivered-events.md", name))
    if findings:
        return findings
    counts = {name: rule["matched"] for name, rule in rules.items()}
    if any(count is None for count in counts.values()):
        text = f"All {len(rules)} rules are on. Matched events are unknown: this endpoint has no such metrics."
        return [unknown(text, "docs/operate/doctor.md#events")]
    counts_text = ", ".join(f"{name} {count:.0f}" for name, count in counts.items() if count)
    if not counts_text:
        text = "All rules are on, but no event matched a rule in the last day."
        return [warning(text, "Send a drill event (docs/deploy.md, step 11) and look again after a minute.")]
    quiet = ", ".join(name for name, count in counts.items() if not count)
    return [ok(f"Events in the last day: {counts_text}." + (f" No events for {quiet}." if quiet else ""))]


def judge_pages(subscriptions: Sequence[str], topic: str) -> list[DoctorFinding]:
    """Judge whether pages reach a person. `subscriptions` holds ARNs, or `PendingConfirmation`."""
    confirmed_arns = [subscription for subscription in subscriptions if subscription.startswith("arn:")]
    unconfirmed_count = len(subscriptions) - len(confirmed_arns)
    fix = f"aws sns subscribe --topic-arn {topic} --protocol email --notification-endpoint YOUR-ADDRESS"
    if confirmed_arns:
        more = f"; {unconfirmed_count} more did not confirm" if unconfirmed_count else ""
        return [ok(f"Pages go to {len(confirmed_arns)} subscribers{more}.")]
    if unconfirmed_count:
        return [
            failed(
                "No subscription to the pages is confirmed.",
                f"Confirm the subscription in the email from SNS, or: {fix}",
            )
        ]
    return [failed("The page topic has no subscriptions: alarms reach no person.", fix)]


FLEETS = "/evenkeel/fleets"
"""Path of the parameters in which each stack records its fleet."""


def judge_fleets(clusters: Collection[str], hyper_pod: str, other_fleets: Mapping[str, Json]) -> list[DoctorFinding]:
    """Judge whether a cluster belongs to two fleets. `other_fleets` holds the records of the other fleets, by fleet."""
    findings = []
    for fleet, fleet_document in sorted(other_fleets.items()):
        fleet_clusters = str(fleet_document.get("clusters", "")).split(",")
        shared_clusters = [name for name in clusters if name in fleet_clusters]
        if hyper_pod and hyper_pod == fleet_document.get("hyperPod"):
            shared_clusters.append(hyper_pod)
        findings += [
            failed(
                f"It also belongs to the fleet {fleet} of the stack {fleet_document.get('stack', '')}: both "
                "repair its nodes.",
                "Remove it from the parameters of one stack (docs/operate/fleets.md).",
                name,
            )
            for name in shared_clusters
        ]
    return findings or [
        ok(f"No cluster is shared with the {len(other_fleets)} other fleets of the account and region.")
    ]


def judge_policy(policy: Json) -> list[DoctorFinding]:
    if policy.get("error"):
        return [failed(f"The policy cannot be read: {policy['error']}", "docs/runbooks/policy-refused.md")]
    if policy["inForce"] is None:
        reason = f"No policy is active, so Evenkeel decides nothing: {policy['refused']}"
        return [failed(reason, "docs/runbooks/policy-refused.md")]
    change = f"with change {policy['inForce']}" if policy["inForce"] else "without changes"
    text = f"Policy {policy['name']} {change} is active ({policy['hash']})."
    if policy["refused"]:
        reason = f"The last policy change is not active: {policy['refused']} {text}"
        return [failed(reason, "docs/runbooks/policy-refused.md")]
    return [ok(text)]


def judge_versions(command: str, self_tests: Mapping[str, Json]) -> list[DoctorFinding]:
    """Judge the versions of the command, of the functions with their layer, and of the API servers."""
    versions = sorted({test["version"] for test in self_tests.values()})
    servers = sorted(
        {
            f"{answer['cluster']} {answer['serverVersion']}"
            for test in self_tests.values()
            for answer in test["clusters"]
            if answer["serverVersion"]
        }
    )
    findings = [ok(f"Kubernetes: {', '.join(servers)}.", "server")] if servers else []
    if len(versions) > 1:
        text = f"Functions run different versions: {', '.join(versions)}. A deployment did not reach all of them."
        return [failed(text, "Deploy the stack again: make deploy", "functions"), *findings]
    if versions != [command]:
        text = f"The command has version {command}; the functions and their layer have version {versions[0]}."
        return [
            warning(text, "Deploy the stack or update the command; both must have the same version.", "functions"),
            *findings,
        ]
    return [
        ok(f"The command, {len(self_tests)} functions and their layer have version {command}.", "functions"),
        *findings,
    ]


def judge_untested(problems: Mapping[str, tuple[str, str]]) -> list[DoctorFinding]:
    """Report the functions that could not test themselves. `problems` holds (reason, fix) by function."""
    return _grouped(unknown(reason, fix, function) for function, (reason, fix) in problems.items())


def _grouped(findings: Iterable[DoctorFinding]) -> list[DoctorFinding]:
    return merge_equal_findings(list(findings))
