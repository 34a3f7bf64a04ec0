// The workflow execution of an incident: its states in order, with the current state highlighted.
import { html, useState } from "../vendor/htm-preact-standalone-3.1.1.js";
import { useLive } from "../api.js";
import { SIGNS, duration, plain, secondsSince } from "../format.js";
import { Lane, Panel, Time } from "../widgets.js";

const PROGRESS = { CURRENT: "working", DONE: "ok", FAILED: "failed", NOT_REACHED: "next" };
const EXECUTION = { RUNNING: "working", SUCCEEDED: "ok", FAILED: "failed" };
const STEPS = ["Task", "Parallel", "Map", "Wait"]; // States of other types only choose, pass on or end.

export function Execution({ path }) {
  const live = useLive(`${path}/execution`);
  const [isWhole, setWhole] = useState(false);
  const execution = live.data?.execution;
  return html`<${Panel} title="Execution" live=${live} wide=${true}
    more=${execution ? html`<label class="filter"><input type="checkbox" checked=${isWhole} onChange=${(event) => setWhole(event.target.checked)} /> all states</label>` : null}>${execution
      ? html`<p class="line"><${Lane} status=${EXECUTION[execution.state]}>${plain(execution.state)}<//>
          <span><code>${live.data.name}</code></span><span>started <${Time} at=${execution.startedAt} /></span>
          <a href=${execution.link} target="_blank" rel="noreferrer noopener">AWS console</a></p>
        ${execution.isCut ? html`<p class="dim">Only the newest states are known.</p>` : null}
        <${Flow} states=${execution.states} inside="" branch=${0} isWhole=${isWhole} />`
      : html`<p class="empty">No execution is known: it has not started, or it ended more than 90 days ago.</p>`}<//>`;
}

function Flow({ states, inside, branch, isWhole }) {
  const shown = states.filter((state) => state.inside === inside && state.branch === branch
    && (isWhole || state.visits > 0 || STEPS.includes(state.kind)));
  return html`<ol class="flow">${shown.map((state) => html`<li><${Step} state=${state} />
    <${Branches} states=${states} inside=${state.name} isWhole=${isWhole} /></li>`)}</ol>`;
}

function Branches({ states, inside, isWhole }) {
  const numbers = [...new Set(states.filter((state) => state.inside === inside).map((state) => state.branch))].sort();
  if (!numbers.length) return null;
  return html`<div class="branches">${numbers.map((number) => html`<${Flow} states=${states} inside=${inside} branch=${number} isWhole=${isWhole} />`)}</div>`;
}

function Step({ state }) {
  const status = PROGRESS[state.progress];
  const isHere = state.progress === "CURRENT";
  const took = state.enteredAt ? duration(state.exitedAt ? (Date.parse(state.exitedAt) - Date.parse(state.enteredAt)) / 1000 : secondsSince(state.enteredAt)) : "";
  const then = state.next.length ? ` Then: ${state.next.join(", ")}.` : "";
  return html`<div class="step ${status}" aria-current=${isHere ? "step" : null} title="${state.kind}. ${state.comment}${then}">
    <span class="state ${status}"><span class="sign" aria-hidden="true">${SIGNS[status]}</span> ${state.name}</span>
    <span class="dim">${plain(state.progress)}${took ? `, ${took}` : ""}${state.visits > 1 ? `, ${state.visits} times` : ""}</span></div>`;
}
