// The whole fleet on one screen: what needs a person, incidents, capacity, jobs, teams, and the age of every source.
import { html } from "../vendor/htm-preact-standalone-3.1.1.js";
import { now, useLive } from "../api.js";
import { amount, counted, duration, plain, shortNode } from "../format.js";
import { Bar, Lane, Lanes, Link, Panel, State, Table, Time } from "../widgets.js";
import { NodeGrid } from "./nodes.js";

export function Overview({ status }) {
  const found = status.data;
  const incidents = useLive("/incidents?pageSize=8");
  if (!found) return html`<${Panel} title="Fleet" live=${status} />`;
  return html`<${NeedsYou} status=${status} /><div class="columns"><div>
    <${Panel} title="Incidents" live=${incidents} more=${html`<${Link} to=${["incidents"]}>all<//>`}>${
      incidents.data ? html`<${Recent} items=${incidents.data.items} />` : null
    }<//>
    <${Jobs} status=${status} />
    <${Changed} status=${status} /></div><div>
    <${Capacity} status=${status} />
    <${Panel} title="Nodes" live=${status} more=${html`<${Link} to=${["nodes"]}>all<//>`}><${NodeGrid} status=${found} /><//>
    <${Teams} status=${status} />
    <${Sources} status=${status} /></div>
  </div>`;
}

function NeedsYou({ status }) {
  const found = status.data;
  const needing = found.incidents.items.filter((incident) => incident.needsYou);
  const rows = [
    ...needing.map((incident) => html`<li>${incident.pendingApproval ? html`<${Lane} status="warn">awaits approval<//>` : html`<${State} kind="incident" state=${incident.state} />`}
      <${Link} to=${["incidents", incident.incidentId]}>${incident.fault.name} on ${shortNode(incident.node.instanceId)}<//>
      <span>${incident.pendingApproval ? incident.pendingApproval.ifUnanswered : incident.outcome}</span></li>`),
    ...found.unhealthy.map((node) => html`<li><${State} kind="node" state="UNHEALTHY" />
      <${Link} to=${["nodes", node.instanceId]}>${shortNode(node.instanceId)}<//> <span>${node.reason}</span></li>`),
    ...found.outages.map((outage) => html`<li><${Lane} status="failed">shared cause<//> <span>${outage.headline || outage.cause}</span></li>`),
  ];
  const more = found.incidents.needYou - needing.length;
  return html`<${Panel} title="Needs you" live=${status} wide=${true} id="needs-you">
    ${rows.length
      ? html`<ul class="rows">${rows}</ul>${more > 0 ? html`<p><${Link} to=${["incidents"]} filters=${{ state: "WAITING_FOR_PERSON,JOB_NOT_RESUMED,FAILED" }}>${more} more<//></p>` : null}`
      : html`<p class="empty">${found.incidents.needYou ? counted(found.incidents.needYou, "incident") + " not listed here." : "Nothing waits for a person."}</p>`}
    ${found.reasons.length ? html`<p class="dim">${found.health}: ${found.reasons.join("; ")}.</p>` : null}
  <//>`;
}

function Recent({ items }) {
  if (!items.length) return html`<p class="empty">No incident is recorded.</p>`;
  return html`<ul class="incidents">${items.map((incident) => html`<li data-href="#/incidents/${incident.incidentId}">
    <div class="line"><${State} kind="incident" state=${incident.state} />
      <${Link} to=${["incidents", incident.incidentId]}>${incident.fault.name}<//>
      <span class="dim">${shortNode(incident.node.instanceId)}, ${incident.node.pool}${incident.isDrill ? ", drill" : ""}, <${Time} at=${incident.openedAt} /></span></div>
    <${Lanes} incident=${incident} until=${now()} />
    ${incident.outcome || incident.block ? html`<p class="outcome">${incident.outcome || incident.block.reason}</p>` : null}
  </li>`)}</ul>`;
}

function Capacity({ status }) {
  const { gpus, cpu, memoryGib, nodes, serving } = status.data;
  const rented = serving.flatMap((each) => each.rentals.filter((rental) => !rental.endedAt)).reduce((sum, rental) => sum + rental.nodes, 0);
  const unread = { GPUs: "Evenkeel has not read the node list yet" };
  const row = (name, found, unit) => html`<div class="amount"><span>${name}</span>
    ${found.total === null
      ? html`<span class="dim">unknown: ${unread[name] || "no node states it"}</span>`
      : html`<${Bar} total=${found.total} label="${name}: ${amount(found.inUse)} of ${amount(found.total)} allocated, ${amount(found.free)} free in service"
            parts=${[["ok", found.inUse], ["free", found.free]]} />
          <span>${amount(found.inUse)} of ${amount(found.total)}${unit}, ${amount(found.free)} free${found.unknownNodes ? `; unknown on ${counted(found.unknownNodes, "node")}` : ""}</span>`}</div>`;
  return html`<${Panel} title="Capacity" live=${status}>
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
    ${rented ? html`<p>${counted(rented, "node")} rented for Deployments.</p>` : null}
  <//>`;
}

function Jobs({ status }) {
  const { jobs } = status.data;
  const time = (value) => (value === null ? "–" : duration(value));
  return html`<${Panel} title="Jobs" live=${status} more=${html`<${Link} to=${["queue"]}>queue<//> <${Link} to=${["jobs"]}>all<//>`}>
    <${Table} label="Jobs by priority class" empty="No job runs, and none is pending." rows=${jobs.classes}
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
    ${jobs.isStale ? html`<p class="problem">Running jobs are not current: last seen <${Time} at=${jobs.lastSeenAt} />.</p>` : null}
  <//>`;
}

function Teams({ status }) {
  const { teams } = status.data;
  return html`<${Panel} title="Teams (GPUs)" live=${status} more=${html`<${Link} to=${["teams"]}>all<//>`}>
    <${TeamTable} teams=${teams} /><//>`;
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
  ]} />`;
}

function Sources({ status }) {
  const found = [...status.data.sources].sort((a, b) => Number(a.state === "CURRENT") - Number(b.state === "CURRENT"));
  const old = found.filter((source) => source.state !== "CURRENT");
  return html`<${Panel} title="Sources of facts" live=${status}>
    <p>${old.length ? html`<${Lane} status="warn">${counted(old.length, "source")} of ${found.length} not current<//>` : html`<${Lane} status="ok">all ${found.length} current<//>`}</p>
    <ul class="rows">${(old.length ? old : []).map((source) => html`<li><${State} kind="source" state=${source.state} /> <span>${source.reason}</span></li>`)}</ul>
    <details><summary>Every source with its age</summary><ul class="rows">${found.map((source) => html`<li><${State} kind="source" state=${source.state} /> <span>${source.name}: ${source.ageSeconds === null ? "never answered" : `${duration(source.ageSeconds)} old`}</span></li>`)}</ul></details>
  <//>`;
}

function Changed({ status }) {
  const { automation, cordons } = status.data;
  const rows = [
    ...automation.holds.map((hold) => html`<li><${Lane} status="warn">held<//> <span>${hold.instanceId || hold.pool || "the whole fleet"} by ${hold.by}, until <time datetime=${hold.until}>${hold.until.slice(0, 16)}Z</time>: ${hold.reason}</span></li>`),
    ...cordons.map((cordon) => html`<li><${Lane} status="warn">cordoned<//> <${Link} to=${["nodes", cordon.instanceId]}>${shortNode(cordon.instanceId)}<//> <span>by ${cordon.by}, <${Time} at=${cordon.at} />${cordon.reason ? `: ${cordon.reason}` : ""}</span></li>`),
  ];
  return html`<${Panel} title="Holds and cordons of people" live=${status}>
    ${rows.length ? html`<ul class="rows">${rows}</ul>` : html`<p class="empty">No person holds automation, and none has cordoned a node.</p>`}<//>`;
}
