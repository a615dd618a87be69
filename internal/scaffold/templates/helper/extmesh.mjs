// Version 1 of extmesh.mjs: it makes functions the tools of an extension. Each extension has a copy. Node's own modules only.
//
//   tool("greet", "Greets a person by name.", { name: { type: "string" } }, ({ name }) => ({ greeting: `Hello, ${name}!` }), { readOnlyHint: true });
//   run();
//
// The properties are a JSON Schema for each argument; one without a default is required. ToolError is an error for the caller.
// For any other exception the caller receives its type and message, and standard error, which is the log, the stack.
// console.log() writes to standard error, too.

import { createServer } from "node:http";
import { basename, dirname } from "node:path";
import { fileURLToPath } from "node:url";

const mcpVersions = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];
const maxBody = 64 << 20;

export const tools = new Map();

// ToolError is an error for the caller. Codes outside -32768 to -32000 are free for extensions.
export class ToolError extends Error {
  constructor(message, code = 1) {
    super(message);
    this.code = code;
  }
}

// tool makes a function a tool, with MCP's annotations: readOnlyHint, destructiveHint, idempotentHint, openWorldHint.
export function tool(name, description, properties, run, annotations = {}) {
  const required = Object.keys(properties).filter((p) => !("default" in properties[p]));
  tools.set(name, { name, description, schema: { type: "object", properties, required }, run, annotations });
}

// call calls a tool, and returns its result.
export async function call(name, args) {
  const tool = tools.get(name);
  if (!tool) throw new ToolError(`there is no tool ${JSON.stringify(name)}`, -32601);
  const missing = tool.schema.required.filter((p) => args?.[p] === undefined);
  if (missing.length) throw new ToolError(`${name}: ${missing.join(", ")} missing`, -32602);
  const all = { ...args };
  for (const [name, property] of Object.entries(tool.schema.properties)) if (all[name] === undefined && "default" in property) all[name] = property.default;
  return tool.run(all);
}

const list = (key) => [...tools.values()].map((t) => ({ name: t.name, description: t.description, [key]: t.schema, annotations: t.annotations }));

async function native(method, params, version) {
  if (method === "initialize") return { server_version: version, tools: list("input_schema"), hooks: [] };
  if (method === "ping") return {};
  if (method === "tools/list") return { tools: list("input_schema") };
  if (method === "tools/call") return call(params?.name, params?.arguments); // of tools named list and call
  if (!method.startsWith("tools/")) throw new ToolError(`there is no method ${JSON.stringify(method)}`, -32601);
  const { _meta, ...args } = params ?? {};
  return call(method.slice("tools/".length), args);
}

async function mcp(method, params, version) {
  switch (method) {
    case "initialize":
      return {
        protocolVersion: mcpVersions.includes(params?.protocolVersion) ? params.protocolVersion : mcpVersions.at(-1),
        capabilities: { tools: {} },
        serverInfo: { name: basename(dirname(fileURLToPath(import.meta.url))), version },
      };
    case "ping":
      return {};
    case "tools/list":
      return { tools: list("inputSchema") };
    case "tools/call":
      try {
        const result = await call(params?.name, params?.arguments);
        const text = typeof result === "string" ? result : JSON.stringify(result ?? null);
        const structured = result && typeof result === "object" && !Array.isArray(result) ? { structuredContent: result } : {};
        return { content: [{ type: "text", text }], ...structured };
      } catch (e) {
        return { content: [{ type: "text", text: errorOf(e).message }], isError: true }; // in MCP, a tool's error is a result
      }
  }
  throw new ToolError(`there is no method ${JSON.stringify(method)}`, -32601);
}

function errorOf(e) {
  if (e instanceof ToolError) return { code: e.code, message: e.message };
  console.error(e);
  return { code: -32603, message: String(e) };
}

// run answers requests of a bridge on stdin and stdout, or on HTTP at a port of this machine.
export function run({ version = "0.1.0", dialect = "native", port } = {}) {
  const handle = dialect === "mcp" ? mcp : native;
  // respond returns the response to a request, as JSON; undefined for a notification.
  const respond = async (message) => {
    if (typeof message?.method !== "string" || message.id === undefined) return undefined;
    const response = { jsonrpc: "2.0", id: message.id };
    try {
      return JSON.stringify({ ...response, result: (await handle(message.method, message.params, version)) ?? null });
    } catch (e) {
      return JSON.stringify({ ...response, error: errorOf(e) });
    }
  };
  return port === undefined ? serveStdio(respond) : serveHTTP(respond, port);
}

// lines yields the lines of a stream. node:readline also ends a line at U+2028, which JSON may contain.
async function* lines(stream) {
  let pieces = [];
  for await (const chunk of stream.setEncoding("utf8")) {
    const [first, ...rest] = chunk.split("\n");
    pieces.push(first);
    for (const next of rest) {
      yield pieces.join("");
      pieces = [next];
    }
  }
  yield pieces.join("");
}

async function serveStdio(respond) {
  const write = process.stdout.write.bind(process.stdout);
  process.stdout.write = process.stderr.write.bind(process.stderr); // what a tool prints is not a response
  const running = new Set();
  for await (const line of lines(process.stdin)) {
    let message;
    try {
      message = JSON.parse(line);
    } catch {
      continue; // the empty line before the end of stdin, or not JSON
    }
    if (message?.method === "shutdown") break;
    const call = respond(message).then((response) => response && write(response + "\n")); // calls run concurrently
    running.add(call);
    call.finally(() => running.delete(call));
  }
  await Promise.all(running); // timers and connections of tools do not keep the process
  write("", () => process.exit());
}

function serveHTTP(respond, port) {
  const server = createServer(async (request, response) => {
    const chunks = [];
    let size = 0;
    try {
      for await (const chunk of request) if ((size += chunk.length) <= maxBody) chunks.push(chunk);
    } catch {
      return; // the client has gone
    }
    let body;
    let status = request.method === "POST" ? 403 : 405; // not for web pages
    if (status === 403 && !request.headers.origin && size <= maxBody) {
      try {
        body = await respond(JSON.parse(Buffer.concat(chunks).toString()));
        status = body === undefined ? 202 : 200;
      } catch {
        status = 400;
      }
    }
    response.writeHead(status, { "Content-Type": "application/json" }).end(body);
  });
  server.listen(port, "127.0.0.1", () => console.error(`listening on http://127.0.0.1:${server.address().port}/`));
  return server;
}
