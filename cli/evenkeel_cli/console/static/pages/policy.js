// The policy in force and its changes. Only administrators may read it.
import { html } from "../vendor/htm-preact-standalone-3.1.1.js";
import { useLive } from "../api.js";
import { Facts, Panel, Table, Time } from "../widgets.js";

export function Policy({ shell }) {
  const live = useLive(shell.fleet ? `/clusters/${encodeURIComponent(shell.fleet)}/policy` : null, 30);
  const found = live.data;
  return html`<div class="grid"><${Panel} title="Policy" live=${live} wide=${true}>${found
    ? html`<${Facts} rows=${[
        ["Hash", html`<code>${found.hash}</code>`],
        ["In force", found.inForce ? `change ${found.inForce} of the site` : "the shipped policy"],
        ["Refused", found.refused],
      ]} />
      <${Table} label="Changes" empty="The site has changed nothing." rows=${found.history.items} columns=${[
        { title: "Change", right: true, cell: (each) => each.number },
        { title: "By", cell: (each) => each.by },
        { title: "At", cell: (each) => html`<${Time} at=${each.at || each.appliedAt} />` },
        { title: "Reason", grow: true, cell: (each) => each.reason },
      ]} />
      <details><summary>The whole policy</summary><pre tabindex="0">${JSON.stringify(found.policy, null, 2)}</pre></details>`
    : null}<//></div>`;
}
