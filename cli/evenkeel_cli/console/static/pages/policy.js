// The policy in force and its changes, and a draft of other changes: its diff, and its test on recorded decisions.
import { html, useState } from "../vendor/htm-preact-standalone-3.1.1.js";
import { Problem, change, useLive } from "../api.js";
import { id, plain } from "../format.js";
import { Acts, DecisionLink, Facts, Link, Panel, Table, Time } from "../widgets.js";

export function Policy({ shell }) {
  const path = shell.fleet ? `/clusters/${encodeURIComponent(shell.fleet)}/policy` : null;
  const live = useLive(path);
  const found = live.data;
  return html`<div class="grid"><${Panel} title="Policy" live=${live} wide=${true}>${found
    ? html`<${Facts} rows=${[
        ["Hash", html`<code>${found.hash}</code>`],
        ["In force", !found.policy ? "none: Evenkeel decides nothing" : found.inForce ? `change ${found.inForce} of the site` : "the shipped policy"],
        ["Refused", found.refused],
      ]} />
      <${Table} label="Changes" empty="The site has no policy changes." rows=${found.history.items} columns=${[
        { title: "Change", right: true, cell: (each) => each.number },
        { title: "By", cell: (each) => each.by },
        { title: "At", cell: (each) => html`<${Time} at=${each.at || each.appliedAt} />` },
        { title: "Differs in", grow: true, cell: (each) => differences(each.before || {}, each.changes || {}, {}).map((line) => html`<div><code>${line.field}</code></div>`) },
        { title: "Reason", grow: true, cell: (each) => each.reason },
      ]} />
      <details><summary>The whole policy</summary><pre tabindex="0">${JSON.stringify(found.policy, null, 2)}</pre></details>`
    : null}<//>
    ${found ? html`<${Draft} key=${found.hash} found=${found} path=${path} shell=${shell} />` : null}</div>`;
}

// The values that differ between two sets of changes: {field, before, after}. An omitted value is the shipped value.
export function differences(before, after, inForce) {
  const flat = (value, field, into) => {
    if (value && typeof value === "object" && !Array.isArray(value)) {
      for (const [name, each] of Object.entries(value)) flat(each, field ? `${field}.${name}` : name, into);
    } else into.set(field, value);
    return into;
  };
  const [old, young] = [flat(before, "", new Map()), flat(after, "", new Map())];
  const at = (field) => field.split(".").reduce((value, name) => value?.[name], inForce);
  return [...new Set([...old.keys(), ...young.keys()])].sort()
    .filter((field) => JSON.stringify(old.get(field)) !== JSON.stringify(young.get(field)))
    .map((field) => ({ field, before: old.has(field) ? old.get(field) : at(field), after: young.has(field) ? young.get(field) : undefined }))
    .filter((line) => JSON.stringify(line.before) !== JSON.stringify(line.after));
}

function valueCell(value) {
  return value === undefined ? html`<span class="dim">as shipped</span>` : html`<code>${JSON.stringify(value)}</code>`;
}

function Draft({ found, path, shell }) {
  const current = found.change?.changes || {};
  const [text, setText] = useState(JSON.stringify(current, null, 2));
  const [state, set] = useState({ tested: null, problem: null, isBusy: false });
  let changes = null;
  let fault = "";
  try {
    changes = JSON.parse(text);
    if (changes === null || typeof changes !== "object" || Array.isArray(changes)) throw new SyntaxError("It is not a JSON object.");
  } catch (error) {
    changes = null;
    fault = error.message;
  }
  const lines = changes ? differences(current, changes, found.policy) : [];
  const test = async () => {
    set({ tested: null, problem: null, isBusy: true });
    try {
      set({ tested: await change("POST", `${path}/test`, { changes }), problem: null, isBusy: false });
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      set({ tested: null, problem, isBusy: false });
    }
  };
  const acts = changes && lines.length
    ? [{ label: "Apply…", title: "Apply the changes", verb: "Apply", fields: [{ name: "reason", label: "Reason" }],
        effects: [`${lines.length} ${lines.length === 1 ? "value changes" : "values change"}: ${lines.map((line) => line.field).join(", ")}.`, "Each function uses them within half a minute."],
        send: async (values) => `Change ${(await change("POST", path, { changes, reason: values.reason, basedOn: found.hash || "" })).number} is in force.` }]
    : [];
  return html`<${Panel} title="Try other changes" wide=${true} more=${html`<${Acts} acts=${acts} isReadOnly=${shell.isReadOnly} />`}>
    <label>Changes to the shipped policy, as JSON
      <textarea class="draft" rows="10" spellcheck="false" value=${text} onInput=${(event) => { setText(event.target.value); set({ tested: null, problem: null, isBusy: false }); }}></textarea></label>
    ${fault ? html`<p class="problem" role="alert">${fault}</p>` : null}
    <h3>Differences from the policy in force</h3>
    <${Table} label="Differences" empty="None." rows=${lines} columns=${[
      { title: "Field", grow: true, cell: (line) => html`<code>${line.field}</code>` },
      { title: "In force", cell: (line) => valueCell(line.before) },
      { title: "Draft", cell: (line) => valueCell(line.after) },
    ]} />
    ${shell.isReadOnly ? html`<p class="dim">This console is read-only, so it cannot test a draft.</p>` : html`<p><button onClick=${test} disabled=${!changes || state.isBusy}>Test on recorded decisions</button></p>`}
    ${state.problem ? html`<p class="problem" role="alert">${state.problem.message} <code>${state.problem.code}</code></p>` : null}
    ${state.tested ? html`<${Tested} tested=${state.tested} />` : null}<//>`;
}

function Tested({ tested }) {
  const answer = (part) => `${plain(part.action)}${part.mode ? ` in ${part.mode}` : ""}`;
  const page = (subject) => (subject.startsWith("inc-") ? ["incidents", id(subject)] : ["jobs", id(subject)]);
  return html`<p role="status"><b>${tested.changed.length} of ${tested.examined}</b> decisions since <${Time} at=${tested.since} /> would differ.
      ${tested.isLowerBound ? " Only the newest incidents and jobs were examined." : ""}
      ${tested.cannot ? ` ${tested.cannot} cannot be replayed: another release made them.` : ""}</p>
    <${Table} label="Decisions that would differ" empty="No recorded decision would differ." rows=${tested.changed} columns=${[
      { title: "Decision", cell: (each) => html`<${DecisionLink} decisionId=${each.decisionId} />` },
      { title: "Kind", cell: (each) => plain(each.kind) },
      { title: "About", cell: (each) => html`<${Link} to=${page(each.subject)}>${each.subject}<//>` },
      { title: "Recorded", cell: (each) => answer(each.before) },
      { title: "Would be", cell: (each) => html`<b>${answer(each.after)}</b>` },
    ]} /><p class="dim">${tested.asRecorded}</p>`;
}
