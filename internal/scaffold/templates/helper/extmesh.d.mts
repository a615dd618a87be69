/** The types of extmesh.mjs. */

/** A JSON Schema of an argument. */
export type Schema = { type?: string | string[]; description?: string; default?: unknown; [keyword: string]: unknown };

export interface Annotations {
  readOnlyHint?: boolean;
  destructiveHint?: boolean;
  idempotentHint?: boolean;
  openWorldHint?: boolean;
}

/** An error for the caller. Codes outside -32768 to -32000 are free for extensions. */
export class ToolError extends Error {
  constructor(message: string, code?: number);
  code: number;
}

/** Makes a function a tool. An argument without a default is required. */
export function tool<A extends object>(
  name: string,
  description: string,
  properties: { [K in keyof A]-?: Schema },
  run: (args: A) => unknown,
  annotations?: Annotations,
): void;

/** The tools, by name. */
export const tools: Map<string, { name: string; description: string; schema: object; annotations: Annotations; run: (args: object) => unknown }>;

/** Calls a tool, and returns its result. */
export function call(name: string, args: object): Promise<unknown>;

/** Answers requests of a bridge on stdin and stdout, or on HTTP at a port of this machine. */
export function run(options?: { version?: string; dialect?: "native" | "mcp"; port?: number }): unknown;
