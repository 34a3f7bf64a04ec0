// The cost of failures, idle nodes and rent in a window, the most valuable changes, and the use by team.
import { html } from "../vendor/htm-preact-standalone-3.1.1.js";
import { now, useLive } from "../api.js";
import { counted, href, plain } from "../format.js";
import { Facts, Link, Panel, Table } from "../widgets.js";
import { Notes, hours, range, share, time, usd } from "./receipts.js";

const DAYS = ["1", "7", "30", "90"];
const SECONDS = 120;

// The start of the window stays the same for an hour, so that the path of the request stays the same.
function since(days) {
  const hour = 3600000;
  return new Date(Math.ceil(now() / hour) * hour - days * 24 * hour).toISOString();
}

export function Costs({ filters }) {
  const days = DAYS.includes(filters.days) ? filters.days : "30";
  const begin = encodeURIComponent(since(Number(days)));
  const live = useLive(`/cost-report?since=${begin}`, SECONDS);
  const spent = useLive(`/showback?since=${begin}&pageSize=200`, SECONDS);
  const found = live.data;
  const more = html`<label class="filter">Days <select value=${days} onChange=${(event) => { location.hash = href(["costs"], { days: event.target.value }); }}>
    ${DAYS.map((each) => html`<option value=${each}>${each}</option>`)}</select></label>`;
  return html`<div class="grid">
    <${Panel} title="Costs" live=${live} wide=${true} more=${more}>${found ? html`<${Summary} report=${found} />` : null}<//>
    <${Panel} title="GPUs in each hour" live=${live} wide=${true}>${found ? html`<${HourChart} report=${found} />` : null}<//>
    <${Panel} title="What to change first" live=${live} wide=${true}>${found ? html`<${Table} label="Changes" rows=${found.improvements} empty=${found.allNodes.nodes ? "Nothing was lost, and no committed node was idle." : "Unknown: no node is recorded."} columns=${[
      { title: "Change", grow: true, cell: (each) => html`${each.change}<br /><span class="dim">${each.method}</span>` },
      { title: "GPU-hours, at most", right: true, cell: (each) => hours(each.worthGpuHours) },
      { title: "Worth, at most", right: true, cell: (each) => usd(each.worthUsdMicros) },
    ]} />` : null}<//>
    <${Panel} title="Downtime by stage" live=${live}>${found ? html`<${Table} label="Stages" rows=${found.stages.filter((each) => each.time.count || each.time.unknown)} empty="No job was interrupted." columns=${[
      { title: "Stage", cell: (each) => plain(each.stage) },
      { title: "p50", right: true, cell: (each) => time(each.time.p50Seconds) },
      { title: "p99", right: true, cell: (each) => time(each.time.p99Seconds) },
      { title: "Longest", right: true, cell: (each) => time(each.time.maxSeconds) },
      { title: "Unknown", right: true, cell: (each) => each.time.unknown },
      { title: "Cost", right: true, cell: (each) => usd(each.time.count ? each.usdMicros : null) },
    ]} />` : null}<//>
    <${Panel} title="Lost by cause" live=${live}>${found ? html`<${Losses} rows=${found.byCause} />` : null}<//>
    <${Panel} title="GPU time by pool" live=${live} wide=${true}>${found ? html`<${Table} label="Pools" rows=${found.pools} empty="No node with GPUs is known." columns=${[
      { title: "Pool", cell: (each) => html`<${Link} to=${["nodes"]} filters=${{ pool: each.pool }}>${each.pool || "unknown"}<//>` },
      { title: "GPU-hours", right: true, cell: (each) => hours(each.gpuHours) },
      ...(found.allNodes.uses.map((use) => ({ title: plain(use.use), right: true, cell: (each) => share(each.uses.find((own) => own.use === use.use).share) }))),
      { title: "No job cost", right: true, cell: (each) => (each.isRented ? "rented" : usd(idleCost(each.uses))) },
    ]} />` : null}<//>
    <${Panel} title="Nodes with the largest losses" live=${live}>${found ? html`<${Table} label="Nodes" rows=${found.failures.nodes} empty="No node failed." columns=${[
      { title: "Node", cell: (each) => html`<${Link} to=${["nodes", each.node]}>${each.node}<//>` },
      { title: "Failures", right: true, cell: (each) => each.failures },
      { title: "Above the fleet", cell: (each) => (each.isAboveFleet ? html`<b>▲ yes</b>` : each.rate ? "no" : "unknown") },
      { title: "GPU-hours", right: true, cell: (each) => hours(each.gpuHours) },
      { title: "Cost", right: true, cell: (each) => usd(each.usdMicros) },
    ]} />` : null}<//>
    <${Panel} title="MTBF and MTTR by pool and fault class" live=${live}>${found ? html`<${Table} label="Reliability" rows=${found.reliability || []} empty="No node is recorded." columns=${[
      { title: "Pool / class", cell: (each) => each.group },
      { title: "Failures", right: true, cell: (each) => each.failures },
      { title: "Node MTBF", right: true, cell: (each) => between(each.mtbfHours) },
      { title: "95 % interval", right: true, cell: (each) => (each.lowMtbfHours === null ? "unknown" : `${between(each.lowMtbfHours)} to ${each.highMtbfHours === null ? "∞" : between(each.highMtbfHours)}`) },
      { title: "Node MTTR", right: true, cell: (each) => time(each.nodeRepair.meanSeconds) },
      { title: "Job MTTR", right: true, cell: (each) => time(each.jobRecovery.meanSeconds) },
    ]} />` : null}<//>
    <${Panel} title="Use and cost by team" live=${spent} wide=${true}>${spent.data ? html`<${Showback} spent=${spent.data} />` : null}<//>
    <${Panel} title="Limits of the figures" live=${live} wide=${true}>${found ? html`<${Notes} notes=${[...found.notes, ...found.saved[0].assumptions]} />` : null}<//>
  </div>`;
}

// The cost of GPUs that no job held; null if a part is unknown.
function idleCost(uses) {
  const costs = uses.filter((each) => ["WAITING", "NO_JOB"].includes(each.use)).map((each) => each.usdMicros);
  return costs.includes(null) ? null : costs.reduce((total, cost) => total + cost, 0);
}

function between(value) {
  return value === null ? "unknown" : value < 240 ? `${value.toFixed(1)} h` : `${(value / 24).toFixed(0)} d`;
}

function rate(found) {
  if (!found) return "unknown";
  const text = (value) => value.toFixed(2);
  return `${text(found.failuresPerThousandNodeDays)} (${text(found.lowFailuresPerThousandNodeDays)} to ${text(found.highFailuresPerThousandNodeDays)})`;
}

function Summary({ report }) {
  const { recovery, rent, effective, lost } = report;
  const saved = report.saved.find((each) => each.insteadOf === "HYPERPOD_UNCHANGED");
  return html`${report.isComplete ? null : html`<p class="problem">Incomplete: the last panel lists what was left out.</p>`}
    <${Facts} rows=${[
      ["Window", `${report.since.slice(0, 16)}Z to ${report.until.slice(0, 16)}Z`],
      ["GPU time", `${hours(report.allNodes.gpuHours)} GPU-hours of ${counted(report.allNodes.nodes, "node")}`],
      ["Failures", `${report.failures.count}; ${rate(report.failures.rate)} per 1,000 node-days`],
      ["Recovery", recovery.count ? `p50 ${time(recovery.p50Seconds)}, p99 ${time(recovery.p99Seconds)}, longest ${time(recovery.maxSeconds)}` : "unknown"],
      ["Lost at least", report.allNodes.nodes ? `${hours(lost.gpuHours)} GPU-hours, ${usd(lost.usdMicros)}` : "unknown: no node is recorded"],
      ["ETTR at most", share(effective.ratio)],
      ["Idle at most", `${hours(report.idleCommittedGpuHours)} GPU-hours, ${usd(report.idleCommittedUsdMicros)}`],
      ["Rented", `${usd(rent.usdMicros)}; peak ${usd(rent.peakUsdMicrosPerHour)} an hour, cap ${rent.capUsdMicrosPerHour ? usd(rent.capUsdMicrosPerHour) : "none"}`],
      ["Lemons", report.lemons ? (report.lemons.nodes.length ? `${report.lemons.nodes.join(", ")}: ${hours(report.lemons.gpuHours)} GPU-hours, ${usd(report.lemons.usdMicros)} lost` : "no node fails more often than the fleet") : "unknown"],
      ["Saved, an estimate", saved.claimed ? `${range(saved.lowSavedGpuHours, saved.highSavedGpuHours, hours)} GPU-hours, ${range(saved.lowSavedUsdMicros, saved.highSavedUsdMicros, usd)} against HyperPod unchanged (${counted(saved.claimed, "interruption")}; ${saved.notClaimed} not claimed)` : "unknown: no interruption allows an estimate"],
    ]} />`;
}

function Losses({ rows }) {
  return html`<${Table} label="Losses" rows=${rows} empty="No failure interrupted a job." columns=${[
    { title: "Cause", cell: (each) => each.group },
    { title: "Interruptions", right: true, cell: (each) => each.interruptions },
    { title: "Still open", right: true, cell: (each) => each.stillInterrupted },
    { title: "GPU-hours", right: true, cell: (each) => hours(each.gpuHours) },
    { title: "Cost", right: true, cell: (each) => usd(each.usdMicros) },
  ]} />`;
}

function Showback({ spent }) {
  return html`${spent.budgets.length ? html`<${Table} label="Budgets" rows=${spent.budgets} empty="" columns=${[
      { title: "Budget", cell: (each) => html`${each.team}, ${each.key}` },
      { title: "Used", right: true, cell: (each) => `${amount(each, each.used)} of ${amount(each, each.limit)}` },
      { title: "Expected by its end", right: true, cell: (each) => (each.expectedAtEnd === null ? "unknown" : amount(each, each.expectedAtEnd)) },
      { title: "Reached", cell: (each) => (each.reachedAt ? html`<b>▲ ${each.reachedAt.slice(0, 16)}Z</b>` : "not in this period") },
    ]} />` : null}
    <${Table} label="Use and cost" rows=${spent.items} empty="No job of Evenkeel held a GPU." columns=${[
      { title: "Team", cell: (each) => each.team },
      { title: "User", cell: (each) => each.user ?? html`<i class="dim">withheld</i>` },
      { title: "Project", cell: (each) => (each.project === "" ? "–" : each.project ?? html`<i class="dim">withheld</i>`) },
      { title: "Pool", cell: (each) => (each.kind === "RENT" ? `${each.pool} (rent)` : each.pool) },
      { title: "Jobs", right: true, cell: (each) => each.jobs },
      { title: "GPU-hours", right: true, cell: (each) => hours(each.gpuHours) },
      { title: "Cost", right: true, cell: (each) => usd(each.usdMicros) },
    ]} />
    ${spent.nextPageToken ? html`<p class="dim">The first 200 rows. All: <code>evenkeel teams spend -o csv</code></p>` : null}
    <p>Total: <b>${hours(spent.total.gpuHours)} GPU-hours, ${usd(spent.total.usdMicros)}</b>${spent.total.unpricedGpuHours ? `; ${hours(spent.total.unpricedGpuHours)} GPU-hours have no known price` : ""}</p>`;
}

function amount(budget, value) {
  return budget.quantity === "usd" ? usd(Math.round(value * 1e6)) : `${hours(value)} GPU-hours`;
}

// One column for each whole hour: GPUs of jobs on committed nodes, on rented nodes, and GPUs that waiting jobs needed.
const SERIES = [["committedGpus", "on committed nodes"], ["rentedGpus", "on rented nodes"], ["waitingGpus", "of waiting jobs"]];

function HourChart({ report }) {
  const columns = report.hours;
  if (!columns) return html`<p class="empty">Unknown: the stack is older than this console, and its report has no hours. Update the stack: <code>make deploy</code></p>`;
  const known = columns.filter((hour) => hour.committedGpus !== null);
  if (!known.length) return html`<p class="empty">No whole hour of the window has a record.</p>`;
  const sum = (hour) => SERIES.reduce((total, [name]) => total + hour[name], 0);
  const committed = (report.commitments || []).reduce((total, type) => total + type.committedNodes * (type.gpusPerNode || 0), 0);
  const top = Math.max(committed, ...known.map(sum), 1);
  const y = (gpus) => 100 - (100 * gpus) / top;
  const bars = columns.map((hour, index) => {
    const text = `${hour.at.slice(0, 10)} ${hour.at.slice(11, 16)}Z: ${hour.committedGpus === null ? "unknown" : SERIES.map(([name, label]) => `${hour[name]} GPUs ${label}`).join(", ")}`;
    if (hour.committedGpus === null) return html`<rect class="unknown" x=${index} y="0" width="1" height="100"><title>${text}</title></rect>`;
    let below = 0;
    return html`<g><title>${text}</title>${SERIES.map(([name]) => {
      const from = below;
      below += hour[name];
      return html`<rect class=${name} x=${index + 0.05} y=${y(below)} width="0.9" height=${y(from) - y(below)} />`;
    })}</g>`;
  });
  const peak = known.reduce((most, hour) => (sum(hour) > sum(most) ? hour : most));
  const label = `GPUs in each hour, ${columns.length} hours. Peak: ${Number(sum(peak).toFixed(1))} GPUs at ${peak.at.slice(0, 16)}Z. Committed now: ${committed} GPUs.`;
  return html`<div class="chart"><span class="dim">${Math.round(top)} GPUs</span>
    <svg role="img" aria-label=${label} viewBox="0 0 ${columns.length} 100" preserveAspectRatio="none">${bars}
      ${committed ? html`<line x1="0" x2=${columns.length} y1=${y(committed)} y2=${y(committed)}><title>${committed} committed GPUs now</title></line>` : null}</svg>
    <p class="line dim"><span>${columns[0].at.slice(0, 16)}Z</span><span class="space"></span><span>${columns[columns.length - 1].at.slice(0, 16)}Z</span></p>
    <p class="legend">${[...SERIES, ["unknown", "unknown"]].map(([name, text]) => html`<span><i class="key ${name}"></i> ${text}</span>`)}${committed ? html`<span><i class="key committed"></i> ${committed} committed GPUs now</span>` : null}</p></div>`;
}
