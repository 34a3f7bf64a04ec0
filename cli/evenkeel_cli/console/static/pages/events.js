// Changes, newest first: incidents, jobs, nodes, budgets, and actions of people.
import { html } from "../vendor/htm-preact-standalone-3.1.1.js";
import { useLive } from "../api.js";
import { fullTime, href } from "../format.js";
import { Link, Panel, Table, Time } from "../widgets.js";
import { Filter, Pages, emptyText, listPath } from "./lists.js";

const KINDS = ["Incident Opened", "Incident Needs Person", "Incident Settled", "Job Submitted", "Job Started", "Job Interrupted", "Job Moved", "Job Suspended", "Job Ended", "Budget Near End", "Budget Runs Out", "Automation Changed", "Node Joined", "Node Left", "Node Cordoned", "Policy Changed", "Quota Changed"];

// The page of a subject: an incident, a job, a node or a team.
export function pageOf(event) {
  if (event.kind.startsWith("Budget ")) return ["teams", event.subject];
  const words = { "inc-": ["incidents", event.subject], "job-": ["jobs", event.subject], "i-": ["nodes", event.subject] };
  const prefix = Object.keys(words).find((each) => event.subject.startsWith(each));
  return prefix ? words[prefix] : null;
}

export function Events({ filters }) {
  const live = useLive(listPath("/events", filters, ["kind", "subject", "team", "since"]));
  const items = live.data?.items || [];
  const subject = (event) => {
    const page = pageOf(event);
    return page ? html`<${Link} to=${page}>${event.subject}<//>` : event.subject;
  };
  const chips = ["subject", "team", "since"].filter((name) => filters[name]).map(
    (name) => html`<a class="chip" href=${href(["events"], { ...filters, [name]: "", page: "" })}>${name}: ${filters[name]} ✕</a>`,
  );
  return html`<${Panel} title="What changed" live=${live} wide=${true} more=${html`${chips}<${Filter} page=${["events"]} filters=${filters} name="kind" label="Kind" options=${KINDS} />`}>
    <${Table} label="Events" empty=${emptyText(live, filters, "Nothing is recorded yet.", "No event matches.")} rows=${items} rowHref=${(event) => (pageOf(event) ? href(pageOf(event)) : null)} columns=${[
      { title: "When", cell: (event) => html`<${Time} at=${event.occurredAt} />` },
      { title: "Kind", cell: (event) => html`${event.isDrill ? html`<b>drill</b> ` : ""}${event.kind}` },
      { title: "About", cell: subject },
      { title: "By", cell: (event) => event.by || html`<span class="dim">Evenkeel</span>` },
      { title: "What", grow: true, cell: (event) => html`<span title=${fullTime(event.occurredAt)}>${event.text}</span>` },
    ]} />
    <${Pages} live=${live} page=${["events"]} filters=${filters} />
    ${live.data ? html`<p class="dim">Events are kept for ${live.data.keptDays} days.</p>` : null}<//>`;
}
