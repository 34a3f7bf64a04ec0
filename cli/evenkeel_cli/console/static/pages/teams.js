// The table of teams, and one team: its quota by resource, its jobs.
import { html } from "../vendor/htm-preact-standalone-3.1.1.js";
import { useLive } from "../api.js";
import { id } from "../format.js";
import { Facts, Link, Panel, Table, isMissing } from "../widgets.js";
import { TeamTable } from "./overview.js";

export function Teams() {
  const live = useLive("/teams");
  return html`<${Panel} title="Teams (GPUs)" live=${live} wide=${true}>
    <${TeamTable} teams=${live.data?.items || []} />
    ${live.data?.isLowerBound ? html`<p class="dim">Some figures are lower bounds.</p>` : null}<//>`;
}

export function Team({ words }) {
  const live = useLive("/teams");
  const settings = useLive(`/teams/${id(words[1])}/quota`);
  const team = live.data?.items.find((each) => each.team === words[1]);
  return html`<div class="grid">
    <${Panel} title="Team ${words[1]}" live=${live} wide=${true} more=${html`<${Link} to=${["jobs"]} filters=${{ team: words[1] }}>jobs<//>`}>
      ${team
        ? html`<${TeamTable} teams=${[team]} /><h3>By resource</h3><${Table} label="Quota by resource" empty="The team has no quota." rows=${team.resources || []} columns=${[
            { title: "Flavor", cell: (each) => each.flavor },
            { title: "Resource", cell: (each) => each.resource },
            { title: "Quota", right: true, cell: (each) => each.allocated },
            { title: "Used", right: true, cell: (each) => each.used },
            { title: "Borrowed", right: true, cell: (each) => each.borrowed },
            { title: "Lent", right: true, cell: (each) => each.lent },
            { title: "Quota used", right: true, cell: (each) => (each.utilization === null ? "–" : `${each.utilization} %`) },
          ]} />`
        : html`<p class="empty">There is no team ${words[1]}.</p>`}<//>
    <${Panel} title="Settings" live=${isMissing(settings) ? null : settings} wide=${true}>${isMissing(settings) ? html`<p class="empty">The platform has not set up this team.</p>` : null}${settings.data
      ? html`<${Facts} rows=${Object.entries(settings.data.team || settings.data).filter(([, value]) => value !== null && typeof value !== "object").map(([name, value]) => [name.replace(/[A-Z]/g, (letter) => ` ${letter.toLowerCase()}`), String(value)])} />
        <details><summary>All settings</summary><pre tabindex="0">${JSON.stringify(settings.data, null, 2)}</pre></details>`
      : null}<//></div>`;
}
