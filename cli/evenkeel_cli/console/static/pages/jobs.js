// The list of jobs, the queue in order, and one job: its attempts, its reason, and the actions on it.
import { html } from "../vendor/htm-preact-standalone-3.1.1.js";
import { change, planOf, read, useLive } from "../api.js";
import { ENDED_JOBS, amount, href, id, plain, secondsSince, duration, shortNode } from "../format.js";
import { Acts, Facts, Link, Panel, State, Table, Time, Timeline, Why, isMissing } from "../widgets.js";
import { Filter, Pages, emptyText, listPath } from "./lists.js";
import { JobReceipt } from "./receipts.js";

export const JOB_STATES = ["PENDING", "STARTING", "RUNNING", "STOPPING", "SUSPENDED", "SUCCEEDED", "FAILED", "CANCELLED"];
const FILTERS = ["state", "team", "class"];
const SORTED = [...FILTERS, "sort"];

const COLUMNS = [
  { title: "Job", sort: "name", cell: (job) => html`<${Link} to=${["jobs", job.jobId]} title=${job.jobId}>${job.name}<//>` },
  { title: "State", sort: "state", cell: (job) => html`<${State} kind="job" state=${job.state} />` },
  { title: "Team", sort: "team", cell: (job) => (job.team ? html`<${Link} to=${["jobs"]} filters=${{ team: job.team }}>${job.team}<//>` : html`<span class="dim">–</span>`) },
  { title: "Class", sort: "priority", cell: (job) => job.priorityClass || "(unset)" },
  { title: "Nodes", sort: "nodes", right: true, cell: (job) => job.currentNodes ?? job.nodes },
  { title: "GPUs a node", right: true, cell: (job) => job.gpusPerNode },
  { title: "Submitted", sort: "submittedAt", cell: (job) => html`<${Time} at=${job.submittedAt} />` },
  { title: "Reason", grow: true, cell: (job) => job.reason },
];

export function Jobs({ filters }) {
  const live = useLive(listPath("/jobs", filters, SORTED));
  return html`<${Panel} title="Jobs" live=${live} wide=${true} more=${html`
      ${["team", "class"].map((name) => (filters[name] ? html`<a class="chip" href=${href(["jobs"], { ...filters, [name]: "" })} title="Remove this filter">${name}: ${filters[name]} ✕</a>` : null))}
      <${Filter} page=${["jobs"]} filters=${filters} name="state" label="State" options=${JOB_STATES} />`}>
    <${Table} label="Jobs" empty=${emptyText(live, filters, html`No job is recorded. Submit one: <code>evenkeel jobs submit</code>`, "No job matches.")} rows=${live.data?.items || []} rowHref=${(job) => href(["jobs", job.jobId])} columns=${COLUMNS} sorting=${{ page: ["jobs"], filters }} />
    <${Pages} live=${live} page=${["jobs"]} filters=${filters} /><//>`;
}

export function Queue({ filters }) {
  const live = useLive(listPath("/jobs", { ...filters, state: "PENDING" }, FILTERS));
  return html`<${Panel} title="Queue: pending jobs in their order" live=${live} wide=${true}>
    <${Table} label="Queue" empty="No job is pending." rows=${live.data?.items || []} rowHref=${(job) => href(["jobs", job.jobId])} columns=${[
      ...["Job", "Team", "Class", "Nodes", "GPUs a node"].map((title) => COLUMNS.find((column) => column.title === title)),
      { title: "Waits", right: true, cell: (job) => duration(secondsSince(job.submittedAt)) },
      { title: "Why it waits", grow: true, cell: (job) => job.reason },
    ]} />
    <${Pages} live=${live} page=${["queue"]} filters=${filters} /><//>`;
}

export function Job({ words, shell }) {
  const path = `/jobs/${id(words[1])}`;
  const live = useLive(path);
  const why = useLive(`${path}/why`);
  const timeline = useLive(`${path}/timeline`);
  const job = live.data;
  const queue = job?.queue;
  if (isMissing(live)) return html`<${Panel} title=${words[1]} live=${live} />`;
  return html`<div class="grid">
    <${Panel} title=${job ? job.name : words[1]} live=${live} wide=${true} more=${job && !job.isRedacted ? html`<${Acts} acts=${acts(job, path)} isReadOnly=${shell.isReadOnly} />` : null}>${job
      ? html`<p><${State} kind="job" state=${job.state} /> ${job.reason}</p>
        ${job.isStale ? html`<p class="problem">Not current: the cluster was last seen <${Time} at=${job.lastSeenAt} />.</p>` : null}
        <${Facts} rows=${[
          ["Id", html`<code>${job.jobId}</code>`],
          ["Team", job.team ? html`<${Link} to=${["teams", job.team]}>${job.team}<//>` : null],
          ["Priority class", job.priorityClass || "(unset)"],
          ["Size", `${job.currentNodes ?? job.nodes} × ${job.gpusPerNode} GPUs${job.elastic ? `, elastic ${job.elastic.minNodes}–${job.elastic.maxNodes}` : ""}`],
          ["Rented nodes", rentedNodes(job)],
          ["Queue position", queue ? `${queue.position ?? "unknown"}${queue.startsAt ? `; starts about ${queue.startsAt.slice(0, 16)}Z` : ""}` : null],
          ["Submitted", html`<${Time} at=${job.submittedAt} /> by ${job.submittedBy}`],
          ["Started", job.startedAt ? html`<${Time} at=${job.startedAt} />` : null],
          ["Ended", job.endedAt ? html`<${Time} at=${job.endedAt} />` : null],
          ["Deadline", job.deadline],
          ["Checkpoints", job.checkpoint?.uri || "none: after a fault the job starts from step 0"],
          ["Unreadable", job.unreadableRecords ? `${job.unreadableRecords} records of attempts or rentals` : null],
          ["Resumes", job.resumePlan ? html`for <${Link} to=${["incidents", job.resumePlan.incidentId]}>${job.resumePlan.incidentId}<//>` : null],
        ]} />`
      : null}<//>
    <${Panel} title="Why" live=${why} more=${html`<${Link} to=${["decisions"]} filters=${{ subject: words[1] }}>all decisions<//>`}>${why.data ? html`<${Why} why=${why.data} />` : null}<//>
    <${Panel} title="Attempts" live=${live}>${job ? html`<${Table} label="Attempts" rows=${job.attempts || []} empty="The job never started." columns=${[
      { title: "Attempt", right: true, cell: (each) => each.attempt },
      { title: "State", cell: (each) => html`<${State} kind="attempt" state=${each.state} />` },
      { title: "Nodes", cell: (each) => (each.nodes || []).map((node) => html`<${Link} to=${["nodes", node.instanceId]} title=${node.name}>${shortNode(node.instanceId)}<//> `) },
      { title: "GPUs", right: true, cell: (each) => amount(each.gpus) },
      { title: "Admitted", cell: (each) => html`<${Time} at=${each.admittedAt} />` },
      { title: "From step", right: true, cell: (each) => each.resumeFrom?.step ?? "start" },
      { title: "Reason", grow: true, cell: (each) => each.reason },
    ]} />` : null}<//>
    <${JobReceipt} path=${path} signal=${job ? JSON.stringify([job.state, job.attempts]) : ""} />
    <${Panel} title="Timeline" live=${timeline} wide=${true}>${timeline.data ? html`<${Timeline} entries=${timeline.data.entries} />` : null}<//>
  </div>`;
}

/** Return the rented part of the current attempt, or why no rented nodes join the job; null without either. */
function rentedNodes(job) {
  const newest = (job.attempts || [])[0];
  const part = newest && !newest.endedAt ? newest.rentedPart : null;
  if (part) return `${part.nodes.length} of ${part.pool} beside ${newest.nodes.length - part.nodes.length} committed, by rental ${part.rental}`;
  return job.mixedGrowth && !job.endedAt ? job.mixedGrowth.reason : null;
}

function acts(job, path) {
  if (ENDED_JOBS.includes(job.state)) return [];
  const reason = { name: "reason", label: "Reason" };
  const act = (verb, label, sentVerb) => ({
    label: `${label}…`, title: `${label} ${job.name}`, verb: sentVerb || label, fields: [reason], effects: [], plansAtOnce: true,
    plan: () => sentencesOf("POST", `${path}/${verb}`, {}),
    send: async (values) => {
      const found = await change("POST", `${path}/${verb}`, { reason: values.reason });
      return `The job is ${String(found.state || "changed").toLowerCase()}. ${found.reason || ""}`;
    },
  });
  return [
    job.isSuspended ? act("resume", "Resume") : act("suspend", "Suspend"),
    { label: "Priority…", title: `Change the priority class of ${job.name}`, verb: "Change", fields: [{ name: "priorityClass", label: "Priority class (empty: the lowest)", value: job.priorityClass || "", optional: true }, reason], effects: [],
      plan: ({ priorityClass }) => sentencesOf("PATCH", path, { priorityClass }),
      send: async (values) => `The class is ${(await change("PATCH", path, values, { version: (await read(path)).version })).priorityClass || "unset"}.` },
    act("cancel", "Cancel", "Cancel the job"),
  ];
}

// The plan of a change of a job, in sentences.
async function sentencesOf(method, path, body) {
  const plan = await planOf(method, path, body);
  if (!plan.state) return plan.effects;
  const { queue, decision } = plan;
  const victims = (decision?.victims || []).map((each) => each.jobId).join(", ");
  return [
    plan.state === plan.nextState ? `The job stays ${plain(plan.state)}.` : `The job is ${plain(plan.state)}, then ${plain(plan.nextState)}.`,
    ...plan.effects,
    ...(queue ? [`Queue position: ${queue.position ?? "none"} now, ${queue.positionAfter ?? "none"} after the change.`] : []),
    ...(decision ? [`The next scheduling cycle: ${decision.reason}${victims ? ` It preempts ${victims}.` : ""}`] : []),
  ];
}
