// words: an extension in Node that runs as its own service. It was written from docs/protocol.md, imports nothing of
// extmesh, and uses the client "nats" from npm.
//
//     npm install && node words.mjs --nats-url nats://127.0.0.1:4222 --subject-prefix ext
import { connect, headers, nuid } from "nats";
import { hostname } from "node:os";
import { parseArgs } from "node:util";

const { values: flags } = parseArgs({
  options: {
    "nats-url": { type: "string", default: process.env.NATS_URL ?? "nats://127.0.0.1:4222" },
    prefix: { type: "string", default: "ext" }, // of the mesh
    "subject-prefix": { type: "string" }, // of this service's subjects; default: that of the mesh
    "inbox-prefix": { type: "string", default: "_INBOX" },
  },
});

const id = "words";
const version = "1.0.0";
const instance = nuid.next();
const P = flags.prefix;
const SP = flags["subject-prefix"] ?? P;
const maxInflight = 256;

// The tools. Each gets its arguments and a signal that aborts when the call is cancelled or times out.
const tools = {
  count: {
    description: "Counts the words and characters of a text.",
    input_schema: { type: "object", properties: { text: { type: "string" } }, required: ["text"] },
    annotations: { readOnlyHint: true },
    async run({ text }) {
      if (typeof text !== "string") throw failure(-32602, "text must be a string");
      return { words: (text.match(/\S+/g) ?? []).length, characters: [...text].length };
    },
  },
  linger: {
    description: "Returns after a delay, as a slow tool does.",
    input_schema: { type: "object", properties: { ms: { type: "integer", minimum: 0 } }, required: ["ms"] },
    async run({ ms }, signal) {
      if (!Number.isInteger(ms) || ms < 0) throw failure(-32602, "ms must be an integer from 0");
      await new Promise((resolve, reject) => {
        const timer = setTimeout(resolve, ms);
        signal.addEventListener("abort", () => (clearTimeout(timer), reject(signal.reason)), { once: true });
      });
      return { lingered_ms: ms };
    },
  },
};

const failure = (code, message, data) => Object.assign(new Error(message), { code, data });

async function handle(method, params, signal) {
  const list = Object.entries(tools).map(([name, { run, ...descriptor }]) => ({ name, ...descriptor }));
  switch (method) {
    case "initialize":
      return { server_version: version, tools: list, hooks: [] };
    case "ping":
      return {};
    case "tools/list":
      return { tools: list };
  }
  const name = method.startsWith("tools/") ? method.slice("tools/".length) : "";
  if (!Object.hasOwn(tools, name)) throw ours(-32601, `${id} has no method ${method.slice(0, 100)}`, { kind: "method_not_found", ran: "no" });
  const { _meta, ...args } = params ?? {};
  return tools[name].run(args, signal);
}

const url = new URL(flags["nats-url"]);
const nc = await connect({
  servers: url.host,
  user: url.username ? decodeURIComponent(url.username) : undefined,
  pass: url.password ? decodeURIComponent(url.password) : undefined,
  name: id,
  inboxPrefix: flags["inbox-prefix"],
  maxReconnectAttempts: -1,
  ignoreAuthErrorAbort: true, // a password may be changed while it runs
  waitOnFirstConnect: true,
});

const running = new Map(); // call id, or a number if there is none → AbortController
const cancelled = new Map(); // call id → time; a cancel may arrive before its call
let state = "ready";
let calls = 0;
let errors = 0;
let seq = 0;
const born = Date.now();

// handleRequest handles one request. Requests run concurrently: the subscription does not wait for it.
async function handleRequest(err, m) {
  // Inboxes only: the caller chooses the reply subject, and this connection may publish heartbeats, too.
  if (err || !m.reply?.startsWith("_INBOX.")) return;
  let key = ++calls;
  let requestID = null;
  try {
    const request = parse(m.data);
    requestID = request.id;
    const { timeout, callID } = limits(m.headers);
    if (running.size >= maxInflight)
      throw ours(-32005, `${maxInflight} calls are already running`, { kind: "overloaded", ran: "no", limit: maxInflight, retry_after_ms: 50 });
    if (callID && running.has(callID)) throw ours(-32600, "a call with this Ext-Call-Id is running", { kind: "invalid_request", ran: "no" });
    const aborter = new AbortController();
    if (callID) key = callID;
    running.set(key, aborter);
    if (callID && Date.now() - (cancelled.get(callID) ?? -Infinity) < 5000) abort(aborter, -32007, "cancelled");
    const timer = setTimeout(() => abort(aborter, -32001, "timeout"), timeout);
    try {
      aborter.signal.throwIfAborted();
      const result = await stopped(aborter.signal, handle(request.method, request.params, aborter.signal));
      const text = JSON.stringify({ jsonrpc: "2.0", id: requestID, result });
      const [size, limit] = [Buffer.byteLength(text), nc.info.max_payload];
      if (size > limit) throw ours(-32006, "the result does not fit into a message", { kind: "too_large", ran: "maybe", size, limit });
      m.respond(text);
    } finally {
      clearTimeout(timer);
      running.delete(key);
    }
  } catch (e) {
    errors++;
    respondError(m, requestID, e);
  }
}

// parse reads the envelope: -32700 if it is not JSON in UTF-8, -32600 without a method or a valid id.
function parse(data) {
  let request;
  try {
    request = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(data));
  } catch {
    throw ours(-32700, "the request is not JSON in UTF-8", { kind: "parse", ran: "no" });
  }
  const id = request?.id;
  const usable = ["number", "string"].includes(typeof id) && Buffer.byteLength(JSON.stringify(id)) <= 256;
  if (!usable || typeof request.method !== "string")
    throw ours(-32600, "a request needs a method and an id", { kind: "invalid_request", ran: "no" });
  return request;
}

// limits reads the call's time limits and its id from the headers.
function limits(h) {
  let timeout = 30_000;
  if (h?.has("Ext-Timeout")) {
    timeout = Math.min(number(h, "Ext-Timeout"), 3_600_000);
  }
  return { timeout, callID: h?.get("Ext-Call-Id")?.slice(0, 128) };
}

function number(h, name) {
  const n = Number(h.get(name));
  if (!Number.isInteger(n) || n <= 0) throw ours(-32600, `${name} is not a number of milliseconds`, { kind: "invalid_request", ran: "no" });
  return n;
}

// ours marks an error of this service, as opposed to one of a tool.
const ours = (code, message, data) => Object.assign(failure(code, message, data), { ours: true });
const abort = (aborter, code, kind) => aborter.abort(ours(code, kind, { kind, ran: "maybe" }));

const stopped = (signal, work) =>
  Promise.race([work, new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason), { once: true }))]);

function respondError(m, requestID, e) {
  const error = { code: Number.isInteger(e.code) ? e.code : -32603, message: e.message ?? String(e) };
  if (e.data) error.data = e.data;
  let h;
  if (e.ours) {
    h = headers();
    h.set("Nats-Service-Error", error.message.replace(/[\x00-\x1f\x7f]/g, " "));
    h.set("Nats-Service-Error-Code", String(error.code));
  }
  m.respond(JSON.stringify({ jsonrpc: "2.0", id: requestID, error }), { headers: h });
}

function cancel(err, m) {
  if (err) return;
  let callID;
  try {
    callID = m.json().call_id;
  } catch {
    return; // without a call id
  }
  const aborter = running.get(callID);
  if (aborter) return abort(aborter, -32007, "cancelled");
  const now = Date.now();
  for (const [old, at] of cancelled) if (now - at > 5000) cancelled.delete(old);
  if (typeof callID === "string" && cancelled.size < 4096) cancelled.set(callID, now);
}

const publish = (verb, message) => nc.publish(`${P}.registry.${verb}.${id}`, JSON.stringify(message));

function announce() {
  publish("announce", {
    schema_version: 1, id, version, instance, host: hostname(), subject_prefix: SP, transport: "nats", dialect: "ext",
    features: ["cancel", "instance"], name: "Words", description: "Counts words.",
    handshake_hash: version, // any value that changes when the tools change
  });
  heartbeat();
}

function heartbeat() {
  publish("heartbeat", {
    id, version, instance, seq: ++seq, ts: new Date().toISOString(), interval_ms: 15000, state, inflight: running.size,
    calls, errors, uptime_secs: Math.floor((Date.now() - born) / 1000),
  });
}

// The queue group must be q: NATS delivers a request to one member of each queue group.
const serving = [
  nc.subscribe(`${SP}.${id}.rpc`, { queue: "q", callback: handleRequest }),
  nc.subscribe(`${SP}.${id}.rpc.${instance}`, { callback: handleRequest }),
];
nc.subscribe(`${SP}.${id}.cancel`, { callback: cancel });
const requested = nc.subscribe(`${P}.registry.request`, { callback: (err) => err || announce() });
await nc.flush(); // announce only after the server has processed the subscriptions
announce();

let heartbeatTimer = setTimeout(function again() {
  heartbeat();
  heartbeatTimer = setTimeout(again, 15_000 * (0.9 + Math.random() * 0.2));
}, Math.random() * 15_000);

(async () => {
  for await (const s of nc.status()) if (s.type === "reconnect") announce();
})();

// To stop without losing a call: unsubscribe, flush, answer the requests that have arrived, deregister. drain does the
// first two; the library's unsubscribe would drop requests that are already delivered.
async function stop() {
  clearTimeout(heartbeatTimer);
  state = "draining";
  heartbeat();
  await Promise.all(serving.map((s) => s.drain()));
  const late = setTimeout(() => {
    for (const aborter of running.values()) abort(aborter, -32000, "extension_exited");
  }, 30_000); // longer than that nobody waits for a service that stops
  while (running.size > 0) await new Promise((resolve) => setTimeout(resolve, 5));
  clearTimeout(late);
  requested.unsubscribe(); // an announcement after the notice would restore the instance
  publish("shutdown", { id, instance, reason: "shutdown" });
  await nc.flush().catch(() => {}); // while NATS is away
  await nc.close();
}
process.once("SIGTERM", stop);
process.once("SIGINT", stop);
