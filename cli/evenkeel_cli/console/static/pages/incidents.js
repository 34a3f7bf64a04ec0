// The list of incidents, and one incident: its two lanes, its evidence, its reason, and the actions on it.
import { html } from "../vendor/htm-preact-standalone-3.1.1.js";
import { change, now, useLive } from "../api.js";
import { duration, href, id, plain, shortNode } from "../format.js";
import { Acts, DecisionLink, Facts, IncidentState, Lane, Lanes, Link, NextStep, Panel, Table, Time, Timeline, Why, isMissing } from "../widgets.js";
import { Execution } from "./execution.js";
import { Filter, Pages, emptyText, listPath } from "./lists.js";
import { IncidentReceipt } from "./receipts.js";

const NEEDS_PERSON = ["WAITING_FOR_PERSON", "JOB_NOT_RESUMED", "FAILED"];

export const INCIDENT_STATES = ["OPEN", "RECOVERING", "BLOCKED", "WAITING_FOR_PERSON", "JOB_NOT_RESUMED", "FAILED", "RECOVERED", "OBSERVED", "STOOD_DOWN"];

export function Incidents({ filters }) {
  const live = useLive(listPath("/incidents", filters, ["state"]));
  return html`<${Panel} title="Incidents" live=${live} wide=${true} more=${html`<${Filter} page=${["incidents"]} filters=${filters} name="state" label="State" options=${INCIDENT_STATES} />`}>
    <${Table} label="Incidents" empty=${emptyText(live, filters, "No incident is recorded.", "No incident matches.")} rows=${live.data?.items || []} rowHref=${(each) => href(["incidents", each.incidentId])} columns=${[
      { title: "Incident", whole: true, cell: (each) => html`<${Link} to=${["incidents", each.incidentId]}>${each.incidentId}<//>` },
      { title: "State", cell: (each) => html`<${IncidentState} incident=${each} />` },
      { title: "Fault", cell: (each) => each.fault.name },
      { title: "Node", cell: (each) => html`<${Link} to=${["nodes", each.node.instanceId]} title=${each.node.instanceId}>${shortNode(each.node.instanceId)}<//>` },
      { title: "Pool", whole: true, cell: (each) => each.node.pool },
      { title: "Opened", cell: (each) => html`<${Time} at=${each.openedAt} />` },
      { title: "Outcome", grow: true, cell: (each) => each.outcome || (each.block ? each.block.reason : "") },
    ]} />
    <${Pages} live=${live} page=${["incidents"]} filters=${filters} /><//>`;
}

export function Incident({ words, shell }) {
  const path = `/incidents/${id(words[1])}`;
  const live = useLive(path);
  const why = useLive(`${path}/why`);
  const timeline = useLive(`${path}/timeline`);
  const found = live.data;
  if (isMissing(live)) return html`<${Panel} title=${words[1]} live=${live} />`;
  return html`<div class="grid">
    <${Panel} title=${found ? `${found.fault.name} on ${found.node.instanceId}` : words[1]} live=${live} wide=${true}
      more=${found ? html`<${Acts} acts=${acts(found, path)} isReadOnly=${shell.isReadOnly} />` : null}>${found
        ? html`<p><${IncidentState} incident=${found} /> ${found.isDrill ? html`<b>drill</b> ` : ""}${found.outcome}</p>
          <${Facts} rows=${[
            ["Waits", found.block ? html`<b>${found.block.guardrail}</b>: ${found.block.reason}` : null],
            ["Plan", found.pendingApproval ? html`${found.pendingApproval.reason} <${DecisionLink} decisionId=${found.pendingApproval.decisionId} />` : null],
            ["If unanswered", found.pendingApproval?.ifUnanswered],
            ["Approval", found.approval ? `${found.approval.by} ${found.approval.approves ? "approved" : "declined"} it` : null],
            ["Node", html`<${Link} to=${["nodes", found.node.instanceId]}>${found.node.instanceId}<//>, ${found.node.instanceType}, pool <${Link} to=${["nodes"]} filters=${{ pool: found.node.pool }}>${found.node.pool}<//>`],
            ["Replaced by", found.replacementInstanceId ? html`<${Link} to=${["nodes", found.replacementInstanceId]}>${found.replacementInstanceId}<//>` : null],
            ["Fault", `${found.fault.key}, ${found.severity}`],
            ["Opened", html`<${Time} at=${found.openedAt} />`],
            ["Acknowledged", found.acknowledgement ? html`${found.acknowledgement.by}, <${Time} at=${found.acknowledgement.at} />${found.acknowledgement.reason ? `: ${found.acknowledgement.reason}` : ""}` : found.settledAt ? null : "by nobody yet"],
            ["Runbook", NEEDS_PERSON.includes(found.state) ? html`<code>docs/runbooks/incident-needs-person.md</code>` : null],
            ["Mode", found.mode],
            ["Execution", html`<code>${found.execution}</code>`],
          ]} />
          <${Lanes} incident=${found} until=${now()} />
          <ul class="rows"><li><b>node</b> <${Lane} status=${found.nodeLane.status}>${found.nodeLane.phase}<//>${found.nodeLane.since ? html` <span class="dim">since <${Time} at=${found.nodeLane.since} /></span>` : null}</li>
          <${NextStep} lane=${found.nodeLane} />
          ${found.jobLanes.map((job) => html`<li><b>job</b> <${Lane} status=${job.status}><${Link} to=${["jobs", job.jobId]}>${job.name || job.jobId}<//> ${job.phase}${job.attempt ? `, attempt ${job.attempt}` : ""}<//></li>`)}
          ${found.jobLanes.length ? null : html`<li><b>job</b> <span class="dim">no job is known to have run on this node</span></li>`}</ul>`
        : null}<//>
    <${Panel} title="Why" live=${why} wide=${true} more=${html`<${Link} to=${["decisions"]} filters=${{ subject: words[1] }}>all decisions<//>`}>${why.data ? html`<${Why} why=${why.data} />` : null}<//>
    <${IncidentReceipt} path=${path} signal=${found ? JSON.stringify([found.state, found.stages, found.jobLanes]) : ""} />
    <${Execution} path=${path} />
    <${Panel} title="Timeline" live=${timeline}>${timeline.data ? html`<${Timeline} entries=${timeline.data.entries} />` : null}<//>
    <${Panel} title="Time by stage" live=${live}>${found ? html`<${Table} label="Stages" rows=${found.took} empty="No stage is reached yet." columns=${[
      { title: "Reached", cell: (each) => each.stage },
      { title: "After", right: true, cell: (each) => `+${duration(each.seconds)}` },
    ]} />` : null}<//>
    <${Panel} title="Evidence" live=${live} wide=${true}>${found ? html`<${Table} label="Evidence" rows=${found.evidence} empty="No signal is kept." columns=${[
      { title: "Signal", cell: (each) => each.faultKey || plain(each.kind) },
      { title: "Seen", cell: (each) => html`<${Time} at=${each.observedAt} />` },
      { title: "Source", cell: (each) => each.source },
      { title: "Detail", grow: true, cell: (each) => each.detail },
    ]} />` : null}<//>
  </div>`;
}

function acts(found, path) {
  const plan = found.pendingApproval;
  const late = found.lateApproval;
  const jobs = found.affectedJobs.map((each) => each.jobId).join(", ") || "the jobs on the node at that time";
  const effects = (given) => [`${given.reason} (${given.decisionId})`, `Jobs that Evenkeel will stop and move: ${jobs}.`];
  const reason = { name: "reason", label: "Reason" };
  const answer = (verb, given) => async (values) => {
    const response = await change("POST", `${path}/${verb}`, { decisionId: given.decisionId, reason: values.reason });
    return response.approval ? `${response.approval.by} ${response.approval.approves ? "approved" : "declined"} the plan.` : "Done.";
  };
  const list = [];
  if (plan || late) {
    const given = plan || late;
    list.push({ label: "Approve…", title: `Approve the plan of ${found.incidentId}`, verb: "Approve", isMain: true, fields: [reason],
      effects: [...effects(given), "Evenkeel checks every guardrail again before it acts."], send: answer("approve", given) });
  }
  if (plan) {
    list.push({ label: "Decline…", title: `Decline the plan of ${found.incidentId}`, verb: "Decline", fields: [reason],
      effects: [`${plan.reason} (${plan.decisionId})`, "Nothing is changed, and the incident is settled."], send: answer("decline", plan) });
  }
  list.push({ label: "Acknowledge…", title: `Acknowledge ${found.incidentId}`, verb: "Acknowledge", fields: [reason],
    effects: ["Other people see that you work on this incident. The recovery continues as before.",
      ...(found.acknowledgement ? [`${found.acknowledgement.by} works on it now. You take it over.`] : [])],
    send: async (values) => `${(await change("POST", `${path}/acknowledge`, { reason: values.reason })).acknowledgement.by} works on it.` });
  return list;
}
