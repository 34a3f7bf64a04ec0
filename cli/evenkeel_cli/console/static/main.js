// The shell: routes, the top bar, the keyboard, the theme.
import { html, render, useEffect, useLayoutEffect, useState } from "./vendor/htm-preact-standalone-3.1.1.js";
import { Problem, change, planOf, read, session, useLive } from "./api.js";
import { clockTime, counted, route } from "./format.js";
import { Acts, Guard, State } from "./widgets.js";
import { Overview, releaseAct } from "./pages/overview.js";
import { Incident, Incidents } from "./pages/incidents.js";
import { Job, Jobs, Queue } from "./pages/jobs.js";
import { Node, Nodes } from "./pages/nodes.js";
import { Team, Teams } from "./pages/teams.js";
import { Policy } from "./pages/policy.js";
import { Costs } from "./pages/costs.js";
import { Events } from "./pages/events.js";
import { Decision, Decisions } from "./pages/decisions.js";

const PAGES = [
  ["", "Overview", "o", Overview],
  ["incidents", "Incidents", "i", Incidents, Incident],
  ["nodes", "Nodes", "n", Nodes, Node],
  ["jobs", "Jobs", "j", Jobs, Job],
  ["queue", "Queue", "q", Queue],
  ["teams", "Teams", "t", Teams, Team],
  ["costs", "Costs", "c", Costs],
  ["events", "What changed", "e", Events],
  ["decisions", "Decisions", "d", Decisions, Decision],
  ["policy", "Policy", "p", Policy],
];

// Problems that the operator solves on this machine. A strip at the top explains how.
const FOR_THE_OPERATOR = ["NO_CREDENTIALS", "BAD_CREDENTIALS", "EXPIRED_CREDENTIALS", "CLOCK_SKEW", "NOT_SIGNED_IN", "CONSOLE_STOPPED"];

function useRoute() {
  const [found, set] = useState(route(location.hash));
  // Before the first paint: otherwise an address that changes before the effect runs would be lost.
  useLayoutEffect(() => {
    const changed = () => {
      set(route(location.hash));
      window.scrollTo(0, 0);
    };
    window.addEventListener("hashchange", changed);
    return () => window.removeEventListener("hashchange", changed);
  }, []);
  return found;
}

function Console({ shell }) {
  const { words, filters } = useRoute();
  const status = useLive("/overview", 3);
  const [isHelp, setHelp] = useState(false);
  const fleet = shell.fleet || status.data?.fleet;
  useKeyboard(setHelp);
  const page = PAGES.find(([name]) => name === (words[0] || ""));
  const View = page ? (words.length > 1 ? page[4] : page[3]) : null;
  useEffect(() => {
    document.title = `${words.at(-1) || "Overview"} · ${fleet || "Evenkeel"}`;
  });
  return html`<a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.getElementById("main").focus(); }}>Skip to the content</a>
    <${Guard}><${TopBar} status=${status} shell=${{ ...shell, fleet }} current=${words[0] || ""} onHelp=${() => setHelp(true)} /><//>
    <main id="main" tabindex="-1">${View
      ? html`<${Guard} key=${words.join("/")}><${View} words=${words} filters=${filters} status=${status} shell=${{ ...shell, fleet }} /><//>`
      : html`<p class="empty">There is no page ${words.join("/")}. <a href="#/">Overview</a></p>`}</main>
    ${isHelp ? html`<${Help} onClose=${() => setHelp(false)} />` : null}`;
}

function TopBar({ status, shell, current, onHelp }) {
  const found = status.data;
  const held = found?.automation.isHeld;
  return html`<header class="top">
    <div class="line"><b class="fleet">${shell.fleet || "…"}</b>
      ${found
        ? html`<span class=${status.problem ? "stale" : ""}><${State} kind="health" state=${found.health} word=${found.health} /></span>
          <span>${counted(found.incidents.working, "incident")} working, <b>${found.incidents.needYou}${found.incidents.isLowerBound ? "+" : ""}</b> ${found.incidents.needYou === 1 ? "needs" : "need"} you</span>
          <span>mode <b>${found.automation.modeInForce}</b>${held ? html` <b class="state warn">▲ HELD</b>` : null}</span>
          <span class="dim">${status.problem ? html`<b class="problem">no answer since ${clockTime(new Date(status.since).toISOString())}</b>` : `as of ${clockTime(new Date(status.readAt || Date.parse(found.asOf)).toISOString())}`}</span>`
        : html`<span class="dim">${status.problem ? status.problem.message : "loading"}</span>`}
      <span class="space"></span>
      ${shell.isReadOnly ? html`<span class="chip">read only</span>` : null}
      ${found ? html`<${Acts} acts=${automationActs(found, shell.fleet)} isReadOnly=${shell.isReadOnly} />` : null}
      <span class="acts"><button onClick=${switchTheme} title="Switch between dark and light">◐</button><button onClick=${onHelp} title="Keys">?</button></span>
    </div>
    ${status.problem && FOR_THE_OPERATOR.includes(status.problem.code)
      ? html`<p class="strip" role="alert">${status.problem.message} ${status.problem.hint}</p>`
      : null}
    <nav aria-label="Pages">${PAGES.map(([name, title]) => html`<a href="#/${name}" aria-current=${name === current ? "page" : null}>${title}</a>`)}</nav>
  </header>`;
}

function automationActs(found, fleet) {
  const { automation } = found;
  const path = `/clusters/${encodeURIComponent(fleet)}/automation`;
  const reason = { name: "reason", label: "Reason" };
  const whole = automation.holds.find((hold) => !hold.pool && !hold.instanceId);
  if (whole) return [releaseAct(fleet, whole)];
  const hold = ({ reason, forSeconds, what }) => ({ reason, forSeconds: Number(forSeconds), stopsScheduling: what === "everything" });
  return [{ label: "Hold automation…", title: "Hold automation", verb: "Hold", effects: [], plansAtOnce: true,
    fields: [{ name: "what", label: "What", value: "repairs", options: [["repairs", "Repairs and job stops of recoveries"], ["everything", "Everything: also admissions, preemptions, resizes and rentals"]] },
      { name: "forSeconds", label: "For", value: "3600", options: [["900", "15 minutes"], ["3600", "1 hour"], ["14400", "4 hours"], ["86400", "1 day"]] }, reason],
    plan: async (values) => {
      const { effects } = await planOf("POST", `${path}/hold`, { ...hold(values), reason: values.reason || "plan" }); // the API needs a reason
      return [...effects, `Recoveries at work: ${atWork(await read("/overview"))}.`];
    },
    send: async (values) => (await change("POST", `${path}/hold`, hold(values)), "Automation is held.") }];
}

// The recoveries that a hold would delay at their next step.
function atWork(found) {
  const { items, open, isLowerBound } = found.incidents;
  const shown = items.map((each) => `${each.incidentId} (${each.nodeLane.phase})`);
  const more = open > shown.length ? [`${open - shown.length}${isLowerBound ? " or more" : ""} others`] : [];
  return [...shown, ...more].join(", ") || "none";
}

function switchTheme() {
  const dark = document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("evenkeel-console-theme", document.documentElement.dataset.theme);
}

// g and a letter: go to a page. j, k, Enter: rows. ?: help. Keys in a field or a dialog are left alone.
function useKeyboard(setHelp) {
  useLayoutEffect(() => {
    let isGoing = false;
    const press = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, dialog[open]")) return;
      const page = isGoing && PAGES.find(([, , letter]) => letter === event.key);
      isGoing = false;
      if (page) location.hash = `#/${page[0]}`;
      else if (event.key === "g") isGoing = true;
      else if (event.key === "?") setHelp(true);
      else if (event.key === "/") {
        document.querySelector(".filter select")?.focus();
        event.preventDefault();
      } else if (event.key === "j" || event.key === "k") move(event.key === "j" ? 1 : -1);
      else if (event.key === "Enter" && event.target === document.body) document.querySelector("[data-here]")?.querySelector("a")?.click();
    };
    document.addEventListener("keydown", press);
    return () => document.removeEventListener("keydown", press);
  }, [setHelp]);
}

function move(by) {
  const rows = [...document.querySelectorAll("main [data-href]")];
  const here = rows.findIndex((row) => row.hasAttribute("data-here"));
  const next = rows[Math.min(Math.max(here + by, 0), rows.length - 1)];
  rows[here]?.removeAttribute("data-here");
  next?.setAttribute("data-here", "");
  next?.querySelector("a")?.focus();
}

function Help({ onClose }) {
  const keys = [["g and o i n j q t c e d p", "overview, incidents, nodes, jobs, queue, teams, costs, what changed, decisions, policy"], ["j, k, Enter", "next row, previous row, open it"], ["/", "filter"], ["?", "this list"], ["Esc", "close"]];
  return html`<dialog ref=${(dialog) => dialog && !dialog.open && dialog.showModal()} onClose=${onClose} aria-label="Keys"><h2>Keys</h2>
    <dl class="facts">${keys.map(([key, text]) => html`<div><dt><kbd>${key}</kbd></dt><dd>${text}</dd></div>`)}</dl>
    <form method="dialog"><button>Close</button></form></dialog>`;
}

async function start() {
  const place = document.getElementById("console");
  const theme = localStorage.getItem("evenkeel-console-theme");
  if (theme) document.documentElement.dataset.theme = theme;
  try {
    const shell = await session();
    place.replaceChildren();
    render(html`<${Console} shell=${shell} />`, place);
  } catch (problem) {
    if (!(problem instanceof Problem)) throw problem;
    place.replaceChildren();
    render(html`<p class="problem">${problem.message} ${problem.hint}</p>`, place);
  }
}

start();
