// The grid of all nodes, the list of nodes, and one node with the actions on it.
import { html, useEffect, useRef, useState } from "../vendor/htm-preact-standalone-3.1.1.js";
import { Problem, change, planOf, read, useLive } from "../api.js";
import { SIGNS, amount, counted, href, id, plain, shortNode, signOf } from "../format.js";
import { Acts, Facts, Link, Panel, State, Table, Time, Why } from "../widgets.js";
import { Filter, Pages, emptyText, listPath } from "./lists.js";

const ORDER = ["failed", "warn", "working", "next", "ok", "idle"];
const MAX_PAGES = 25;
const DENSE = 400; // More nodes have smaller squares.
const NODE_STATES = ["UNHEALTHY", "QUARANTINED", "BLOCKED", "WAITING", "NOT_READY", "REPAIRING", "CORDONED", "STARTING", "IN_SERVICE"];

// Reads all nodes when the signal changes, and once more 5 s later: an index may lag behind its rows. Pages whose tokens
// are known are read in parallel. The answer for an unchanged page has no body.
function useNodes(signal) {
  const [state, set] = useState({ nodes: [], isWhole: false, problem: null, isRead: false });
  const tokens = useRef([""]);
  useEffect(() => {
    let stopped = false;
    let timer = null;
    const load = async (isLast) => {
      clearTimeout(timer);
      if (stopped || document.hidden) return;
      let hasFailed = false;
      try {
        const found = await readPages(tokens.current);
        tokens.current = found.tokens;
        if (!stopped) set({ ...found, problem: null, isRead: true });
      } catch (problem) {
        if (!(problem instanceof Problem)) throw problem;
        hasFailed = true;
        tokens.current = [""];
        if (!stopped) set((old) => ({ ...old, problem }));
      }
      if (!stopped && (hasFailed || !isLast)) timer = setTimeout(() => load(!hasFailed), 5000);
    };
    const begin = () => load(false);
    begin();
    document.addEventListener("visibilitychange", begin);
    window.addEventListener("evenkeel-changed", begin);
    return () => {
      stopped = true;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", begin);
      window.removeEventListener("evenkeel-changed", begin);
    };
  }, [signal]);
  return state;
}

async function readPages(known) {
  const page = (token) => read(listPath("/nodes", { page: token }, [], 200));
  const answers = new Map(await Promise.all(known.map(async (token) => [token, await page(token)])));
  const nodes = [];
  const tokens = [];
  let token = "";
  while (token !== null && tokens.length < MAX_PAGES) {
    const found = answers.get(token) || (await page(token));
    nodes.push(...found.items);
    tokens.push(token);
    token = found.nextPageToken;
  }
  return { nodes, tokens, isWhole: token === null };
}

// One square for each node. Nodes and pools with problems come first. A short grid scrolls.
export function NodeGrid({ status, isShort }) {
  const phases = status.incidents.items.map((incident) => `${incident.incidentId} ${incident.state} ${incident.nodeLane.phase}`);
  const { nodes, isWhole, problem, isRead } = useNodes(`${status.changedAt} ${status.nodesChangedAt} ${status.counts?.at} ${status.incidents.open} ${phases}`);
  const pools = new Map();
  for (const node of nodes) {
    if (pools.has(node.pool)) pools.get(node.pool).push(node);
    else pools.set(node.pool, [node]);
  }
  const rank = (node) => ORDER.indexOf(signOf("node", node.state));
  const worst = (members) => Math.min(...members.map(rank));
  return html`<div class=${problem ? "stale" : ""}>
    ${problem ? html`<p class="problem">Not current: ${problem.message}</p>` : null}
    <div class="nodes ${isShort ? "short" : ""} ${nodes.length > DENSE ? "dense" : ""}" tabindex=${isShort && nodes.length > DENSE ? "0" : null}>${[...pools].sort((a, b) => worst(a[1]) - worst(b[1])).map(([pool, members]) => html`<div class="squares" role="list" aria-label="Nodes of ${pool}">
      ${[...members].sort((a, b) => rank(a) - rank(b) || (a.instanceId < b.instanceId ? -1 : 1)).map((node) => {
        const sign = signOf("node", node.state);
        const label = `${node.instanceId}, ${pool}: ${plain(node.state)}${node.isStale ? ", not current" : ""}`;
        return html`<span role="listitem" key=${node.instanceId}><a class="square ${sign}" href=${href(["nodes", node.instanceId])} title=${label} aria-label=${label}>${sign === "ok" ? "" : SIGNS[sign]}</a></span>`;
      })}</div>`)}</div>
    ${nodes.length && !isWhole ? html`<p class="dim">The first ${nodes.length} nodes.</p>` : null}
    ${!nodes.length && !problem ? (isRead ? html`<p class="empty">No node is known yet.</p>` : html`<p class="loading">Loading…</p>`) : null}
    <p class="legend">${["ok", "working", "warn", "failed"].map((sign) => html`<span><span class="state ${sign}">${SIGNS[sign]}</span> ${{ ok: "in service", working: "starting or repairing", warn: "cordoned, blocked, waiting or not ready", failed: "unhealthy or quarantined" }[sign]}</span>`)}</p>
  </div>`;
}

export function Nodes({ filters, status }) {
  const live = useLive(listPath("/nodes", filters, ["pool", "state", "gone", "sort"]));
  return html`<div class="grid">
    <${Panel} title="Nodes" live=${status} wide=${true}>${status.data ? html`<${NodeGrid} status=${status.data} />` : null}<//>
    <${Panel} title=${filters.pool ? `Nodes of ${filters.pool}` : "List"} live=${live} wide=${true} more=${html`
        ${filters.pool ? html`<a class="chip" href=${href(["nodes"], { ...filters, pool: "", page: "" })} title="Remove this filter">pool: ${filters.pool} ✕</a>` : null}
        <${Filter} page=${["nodes"]} filters=${filters} name="state" label="State" options=${NODE_STATES} />`}>
      <${Table} label="Nodes" empty=${emptyText(live, filters, "No node is known yet.", "No node matches.")} rows=${live.data?.items || []} rowHref=${(node) => href(["nodes", node.instanceId])} sorting=${{ page: ["nodes"], filters }} columns=${[
        { title: "Node", sort: "instanceId", cell: (node) => html`<${Link} to=${["nodes", node.instanceId]} title=${node.name}>${node.instanceId}<//>` },
        { title: "State", sort: "state", cell: (node) => html`<${State} kind="node" state=${node.state} />` },
        { title: "Pool", sort: "pool", whole: true, cell: (node) => html`<${Link} to=${["nodes"]} filters=${{ pool: node.pool }}>${node.pool}<//>` },
        { title: "Type", sort: "instanceType", cell: (node) => node.instanceType },
        { title: "GPUs in use", sort: "gpusInUse", right: true, cell: (node) => `${node.gpusInUse} of ${amount(node.gpus)}` },
        { title: "Incident", whole: true, cell: (node) => (node.incidentId ? html`<${Link} to=${["incidents", node.incidentId]}>${node.incidentId}<//>` : "") },
        { title: "Changed", sort: "changedAt", cell: (node) => html`<${Time} at=${node.changedAt} />` },
        { title: "Note", grow: true, cell: (node) => node.block?.reason || node.unhealthy?.reason || (node.cordon ? `cordoned by ${node.cordon.by}` : "") },
      ]} />
      <${Pages} live=${live} page=${["nodes"]} filters=${filters} /><//></div>`;
}

export function Node({ words, shell }) {
  const path = `/nodes/${id(words[1])}`;
  const live = useLive(path);
  const node = live.data;
  const why = useLive(node?.incidentId ? `/incidents/${id(node.incidentId)}/why` : null);
  return html`<div class="grid">
    <${Panel} title=${words[1]} live=${live} wide=${true} more=${node ? html`<${Acts} acts=${acts(node, path)} isReadOnly=${shell.isReadOnly} />` : null}>${node
      ? html`<p><${State} kind="node" state=${node.state} /> ${node.block?.reason || node.unhealthy?.reason || ""}</p>
        ${node.isStale ? html`<p class="problem">Not current: the cluster was last seen <${Time} at=${node.lastSeenAt} />.</p>` : null}
        <${Facts} rows=${[
          ["Name", node.name],
          ["Pool", html`<${Link} to=${["nodes"]} filters=${{ pool: node.pool }}>${node.pool}<//>, cluster ${node.cluster}`],
          ["Instance type", `${node.instanceType}${node.zone ? `, ${node.zone}` : ""}`],
          ["HyperPod says", node.providerStatus],
          ["Kubernetes says", node.isReady === null ? "unknown" : `${node.isReady ? "Ready" : "not Ready"}${node.isCordoned ? ", cordoned" : ""}`],
          ["Cordoned by", node.cordon ? html`${node.cordon.by}: ${node.cordon.reason}` : null],
          ["Repaired by", node.repairedBy],
          ["GPUs", `${node.gpusInUse} of ${amount(node.gpus)} in use`],
          ["CPU", node.cpu === null ? "unknown" : `${amount(node.cpuInUse)} of ${amount(node.cpu)} vCPU requested`],
          ["Memory", node.memoryGib === null ? "unknown" : `${amount(node.memoryGibInUse)} of ${amount(node.memoryGib)} GiB requested`],
          ["Marks", (node.marks || []).join(", ")],
          ["Fails often", node.isLemon ? "yes: a lemon" : null],
          ["Incident", node.incidentId ? html`<${Link} to=${["incidents", node.incidentId]}>${node.incidentId}<//>` : "none open"],
          ["Unmanaged workloads", counted((node.unmanagedWorkloads || []).length, "workload")],
          ["Launched", html`<${Time} at=${node.launchedAt} />`],
        ]} />`
      : null}<//>
    ${node?.incidentId ? html`<${Panel} title="Why" live=${why} wide=${true}>${why.data ? html`<${Why} why=${why.data} />` : null}<//>` : null}
  </div>`;
}

function acts(node, path) {
  const reason = { name: "reason", label: "Reason" };
  const name = shortNode(node.instanceId);
  if (node.state === "GONE") return [];
  const mark = (verb, label, done) => ({
    label: `${label}…`, title: `${label} ${name}`, verb: label, fields: [reason], effects: [], plansAtOnce: true,
    plan: async () => (await planOf("POST", `${path}/${verb}`, {})).effects,
    send: async (values) => (await change("POST", `${path}/${verb}`, values)).reason || done,
  });
  return [
    node.isCordoned ? mark("uncordon", "Uncordon", "The node is uncordoned.") : mark("cordon", "Cordon", "The node is cordoned."),
    { label: "Replace…", title: `Replace ${name}`, verb: "Replace the node", fields: [reason], effects: ["Evenkeel reports a fault and runs a normal recovery, within every guardrail."],
      plan: async (values) => {
        const plan = await change("POST", `${path}/replace`, { ...values, dryRun: true });
        return [`${plan.reason} (${plan.decisionId})`, `Jobs that Evenkeel will stop and move: ${(plan.jobs || []).join(", ") || "none now"}.`, ...(plan.alternatives || []).map((each) => `Not ${plain(each.option)}: ${each.whyNot}`)];
      },
      send: async (values) => {
        await change("POST", `${path}/replace`, values);
        return "The recovery starts. Its incident appears within seconds.";
      } },
  ];
}
