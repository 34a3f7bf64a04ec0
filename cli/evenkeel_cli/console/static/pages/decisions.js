// The decisions about the fleet, or about one job or incident, page by page, and one decision with its alternatives and facts.
import { html } from "../vendor/htm-preact-standalone-3.1.1.js";
import { useLive } from "../api.js";
import { href, id, plain } from "../format.js";
import { Alternatives, DecisionLink, Facts, Link, Panel, Table, Time, isMissing } from "../widgets.js";
import { Filter, Pages, emptyText, listPath } from "./lists.js";

const KINDS = ["RECOVERY", "REPAIR", "DRAIN", "RESUME", "CHECK", "VALIDATION", "RESTART", "ROLLBACK", "ATTRIBUTION", "ADMISSION", "RESIZE", "PLACEMENT", "BURST_CHECK", "MIXED_GROWTH", "MIGRATION", "DISPLACEMENT", "TEMPORARY_CAPACITY", "SERVING_RETURN"];

// The page of a job or an incident. A dry run of a replacement is about a node.
export function subjectPage(subject) {
  if (subject.startsWith("inc-")) return ["incidents", subject];
  return subject.startsWith("job-") ? ["jobs", subject] : ["nodes", subject.split("/").find((part) => part.startsWith("i-")) || subject];
}

export function Decisions({ filters }) {
  const page = ["decisions"];
  const { subject } = filters;
  const live = useLive(listPath("/decisions", filters, ["subject", "kind"]));
  return html`<${Panel} title=${subject ? `Decisions about ${subject}` : "Decisions"} live=${live} wide=${true} more=${html`${subject
    ? html`<${Link} to=${subjectPage(subject)}>${subject}<//><a class="chip" href=${href(page, { ...filters, subject: "", page: "" })}>subject: ${subject} ✕</a>`
    : null}<${Filter} page=${page} filters=${filters} name="kind" label="Kind" options=${KINDS} />`}>
    <${Table} label="Decisions" empty=${emptyText(live, { kind: filters.kind }, "No decision is recorded.", "No decision matches.")} rows=${live.data?.items || []} rowHref=${(each) => href(["decisions", each.decisionId])} columns=${[
      { title: "When", cell: (each) => html`<${Time} at=${each.decidedAt} />` },
      { title: "What", cell: (each) => html`${plain(each.kind)}: <b>${plain(each.action)}</b>${each.isDryRun ? " (dry run)" : ""}` },
      { title: "Decision", whole: true, cell: (each) => html`<${DecisionLink} decisionId=${each.decisionId} />` },
      ...(subject ? [] : [{ title: "About", whole: true, cell: (each) => html`<${Link} to=${subjectPage(each.subject)}>${subjectPage(each.subject)[1]}<//>` }]),
      { title: "Reason", grow: true, cell: (each) => each.reason },
    ]} />
    <${Pages} live=${live} page=${page} filters=${filters} />
    ${live.data?.keptDays ? html`<p class="dim">Decisions of the last ${live.data.keptDays} days. The page of a job or an incident lists all decisions about it.</p>` : null}
    ${live.data?.isRedacted ? html`<p class="dim">What is private to another team is left out.</p>` : null}<//>`;
}

export function Decision({ words }) {
  const live = useLive(`/decisions/${id(words[1])}`, 60);
  const found = live.data;
  if (isMissing(live)) return html`<${Panel} title=${words[1]} live=${live} />`;
  const options = found ? [{ option: found.action, ...found.chosen, chosen: true }, ...found.alternatives] : [];
  return html`<div class="grid"><${Panel} title=${words[1]} live=${live} wide=${true}>${found
    ? html`<p class="sentence"><b>${plain(found.kind)}: ${plain(found.action)}</b>${found.isDryRun ? " (dry run)" : ""}</p><p>${found.reason}</p>
      <${Facts} rows=${[
        ["About", html`<${Link} to=${subjectPage(found.subject)}>${found.subject}<//>`],
        ["All decisions", /^(job|inc)-/.test(found.subject) ? html`<${Link} to=${["decisions"]} filters=${{ subject: found.subject }}>about ${found.subject}<//>` : null],
        ["Decided", html`<${Time} at=${found.decidedAt} />`],
        ["Mode", found.mode],
        ["Policy", html`<code>${found.policyHash}</code>, engine ${found.engineVersion}`],
        ["Withheld", found.isRedacted ? "Only the job's team and operators see the rest." : null],
      ]} />
      <h3>Alternatives</h3><${Alternatives} label="Alternatives" options=${options} />
      <details><summary>The facts of this decision</summary><pre tabindex="0">${JSON.stringify(found.facts, null, 2)}</pre></details>`
    : null}<//></div>`;
}
