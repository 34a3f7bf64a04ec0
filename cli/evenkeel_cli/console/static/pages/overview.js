// The whole fleet on one screen: what needs a person, incidents, capacity, jobs, teams, spending, what changed.
// Incidents and holds are current. Counts are from the last sweep, which runs each minute. An older count shows its age.
import { html, useState } from "../vendor/htm-preact-standalone-3.1.1.js";
import { change, now, useLive } from "../api.js";
import { amount, clockTime, counted, dollars, duration, href, plain, shortNode } from "../format.js";
import { Act, Bar, IncidentState, Lane, Lanes, Link, Panel, State, Table, Time } from "../widgets.js";
import { pageOf } from "./events.js";
import { NodeGrid } from "./nodes.js";

export function Overview({ status, shell }) {
  const found = status.data;
  const incidents = useLive("/incidents?pageSize=8");
  if (!found) return html`<${Panel} title="Fleet" live=${status} />`;
  return html`<${NeedsYou} status=${status} /><div class="columns"><div>
    <${Panel} title="Incidents" live=${incidents} more=${html`<${Link} to=${["incidents"]}>all<//>`}>${
      incidents.data ? html`<${Recent} items=${incidents.data.items} shown=${found.incidents.items} />` : null
    }<//>
    <${Jobs} status=${status} />
    <${Changed} signal=${found.changedAt} /></div><div>
    <${Capacity} status=${status} />
    <${Panel} title="Nodes" live=${status} more=${html`<${Link} to=${["nodes"]}>all<//>`}><${NodeGrid} status=${found} isShort=${true} /><//>
    <${Teams} status=${status} />
    <${Spending} status=${status} />
    <${HeldByPeople} status=${status} shell=${shell} />
    <${Sources} status=${status} /></div>
  </div>`;
}

// A panel of counts. Before the first sweep they are unknown, and never zero.
function Counted({ title, status, more, children }) {
  const { counts } = status.data;
  return html`<${Panel} title=${title} live=${status} more=${more}>${
    counts ? html`${counts.isStale ? html`<p class="problem">Not current: last counted <${Time} at=${counts.at} />.</p>` : null}${children(counts)}`
      : html`<p class="empty">Unknown: no sweep has counted the fleet yet.</p>`}<//>`;
}

function NeedsYou({ status }) {
  const found = status.data;
  const needing = found.incidents.items.filter((incident) => incident.needsYou);
  const about = (incident) => html`<${Link} to=${["incidents", incident.incidentId]}>${incident.fault.name} on ${shortNode(incident.instanceId)}<//>`;
  const rows = [
    ...needing.map((incident) => html`<li>${incident.ifUnanswered ? html`<${Lane} status="warn">awaits approval<//>` : html`<${State} kind="incident" state=${incident.state} />`} ${about(incident)}
      ${incident.acknowledgement ? html`<span class="chip">${incident.acknowledgement.by} works on it</span>` : null} <span>${incident.ifUnanswered || incident.outcome}</span></li>`),
    ...(found.counts?.unhealthy || []).map((node) => html`<li><${State} kind="node" state="UNHEALTHY" />
      <${Link} to=${["nodes", node.instanceId]}>${shortNode(node.instanceId)}<//> <span>${node.reason}</span></li>`),
    ...found.outages.map((outage) => html`<li><${Lane} status="failed">shared cause<//> <span>${outage.headline}</span></li>`),
  ];
  const more = found.incidents.needYou - needing.length;
  return html`<${Panel} title="Needs you" live=${status} wide=${true} id="needs-you">
    ${rows.length
      ? html`<ul class="rows">${rows}</ul>${more > 0 ? html`<p><${Link} to=${["incidents"]} filters=${{ state: "WAITING_FOR_PERSON,JOB_NOT_RESUMED,FAILED" }}>${more} more<//></p>` : null}`
      : html`<p class="empty">${found.incidents.needYou ? counted(found.incidents.needYou, "incident") + " not listed here." : "Nothing waits for a person."}</p>`}
    ${found.reasons.length ? html`<p class="dim">${found.health}: ${found.reasons.join("; ")}.</p>` : null}
  <//>`;
}

function Recent({ items, shown }) {
  if (!items.length) return html`<p class="empty">No incident is recorded.</p>`;
  const lanes = new Map(shown.map((each) => [each.incidentId, each]));
  return html`<ul class="incidents">${items.map((incident) => {
    const { nodeLane, jobLanes } = lanes.get(incident.incidentId) || {};
    const step = nodeLane?.next ? nodeLane : null;
    return html`<li data-href="#/incidents/${incident.incidentId}">
    <div class="line"><${IncidentState} incident=${incident} />
      <${Link} to=${["incidents", incident.incidentId]}>${incident.fault.name}<//>
      <span class="dim">${shortNode(incident.node.instanceId)}, ${incident.node.pool}${incident.isDrill ? ", drill" : ""}, <${Time} at=${incident.openedAt} /></span></div>
    <${Lanes} incident=${incident} until=${now()} jobLanes=${jobLanes || []} />
    ${step ? html`<p class="outcome">Node: ${step.phase}${step.next ? `. Next: ${step.next}${step.latestAt ? `, at the latest by ${clockTime(step.latestAt)}` : ""}.` : "."}</p>` : null}
    ${incident.outcome || incident.block ? html`<p class="outcome">${incident.outcome || incident.block.reason}</p>` : null}
  </li>`;
  })}</ul>`;
}

function Capacity({ status }) {
  const unread = { GPUs: "Evenkeel has not read the node list yet" };
  const row = (name, found, unit) => html`<div class="amount"><span>${name}</span>
    ${found.total === null
      ? html`<span class="dim">unknown: ${unread[name] || "no node states it"}</span>`
      : html`<${Bar} total=${found.total} label="${name}: ${amount(found.inUse)} of ${amount(found.total)} allocated, ${amount(found.free)} free in service"
            parts=${[["ok", found.inUse], ["free", found.free]]} />
          <span>${amount(found.inUse)} of ${amount(found.total)}${unit}, ${amount(found.free)} free${found.unknownNodes ? `; unknown on ${counted(found.unknownNodes, "node")}` : ""}</span>`}</div>`;
  return html`<${Counted} title="Capacity" status=${status}>${({ gpus, cpu, memoryGib, nodes }) => html`
    ${row("GPUs", gpus, "")}${row("CPU", cpu, " vCPU")}${row("Memory", memoryGib, " GiB")}
    ${gpus.isStale ? html`<p class="problem">Not current: last seen <${Time} at=${gpus.lastSeenAt} />.</p>` : null}
    <${Table} label="Pools" empty="No node is known yet: the first sweep adds them." rows=${nodes.pools}
      rowHref=${(pool) => `#/nodes?pool=${encodeURIComponent(pool.pool)}`} columns=${[
        { title: "Pool", cell: (pool) => html`<${Link} to=${["nodes"]} filters=${{ pool: pool.pool }}>${pool.pool}<//>` },
        { title: "Kind", cell: (pool) => pool.kind },
        { title: "Nodes", right: true, cell: (pool) => pool.total },
        { title: "States", grow: true, cell: (pool) => html`${Object.entries(pool.states).map(([state, number]) => html`<${State} kind="node" state=${state} word="${number} ${plain(state)}" /> `)}
          ${pool.isStale ? html`<span class="problem">not current since <${Time} at=${pool.lastSeenAt} /></span>` : null}` },
      ]} />
    ${nodes.isCut || nodes.isLowerBound ? html`<p class="dim">Not all nodes or pools are counted.</p>` : null}`}<//>`;
}

function Jobs({ status }) {
  const time = (value) => (value === null ? "–" : duration(value));
  return html`<${Counted} title="Jobs" status=${status} more=${html`<${Link} to=${["queue"]}>queue<//> <${Link} to=${["jobs"]}>all<//>`}>${({ jobs }) => html`
    <${Table} label="Jobs by priority class" empty="No jobs are running or pending." rows=${jobs.classes}
      rowHref=${(each) => `#/jobs?class=${encodeURIComponent(each.priorityClass || "")}`} columns=${[
        { title: "Class", cell: (each) => html`<${Link} to=${["jobs"]} filters=${{ class: each.priorityClass }}>${each.priorityClass || "(unset)"}<//>` },
        { title: "Running", right: true, cell: (each) => each.running },
        { title: "Pending", right: true, cell: (each) => each.pending },
        { title: "Preempted", right: true, cell: (each) => each.preempted },
        { title: "Suspended", right: true, cell: (each) => each.suspended },
        { title: "Avg run", right: true, cell: (each) => time(each.averageRunSeconds) },
        { title: "Max run", right: true, cell: (each) => time(each.longestRunSeconds) },
        { title: "Avg wait", right: true, cell: (each) => time(each.averageWaitSeconds) },
        { title: "Max wait", right: true, cell: (each) => time(each.longestWaitSeconds) },
      ]} />
    ${jobs.unmanaged.workloads ? html`<p>${counted(jobs.unmanaged.workloads, "unmanaged workload")} on ${jobs.unmanaged.gpus} GPUs.</p>` : null}
    ${jobs.isLowerBound ? html`<p class="dim">More than 2000 jobs in one state: the counts are lower bounds.</p>` : null}
    ${jobs.isStale ? html`<p class="problem">Running jobs are not current: last seen <${Time} at=${jobs.lastSeenAt} />.</p>` : null}`}<//>`;
}

function Teams({ status }) {
  return html`<${Counted} title="Teams (GPUs)" status=${status} more=${html`<${Link} to=${["teams"]}>all<//>`}>${({ teams }) => html`<${TeamTable} teams=${teams} />`}<//>`;
}

export function TeamTable({ teams }) {
  return html`<${Table} label="Teams" empty="No teams are set up." rows=${teams} rowHref=${(team) => `#/teams/${encodeURIComponent(team.team)}`} columns=${[
    { title: "Team", cell: (team) => html`<${Link} to=${["teams", team.team]}>${team.team}<//>` },
    { title: "Quota", right: true, cell: (team) => team.accelerators.allocated ?? "none" },
    { title: "Used", right: true, cell: (team) => team.accelerators.used },
    { title: "Borrowed", right: true, cell: (team) => team.accelerators.borrowed ?? "–" },
    { title: "Lent", right: true, cell: (team) => team.accelerators.lent ?? "–" },
    { title: "Quota used", right: true, cell: (team) => (team.accelerators.utilization === null ? "–" : `${team.accelerators.utilization} %`) },
    { title: "Running", right: true, cell: (team) => team.running },
    { title: "Pending", right: true, cell: (team) => team.pending },
    { title: "p90 wait", right: true, cell: (team) => duration(team.p90WaitSeconds) },
  ]} />`;
}

// Rented nodes against their cap, and the budgets nearest to their end.
function Spending({ status }) {
  const share = (budget) => (budget.limit ? budget.used / budget.limit : budget.used ? Infinity : 0);
  const value = (budget, number) => (budget.quantity === "usd" ? dollars(number) : `${amount(number)} GPU-hours`);
  return html`<${Counted} title="Rent and budgets" status=${status} more=${html`<${Link} to=${["costs"]}>costs<//>`}>${({ rent, budgets }) => html`
    <div class="amount"><span>Rent</span>${rent.capUsdPerHour
      ? html`<${Bar} total=${rent.capUsdPerHour} label="Rent: ${dollars(rent.usdPerHour)} of ${dollars(rent.capUsdPerHour)} an hour" parts=${[["ok", rent.usdPerHour]]} />
          <span>${dollars(rent.usdPerHour)} of ${dollars(rent.capUsdPerHour)} an hour, ${counted(rent.nodes, "node")}</span>`
      : html`<span class="dim">the policy rents no nodes</span>`}</div>
    <${Table} label="Budgets" empty="No team that you may see has a budget." rows=${[...budgets].sort((a, b) => share(b) - share(a)).slice(0, 5)}
      rowHref=${(budget) => href(["teams", budget.team])} columns=${[
        { title: "Team", cell: (budget) => html`<${Link} to=${["teams", budget.team]}>${budget.team}<//>` },
        { title: "Period", whole: true, cell: (budget) => budget.period },
        { title: "Used", right: true, cell: (budget) => value(budget, budget.used) },
        { title: "Budget", right: true, cell: (budget) => value(budget, budget.limit) },
        { title: "State", cell: (budget) => (share(budget) >= 1 ? html`<${Lane} status="failed">used up<//>` : share(budget) >= 0.8 ? html`<${Lane} status="warn">near its end<//>` : html`<${Lane} status="ok">within<//>`) },
      ]} />`}<//>`;
}

function Changed({ signal }) {
  const live = useLive("/events?pageSize=6", 60, signal);
  const items = live.data?.items || [];
  return html`<${Panel} title="What changed" live=${live} more=${html`<${Link} to=${["events"]}>all<//>`}>
    ${items.length ? html`<ul class="rows">${items.map((event) => html`<li><span class="dim"><${Time} at=${event.occurredAt} /></span> <b>${event.kind}</b>
      ${pageOf(event) ? html`<${Link} to=${pageOf(event)}>${shortNode(event.subject)}<//>` : null} <span>${event.text}${event.by ? ` (${event.by})` : ""}</span></li>`)}</ul>`
      : html`<p class="empty">Nothing is recorded yet.</p>`}<//>`;
}

// Ends one hold: of a node, of a pool, or of the whole fleet.
export function releaseAct(fleet, { instanceId, pool, by, until, reason }) {
  const scope = instanceId ? { instanceId } : pool ? { pool } : {};
  const name = instanceId || pool || "automation";
  return { label: "Release…", title: `Release ${name}`, verb: "Release", fields: [{ name: "reason", label: "Reason" }],
    effects: [`${by} holds ${name} until ${until.slice(0, 16)}Z: ${reason}`, "Repairs and job stops of recoveries start again where no other hold applies. Evenkeel retries blocked recoveries."],
    send: async (values) => {
      const { wasHeld } = await change("POST", `/clusters/${encodeURIComponent(fleet)}/automation/release`, { ...values, ...scope });
      return `${name} ${wasHeld ? "is released" : "was not held any more"}.`;
    } };
}

// The dialog belongs to the panel: the row of a released hold disappears while its dialog still shows the answer.
function HeldByPeople({ status, shell }) {
  const [act, setAct] = useState(null);
  const { automation, cordons } = status.data;
  const release = (hold) => (shell.isReadOnly ? null : html`<button onClick=${() => setAct(releaseAct(shell.fleet, hold))}>Release…</button>`);
  const rows = [
    ...automation.holds.map((hold) => html`<li><${Lane} status="warn">held<//> <span>${hold.instanceId || hold.pool || "the whole fleet"} by ${hold.by}, until <time datetime=${hold.until}>${hold.until.slice(0, 16)}Z</time>: ${hold.reason}</span>${release(hold)}</li>`),
    ...cordons.map((cordon) => html`<li><${Lane} status="warn">cordoned<//> <${Link} to=${["nodes", cordon.instanceId]}>${shortNode(cordon.instanceId)}<//> <span>by ${cordon.by}, <${Time} at=${cordon.at} />${cordon.reason ? `: ${cordon.reason}` : ""}</span></li>`),
  ];
  return html`<${Panel} title="Holds and cordons by people" live=${status}>
    ${rows.length ? html`<ul class="rows">${rows}</ul>` : html`<p class="empty">No person holds automation or has cordoned a node.</p>`}
    ${act ? html`<${Act} act=${act} onClose=${() => setAct(null)} />` : null}<//>`;
}

function Sources({ status }) {
  const { sources, sourceAges, stale } = status.data;
  const found = [...sourceAges].sort((a, b) => Number(a.state === "CURRENT") - Number(b.state === "CURRENT"));
  const total = Object.values(sources).reduce((sum, number) => sum + number, 0);
  const old = total - (sources.CURRENT || 0);
  return html`<${Panel} title="Sources of facts" live=${status}>
    <p>${old ? html`<${Lane} status="warn">${counted(old, "source")} of ${total} not current<//>` : html`<${Lane} status="ok">all ${total} current<//>`}</p>
    <ul class="rows">${stale.map((text) => html`<li><span>${text}</span></li>`)}</ul>
    <details><summary>Every source with its age</summary><ul class="rows">${found.map((source) => html`<li><${State} kind="source" state=${source.state} />
      <span>${source.name}: ${source.seenAt ? html`last answer <${Time} at=${source.seenAt} />` : "never answered"}</span></li>`)}</ul></details>
  <//>`;
}
