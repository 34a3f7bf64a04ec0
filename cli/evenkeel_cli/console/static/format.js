// Words and signs for states, ages, amounts and addresses. Colour is never the only mark: each state has a sign and a word.
import { now } from "./api.js";

export const SIGNS = { ok: "●", working: "◐", warn: "▲", failed: "✖", next: "○", idle: "·" };

const STATES = {
  health: { OK: "ok", DEGRADED: "warn", CRITICAL: "failed", NOT_RUNNING: "failed" },
  incident: {
    OPEN: "working", RECOVERING: "working", BLOCKED: "warn", RECOVERED: "ok", OBSERVED: "idle", STOOD_DOWN: "idle",
    WAITING_FOR_PERSON: "failed", JOB_NOT_RESUMED: "failed", FAILED: "failed",
  },
  job: {
    PENDING: "next", STARTING: "working", RUNNING: "ok", STOPPING: "working", SUSPENDED: "idle", SUCCEEDED: "ok",
    FAILED: "failed", CANCELLED: "idle",
  },
  attempt: {
    STARTING: "working", LAUNCHED: "working", RUNNING: "ok", SUCCEEDED: "ok", FAILED: "failed", STOPPED: "idle",
    LOST: "warn", NEVER_RAN: "warn",
  },
  node: {
    IN_SERVICE: "ok", STARTING: "working", REPAIRING: "working", BLOCKED: "warn", WAITING: "warn",
    QUARANTINED: "failed", CORDONED: "warn", NOT_READY: "warn", UNHEALTHY: "failed", GONE: "idle",
  },
  source: { CURRENT: "ok", FAILING: "warn", STALE: "failed", UNKNOWN: "warn", OFF: "idle" },
};

export function signOf(kind, state) {
  return STATES[kind]?.[state] || "idle";
}

export const ENDED_JOBS = ["SUCCEEDED", "FAILED", "CANCELLED"];

export function plain(state) {
  return String(state ?? "").toLowerCase().replaceAll("_", " ");
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const whole = Math.max(0, seconds);
  if (whole < 10) return `${whole.toFixed(1)} s`;
  if (whole < 120) return `${Math.round(whole)} s`;
  if (whole < 7200) return `${Math.round(whole / 60)} min`;
  if (whole < 172800) return `${(whole / 3600).toFixed(1)} h`;
  return `${(whole / 86400).toFixed(1)} d`;
}

export function secondsSince(instant) {
  return instant ? (now() - Date.parse(instant)) / 1000 : null;
}

export function ago(instant) {
  return instant ? `${duration(secondsSince(instant))} ago` : "–";
}

export function clockTime(instant) {
  return instant ? `${new Date(Date.parse(instant)).toISOString().slice(11, 19)}Z` : "–";
}

export function fullTime(instant) {
  return instant ? new Date(Date.parse(instant)).toISOString().replace("T", " ").slice(0, 19) + "Z" : "–";
}

export function counted(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}

export function amount(value, unit = "") {
  return value === null || value === undefined ? "unknown" : `${(Math.round(value * 100) / 100).toLocaleString("en")}${unit}`;
}

export function dollars(value) {
  return value === null || value === undefined ? "–" : `$${value < 100 ? value.toFixed(2) : Math.round(value).toLocaleString("en")}`;
}

export function shortNode(id) {
  return id && id.length > 14 ? `${id.slice(0, 6)}…${id.slice(-4)}` : id;
}

// The address of a page: its words and its filters.
export function href(words, filters = {}) {
  const query = new URLSearchParams(Object.entries(filters).filter(([, value]) => value)).toString();
  return `#/${words.map(encodeURIComponent).join("/")}${query ? `?${query}` : ""}`;
}

export function route(hash) {
  const [path, query] = hash.replace(/^#\/?/, "").split("?");
  const words = path.split("/").filter(Boolean).map((word) => {
    try {
      return decodeURIComponent(word);
    } catch {
      return word;
    }
  });
  return { words, filters: Object.fromEntries(new URLSearchParams(query || "")) };
}

// A part of an API path. An id contains no character that separates parts of a path.
export function id(word) {
  return String(word).replace(/[^A-Za-z0-9@:._~-]/g, "");
}
