// The cost of an interruption, stage by stage, on the page of an incident and of a job.
import { html } from "../vendor/htm-preact-standalone-3.1.1.js";
import { useLive } from "../api.js";
import { clockTime, duration, href, plain } from "../format.js";
import { Facts, Link, Panel, Table } from "../widgets.js";

const UNKNOWN = "unknown";

export function hours(value) {
  return value === null || value === undefined ? UNKNOWN : value.toLocaleString("en", { maximumFractionDigits: Math.abs(value) < 1000 ? 2 : 0 });
}

export function usd(micros) {
  if (micros === null || micros === undefined) return UNKNOWN;
  const amount = Math.abs(micros) / 1e6;
  const digits = amount < 1000 ? 2 : 0;
  return `${micros < 0 ? "-" : ""}$${amount.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })}`;
}

export function time(seconds) {
  if (seconds === null || seconds === undefined) return UNKNOWN;
  return seconds < 0 ? `-${duration(-seconds)}` : duration(seconds);
}

export function share(value) {
  return value === null || value === undefined ? UNKNOWN : `${(100 * value).toFixed(1)} %`;
}

export function range(low, high, shown) {
  return low === high ? shown(low) : `${shown(low)} to ${shown(high)}`;
}

// signal: changes with every fact that may change the receipt.
export function IncidentReceipt({ path, signal }) {
  const live = useLive(`${path}/receipt`, 30, signal);
  const found = live.data;
  return html`<${Panel} title="Cost" live=${live} wide=${true}>${found
    ? html`<${Facts} rows=${[
        [found.isLowerBound ? "Cost at least" : "Cost", html`<b>${hours(found.totalGpuHours)} GPU-hours, ${usd(found.totalUsdMicros)}</b>${found.isOver ? "" : " so far"}`],
        ["Node", found.node.startedAt ? `out of service for ${time(found.node.seconds)}; not counted with its jobs: ${hours(found.node.gpuHours)} GPU-hours, ${usd(found.node.usdMicros)}` : "not cordoned"],
        ["Shared", found.shared.length ? found.shared.map((each) => html`${each.jobId}: counted in <${Link} to=${["incidents", each.incidentIds[0]]}>${each.incidentIds[0]}<//> `) : null],
        ["Withheld", found.isRedacted ? "Checkpoints and prices of other teams are shown as unknown." : null],
      ]} />
      ${found.jobs.map((each) => html`<${Interruption} interruption=${each} />`)}
      ${found.jobs.length ? null : html`<p class="empty">No job lost time in this incident.</p>`}
      ${found.options.length ? html`<h3>Forecast and actual time</h3><${Table} label="Options" rows=${found.options} empty="" columns=${[
        { title: "Option", cell: (each) => (each.isChosen ? html`<b>✔ ${plain(each.option)}</b>` : plain(each.option)) },
        { title: "Forecast", right: true, cell: (each) => time(each.expectedSeconds) },
        { title: "Actual", right: true, cell: (each) => (each.isChosen ? time(each.actualSeconds) : each.hindsightSeconds ? `~${time(each.hindsightSeconds)}` : html`<span title=${each.whyUnknown}>–</span>`) },
        { title: "Why not", grow: true, cell: (each) => (each.isChosen ? html`<b>chosen</b>` : each.whyNot) },
      ]} />` : null}
      <${Estimates} savings=${found.savings} /><${Notes} notes=${found.notes} />`
    : null}<//>`;
}

// A time that was not measured is unknown, not zero.
function withoutUnmeasuredZeros(bucket) {
  if (bucket.seconds || bucket.isMeasured !== false) return bucket;
  return { bucket: bucket.bucket, seconds: null, share: null, gpuHours: null, usdMicros: null };
}

export function JobReceipt({ path, signal }) {
  const live = useLive(`${path}/receipt`, 30, signal);
  const found = live.data;
  return html`<${Panel} title="Time and cost" live=${live} wide=${true}>${found
    ? html`<${Table} label="Time of the job" rows=${found.buckets.map(withoutUnmeasuredZeros)} empty="" columns=${[
        { title: "Time", cell: (each) => plain(each.bucket) },
        { title: "", right: true, cell: (each) => time(each.seconds) },
        { title: "Share", right: true, cell: (each) => share(each.share) },
        { title: "GPU-hours", right: true, cell: (each) => hours(each.gpuHours) },
        { title: "Cost", right: true, cell: (each) => usd(each.usdMicros) },
      ]} />
      ${found.isRedacted ? html`<p class="dim">Checkpoints and prices of other teams are shown as unknown.</p>` : null}
      ${found.interruptions.map((each) => html`<${Interruption} interruption=${each} />`)}<${Notes} notes=${found.notes} />`
    : null}<//>`;
}

function Interruption({ interruption }) {
  const parts = interruption.parts.filter((part) => part.seconds !== 0 || part.alreadyCountedSeconds);
  const resumed = interruption.resumedByAttempt ? `attempt ${interruption.resumedByAttempt}` : "no later attempt yet";
  const { price } = interruption;
  return html`<h3><a href=${href(["jobs", interruption.jobId])}>${interruption.jobId}</a>: attempt ${interruption.attempt} → ${resumed}</h3>
    <p class="dim line"><span>${plain(interruption.cause)}</span>${interruption.incidentIds.map((each) => html`<${Link} to=${["incidents", each]}>${each}<//>`)}
      <span>${price ? `${usd(price.usdMicrosPerGpuHour)} a GPU-hour: ${price.origin}` : "price unknown"}</span></p>
    <${Table} label="Stages of ${interruption.jobId}" empty="" rows=${[...parts, { stage: "sum", ...interruption.total }]} columns=${[
      { title: "Stage", cell: (part) => [...(part.covers || []), part.stage].map(plain).join(" + ") },
      { title: "From", cell: (part) => (part.startedAt ? clockTime(part.startedAt) : "") },
      { title: "Lost", right: true, cell: (part) => time(part.seconds) },
      { title: "GPU-hours", right: true, cell: (part) => hours(part.gpuHours) },
      { title: "Cost", right: true, cell: (part) => usd(part.usdMicros) },
      { title: "Until", grow: true, cell: (part) => part.toRecord || part.whyUnknown || "" },
    ]} />`;
}

function Estimates({ savings }) {
  if (!savings.length) return null;
  const claimed = savings.filter((each) => !each.whyUnknown);
  const texts = [...new Set(savings.flatMap((each) => (each.whyUnknown ? [each.whyUnknown] : each.assumptions)))];
  return html`<h3>Estimates, not measurements: the same interruption without Evenkeel</h3>
    ${claimed.length ? html`<${Table} label="Estimates" rows=${claimed} empty="" columns=${[
      { title: "Instead of", cell: (each) => plain(each.insteadOf) },
      { title: "Standstill", right: true, cell: (each) => range(each.lowStandstillSeconds, each.highStandstillSeconds, time) },
      { title: "Saved", right: true, cell: (each) => range(each.lowSavedSeconds, each.highSavedSeconds, time) },
      { title: "Cost", right: true, cell: (each) => range(each.lowSavedUsdMicros, each.highSavedUsdMicros, usd) },
    ]} />` : null}<${Notes} notes=${texts} />`;
}

export function Notes({ notes }) {
  return html`<ul class="dim">${notes.map((text) => html`<li>${text}</li>`)}</ul>`;
}
