// Parts that several pages share.
import { html, useEffect, useErrorBoundary, useRef, useState } from "./vendor/htm-preact-standalone-3.1.1.js";
import { Problem } from "./api.js";
import { SIGNS, ago, clockTime, dollars, duration, fullTime, href, plain, signOf } from "./format.js";

export function State({ kind, state, word }) {
  const sign = signOf(kind, state);
  return html`<span class="state ${sign}"><span class="sign" aria-hidden="true">${SIGNS[sign]}</span> ${word || plain(state)}</span>`;
}

export function Lane({ status, children }) {
  return html`<span class="state ${status}"><span class="sign" aria-hidden="true">${SIGNS[status] || "·"}</span> ${children}</span>`;
}

// Shows "awaits approval" for an incident that awaits it. The incident's own state is the state of its recovery.
export function IncidentState({ incident }) {
  if (incident.pendingApproval) return html`<${Lane} status="warn">awaits approval<//>`;
  return html`<${State} kind="incident" state=${incident.state} />`;
}

// The next step of a recovery, and when the current step ends at the latest.
export function NextStep({ lane }) {
  if (!lane.next) return null;
  return html`<li><b>next</b> <span>${lane.next}${lane.latestAt ? `, at the latest by ${clockTime(lane.latestAt)}` : ""}</span></li>`;
}

export function Time({ at }) {
  return at ? html`<time datetime=${at} title=${fullTime(at)}>${ago(at)}</time>` : html`<span class="dim">–</span>`;
}

// A panel that shows an answer of the API. If no newer answer comes, the panel turns grey and shows since when.
export function Panel({ title, live, more, children, id, wide }) {
  const failed = live?.problem;
  return html`<section class="panel ${wide ? "wide" : ""} ${failed ? "stale" : ""}" id=${id} aria-label=${title}>
    <header><h2>${title}</h2>${more ? html`<div class="more">${more}</div>` : null}</header>
    ${failed ? html`<${Failed} problem=${failed} since=${live.since} hasData=${live.data !== undefined} />` : null}
    ${live && live.data === undefined ? (failed ? null : html`<p class="loading">Loading…</p>`) : html`<${Guard}>${children}<//>`}
  </section>`;
}

const GUARD_RETRY_MS = 5000;

// Shows the error of its children in their place, and tries again later. Without it, one unexpected answer would stop
// the updates of every panel, and the page would show old facts as current.
export function Guard({ children }) {
  const [error, reset] = useErrorBoundary((found) => window.reportError(found));
  useEffect(() => {
    if (!error) return undefined;
    const timer = setTimeout(reset, GUARD_RETRY_MS);
    return () => clearTimeout(timer);
  }, [error]);
  if (!error) return children;
  return html`<p class="problem" role="alert">The console cannot show this answer: ${error.message}. It tries again. Check that the console is as new as the stack: <code>evenkeel --version</code></p>`;
}

// Returns whether the API says that the item of a page does not exist. Then the other panels would only repeat it.
export const isMissing = (live) => live.data === undefined && live.problem?.code === "NOT_FOUND";

function Failed({ problem, since, hasData }) {
  return html`<p class="problem" role="status">
    ${hasData ? `Not current since ${clockTime(new Date(since).toISOString())}. ` : ""}${problem.message} <code>${problem.code}</code>${problem.hint ? html`<br />${problem.hint}` : null}
  </p>`;
}

export function Facts({ rows }) {
  const shown = rows.filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== false);
  return html`<dl class="facts">${shown.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

// columns: [{title, cell, right, grow, whole, sort}]: right-aligned, takes free width, never wrapped, sorted by the API.
// On small screens, a cell of a column with `grow` stands below its row.
// With rowHref, a row is one link for the keyboard (j, k and Enter).
// sorting: {page, filters}, if the API can sort the list by the field `sort` of a column.
export function Table({ columns, rows, empty, rowHref, label, sorting }) {
  if (!rows.length) return html`<p class="empty">${empty}</p>`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${label}><table style=${{ "--columns": columns.filter((column) => !column.grow).length }}>
    <thead><tr>${columns.map((column) => (sorting && column.sort
      ? html`<th scope="col" class=${kindsOf(column)} aria-sort=${orderOf(column, sorting.filters)}><${SortLink} column=${column} sorting=${sorting} /></th>`
      : html`<th scope="col" class=${kindsOf(column)}>${column.title}</th>`))}</tr></thead>
    <tbody>${rows.map((row) => html`<tr data-href=${rowHref ? rowHref(row) : null}>
      ${columns.map((column) => html`<td class=${kindsOf(column)}>${column.cell(row)}</td>`)}
    </tr>`)}</tbody></table></div>`;
}

function kindsOf(column) {
  return ["right", "grow", "whole"].filter((name) => column[name]).join(" ");
}

function orderOf(column, { sort }) {
  return sort === column.sort ? "ascending" : sort === `-${column.sort}` ? "descending" : "none";
}

// First click: ascending; second: descending; third: the order of the list itself.
function SortLink({ column, sorting }) {
  const order = orderOf(column, sorting.filters);
  const sort = { none: column.sort, ascending: `-${column.sort}`, descending: "" }[order];
  return html`<a class="sort" href=${href(sorting.page, { ...sorting.filters, page: "", sort })}>${column.title}${{ none: "", ascending: " ↑", descending: " ↓" }[order]}</a>`;
}

export function Link({ to, filters, children, title }) {
  return html`<a href=${href(to, filters)} title=${title}>${children}</a>`;
}

export function Why({ why }) {
  const { decision } = why;
  return html`<div class="why">
    <p class="sentence">${why.sentence}</p>
    ${why.considered?.length ? html`<${Alternatives} label="Alternatives" options=${why.considered} />` : null}
    ${why.guardrails?.length ? html`<h3>Guardrails</h3><${Guardrails} readings=${why.guardrails} />` : null}
    ${why.changes?.length
      ? html`<h3>What would change it</h3><ul>${why.changes.map((each) => html`<li>${each.message}</li>`)}</ul>`
      : null}
    ${why.changesUnknown ? html`<h3>What would change it</h3><p>Unknown: ${why.changesUnknown}</p>` : null}
    ${decision ? html`<${Decision} decision=${decision} />` : null}
    ${(why.earlier || []).filter((each) => each.considered?.length > 1).map((each) => html`<h3>Earlier decision: ${plain(each.kind)}</h3>
      <${Alternatives} label="Alternatives of ${each.decisionId}" options=${each.considered} /><${Decision} decision=${each} />`)}
    ${why.next ? html`<p>Next: <code>${why.next}</code></p>` : null}
    ${why.isRedacted ? html`<p class="dim">Facts of another team are left out.</p>` : null}
  </div>`;
}

export function Alternatives({ options, label }) {
  return html`<${Table} label=${label} rows=${options} empty="" columns=${[
    { title: "Option", cell: (each) => html`${each.chosen ? html`<b>✔ ${plain(each.option)}</b>` : plain(each.option)}` },
    { title: "Expected", right: true, cell: (each) => duration(each.expectedSeconds) },
    { title: "GPU-hours lost", right: true, cell: (each) => (each.gpuHoursLost ?? "–") },
    { title: "Cost", right: true, cell: (each) => dollars(each.usd) },
    { title: "Why not", grow: true, cell: (each) => (each.chosen ? html`<b>chosen</b>` : each.whyNot || "") },
  ]} />`;
}

// The id of a decision about a new node is long: a list shows its beginning.
export function DecisionLink({ decisionId }) {
  const shown = decisionId.length > 24 ? `${decisionId.slice(0, 23)}…` : decisionId;
  return html`<${Link} to=${["decisions", decisionId]} title=${decisionId}><code>${shown}</code><//>`;
}

function Decision({ decision }) {
  return html`<p class="dim">${decision.reason}</p>
    <p class="dim line"><span>Decision <${DecisionLink} decisionId=${decision.decisionId} /></span><span>${plain(decision.kind)}: ${plain(decision.action)}</span>
    <${Time} at=${decision.decidedAt} /><span>mode ${decision.mode}</span><span>policy <code>${decision.policyHash}</code></span></p>`;
}

// The number that each guardrail compares, against its limit. It blocks when the number reaches the limit.
function Guardrails({ readings }) {
  return html`<${Table} label="Guardrails" rows=${readings} empty="" columns=${[
    { title: "Guardrail", cell: (each) => plain(each.guardrail) },
    { title: "For", cell: (each) => (each.action === "cordon" ? "cordon" : "repair") },
    { title: "State", cell: (each) => (each.isBlocking ? html`<${Lane} status="warn">blocks<//>` : each.reading === null ? html`<${Lane} status="idle">not read yet<//>` : each.isBlocking === null ? html`<${Lane} status="idle">unknown<//>` : html`<${Lane} status="ok">passes<//>`) },
    { title: "Reading", right: true, cell: (each) => each.reading ?? "–" },
    { title: "Limit", right: true, cell: (each) => each.limit ?? "unknown" },
    { title: "Counts", grow: true, cell: (each) => each.unit },
    { title: "Read", cell: (each) => html`<${Time} at=${each.readAt} />` },
  ]} />`;
}

export function Timeline({ entries }) {
  if (!entries.length) return html`<p class="empty">No entries yet.</p>`;
  return html`<ol class="timeline">${entries.map((entry) => html`<li>
    <time datetime=${entry.at} title=${fullTime(entry.at)}>${clockTime(entry.at)}</time>
    <b>${entry.kind}</b><span>${entry.text || html`<i class="dim">not shown to your team</i>`}
    ${entry.decisionId ? html` <${DecisionLink} decisionId=${entry.decisionId} />` : null}</span></li>`)}</ol>`;
}

export function Bar({ parts, total, label }) {
  return html`<div class="bar" role="img" aria-label=${label} title=${label}>${parts.map(
    ([kind, value]) => (total ? html`<i class=${kind} style=${{ width: `${(100 * value) / total}%` }}></i>` : null),
  )}</div>`;
}

// A dialog that shows what an action does, asks for the reason, and shows the answer or why the API refused the action.
//
// act.plan: reads the plan from the API. act.plansAtOnce: the plan needs no values of the fields.
export function Act({ act, onClose }) {
  const dialog = useRef(null);
  const [state, set] = useState({ plan: null, problem: null, isBusy: false, done: "" });
  const [values, setValues] = useState(Object.fromEntries((act.fields || []).map((field) => [field.name, field.value || ""])));
  useEffect(() => {
    dialog.current.showModal();
    if (act.plansAtOnce) run(readPlan);
  }, []);
  const readPlan = async () => ({ plan: await act.plan(values) });
  const choose = (name, value) => {
    const chosen = { ...values, [name]: value };
    setValues(chosen);
    if (!act.plan || state.done) return;
    set((old) => ({ ...old, plan: null }));
    if (act.plansAtOnce) run(async () => ({ plan: await act.plan(chosen) }));
  };
  const run = async (what) => {
    set((old) => ({ ...old, isBusy: true, problem: null }));
    try {
      const answer = await what();
      set((old) => ({ ...old, isBusy: false, ...answer }));
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      set((old) => ({ ...old, isBusy: false, problem }));
    }
  };
  const submit = (event) => {
    event.preventDefault();
    if (act.plan && !state.plan) run(readPlan);
    else run(async () => ({ done: (await act.send(values)) || "Done." }));
  };
  const needsPlan = act.plan && !state.plan;
  return html`<dialog ref=${dialog} onClose=${onClose} aria-label=${act.title}>
    <form onSubmit=${submit}>
      <h2>${act.title}</h2>
      ${act.effects.map((text) => html`<p>${text}</p>`)}
      ${act.plansAtOnce ? html`<${Plan} plan=${state.plan} isBusy=${state.isBusy} />` : null}
      ${(act.fields || []).map((field) => html`<label>${field.label}
        ${field.options
          ? html`<select name=${field.name} value=${values[field.name]} disabled=${state.isBusy || Boolean(state.done)} onChange=${(event) => choose(field.name, event.target.value)}>
              ${field.options.map(([value, text]) => html`<option value=${value}>${text}</option>`)}</select>`
          : html`<input name=${field.name} required=${!field.optional} maxlength="300" value=${values[field.name]} disabled=${Boolean((state.plan && !act.plansAtOnce) || state.done)}
              onInput=${(event) => setValues({ ...values, [field.name]: event.target.value })} />`}</label>`)}
      ${act.plansAtOnce ? null : html`<${Plan} plan=${state.plan} />`}
      ${state.problem
        ? html`<p class="problem" role="alert">${state.problem.message} <code>${state.problem.code}</code>
            ${state.problem.hint ? html`<br />${state.problem.hint}` : null}</p>`
        : null}
      ${state.done ? html`<p class="done" role="status">✔ ${state.done}</p>` : null}
      <div class="buttons">
        <button type="button" onClick=${() => dialog.current.close()}>${state.done ? "Close" : "Back"}</button>
        ${state.done ? null : html`<button type="submit" class="main" disabled=${state.isBusy}>${needsPlan ? "Show the plan" : act.verb}</button>`}
      </div>
    </form></dialog>`;
}

function Plan({ plan, isBusy }) {
  if (!plan) return isBusy ? html`<p class="loading">Reading the plan…</p>` : null;
  return html`<div class="plan"><h3>Plan</h3>${plan.map((text) => html`<p>${text}</p>`)}</div>`;
}

// Buttons of actions. Each opens its dialog, which stays open after the action. A read-only console shows no buttons.
export function Acts({ acts, isReadOnly }) {
  const [open, set] = useState(null);
  if (isReadOnly || (!acts.length && !open)) return null;
  return html`<span class="acts">${acts.map((act) => html`<button class=${act.isMain ? "main" : ""} onClick=${() => set(act)}>${act.label}</button>`)}
    ${open ? html`<${Act} act=${open} onClose=${() => set(null)} />` : null}</span>`;
}

// The stages of an incident on one time axis: the lane of the node above, the lane of the jobs below.
const NODE_STAGES = [["plannedAt", "planned"], ["cordonedAt", "cordoned"], ["repairRequestedAt", "repair requested"], ["nodeBackAt", "node back"], ["validatedAt", "validated"], ["returnedAt", "returned"]];
const JOB_STAGES = [["jobsStoppedAt", "jobs stopped"], ["jobsResumedAt", "jobs resumed"]];

// jobLanes: the progress of the jobs, if the list of incidents does not have it. The overview has the progress of the first jobs.
export function Lanes({ incident, until, jobLanes = incident.jobLanes || [] }) {
  const { stages } = incident;
  if (!stages) return null;
  const start = Date.parse(stages.detectedAt || incident.openedAt);
  const end = Math.max(start + 1000, incident.settledAt ? Date.parse(incident.settledAt) : until);
  const place = (at) => (100 * (Date.parse(at) - start)) / (end - start);
  const lane = (list, isOver) => {
    const reached = list.filter(([name]) => stages[name]);
    let from = 0;
    const parts = reached.map(([name, word], index) => {
      const to = place(stages[name]);
      const part = { from, to, word, step: index % 3 };
      from = to;
      return part;
    });
    if (!isOver) parts.push({ from, to: 100, word: "in progress", step: "open" });
    return parts;
  };
  const draw = (parts) => html`<div class="lane">${parts.map((part) => html`<i class="step${part.step}" style=${{ left: `${part.from}%`, width: `${Math.max(part.to - part.from, 0.4)}%` }}
    title="${part.word}, ${duration(((part.to - part.from) / 100) * ((end - start) / 1000))}"></i>`)}</div>`;
  const isOver = Boolean(incident.settledAt);
  const areJobsBack = Boolean(stages.jobsResumedAt) ||
    (jobLanes.length >= incident.affectedJobs.length && jobLanes.every((job) => job.status === "ok"));
  return html`<div class="lanes" role="img" aria-label="Timeline of ${incident.incidentId}: ${duration((end - start) / 1000)}">
    <span>node</span>${draw(lane(NODE_STAGES, isOver))}
    <span>jobs</span>${draw(lane(JOB_STAGES, isOver || areJobsBack))}
    <span></span><div class="axis"><span>${clockTime(new Date(start).toISOString())}</span><span>${duration((end - start) / 1000)}</span></div>
  </div>`;
}
