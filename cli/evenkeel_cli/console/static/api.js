// Reads with ETags, live reads while the page is visible, and changes.
import { useEffect, useState } from "./vendor/htm-preact-standalone-3.1.1.js";

const answers = new Map(); // path → {data, etag}
const MAX_ANSWERS = 60;
let clock = null; // The server's time, and performance.now() when it was read. The clock of this machine may be wrong.

export class Problem extends Error {
  constructor(status, document) {
    super(document.detail || document.message || `HTTP ${status}`);
    this.status = status;
    // API Gateway itself answers with a message alone.
    this.code = document.code || (status === 403 ? "NOT_ALLOWED" : `HTTP_${status}`);
    this.hint = document.hint || (status === 403 ? "Your AWS identity does not have this permission." : "");
  }
}

export function now() {
  return clock ? clock.at + (performance.now() - clock.read) : Date.now();
}

function keep(path, answer) {
  answers.delete(path);
  answers.set(path, answer);
  if (answers.size > MAX_ANSWERS) answers.delete(answers.keys().next().value);
}

async function send(method, path, headers, body) {
  let response;
  try {
    // This module keeps the answers. A second cache below it can answer 304 to a request without an ETag.
    response = await fetch(`/v1${path}`, { method, headers, body, cache: "no-store" });
  } catch {
    throw new Problem(0, { code: "CONSOLE_STOPPED", detail: "The console does not answer.", hint: "Start it again: evenkeel console" });
  }
  if (response.status === 304 && headers["If-None-Match"]) return { response, document: null };
  const text = await response.text();
  let document;
  try {
    document = text ? JSON.parse(text) : {};
  } catch {
    document = { detail: `The answer is not JSON (HTTP ${response.status}).` };
  }
  if (!response.ok) throw new Problem(response.status, document);
  return { response, document };
}

export async function read(path) {
  const known = answers.get(path);
  const { response, document } = await send("GET", path, known?.etag ? { "If-None-Match": known.etag } : {});
  if (document === null) {
    keep(path, known);
    return known.data;
  }
  keep(path, { data: document, etag: response.headers.get("ETag") });
  if (document.asOf) clock = { at: Date.parse(document.asOf), read: performance.now() };
  return document;
}

export function known(path) {
  return answers.get(path)?.data;
}

// The keys of changes whose answer was lost. If the same change is sent again, it has the same key and happens once.
const unanswered = new Map(); // change → {key, at}
const KEY_KEPT_MS = 600_000;

export async function change(method, path, body, { version } = {}) {
  const headers = {
    "Content-Type": "application/json",
    "X-Evenkeel-Console": localStorage.getItem("evenkeel-console-key") || "",
  };
  const text = JSON.stringify(body);
  const name = `${method} ${path} ${text}`;
  const lost = unanswered.get(name);
  const key = lost && performance.now() - lost.at < KEY_KEPT_MS ? lost.key : `console-${crypto.randomUUID()}`;
  if (method === "POST") headers["Idempotency-Key"] = key;
  if (version !== undefined) headers["If-Match"] = `"${version}"`;
  let document;
  try {
    ({ document } = await send(method, path, headers, text));
  } catch (problem) {
    if (problem.status === 0 || problem.status >= 500) unanswered.set(name, { key, at: performance.now() });
    else unanswered.delete(name);
    throw problem;
  }
  unanswered.delete(name);
  window.dispatchEvent(new Event("evenkeel-changed"));
  return document;
}

// The plan of a change. A stack that is older than this console cannot plan it.
export async function planOf(method, path, body) {
  try {
    return await change(method, path, { ...body, dryRun: true });
  } catch (problem) {
    if (problem.status !== 400 || !problem.message.includes("dryRun")) throw problem;
    return { effects: ["This stack is older than the console and cannot show a plan."] };
  }
}

// {data, problem, since, readAt}: the last answer, when it was read, and why there is no newer answer. A new value of
// `signal` causes a read immediately. A change shows within five seconds of its record: four, and the time of the answer.
export function useLive(path, seconds = 4, signal = "") {
  const [state, set] = useState({ path, data: path ? known(path) : undefined, problem: null, since: null });
  useEffect(() => {
    if (!path) return undefined;
    let timer = null;
    let stopped = false;
    const tick = async () => {
      clearTimeout(timer);
      if (stopped || document.hidden) return;
      try {
        const data = await read(path);
        if (!stopped) set({ path, data, problem: null, since: null, readAt: now() });
      } catch (problem) {
        if (!(problem instanceof Problem)) throw problem;
        if (!stopped) set((old) => ({ path, data: old.path === path ? old.data : undefined, readAt: old.readAt, problem, since: (old.path === path && old.since) || now() }));
      }
      if (!stopped) timer = setTimeout(tick, 1000 * seconds);
    };
    set((old) => (old.path === path ? old : { path, data: known(path), problem: null, since: null }));
    tick();
    document.addEventListener("visibilitychange", tick);
    window.addEventListener("evenkeel-changed", tick);
    return () => {
      stopped = true;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", tick);
      window.removeEventListener("evenkeel-changed", tick);
    };
  }, [path, seconds, signal]);
  return state.path === path ? state : { path, data: path ? known(path) : undefined, problem: null, since: null };
}

export async function session() {
  const response = await fetch("/session");
  const document = await response.json();
  if (!response.ok) throw new Problem(response.status, document);
  return document;
}
