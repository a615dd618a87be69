// A client with the TypeScript SDK: client.mjs v1|v2 legacy|modern TOOL TARGET…
// TARGET is a URL, or a command and its arguments. It prints "ok", or fails.
import assert from 'node:assert/strict';

const [sdk, era, tool, ...target] = process.argv.slice(2);
let Client, Stdio, HTTP;
if (sdk === 'v1') {
  ({ Client } = await import('@modelcontextprotocol/sdk/client/index.js'));
  ({ StdioClientTransport: Stdio } = await import('@modelcontextprotocol/sdk/client/stdio.js'));
  ({ StreamableHTTPClientTransport: HTTP } = await import('@modelcontextprotocol/sdk/client/streamableHttp.js'));
} else {
  ({ Client, StreamableHTTPClientTransport: HTTP } = await import('@modelcontextprotocol/client'));
  ({ StdioClientTransport: Stdio } = await import('@modelcontextprotocol/client/stdio'));
}
const transport = target[0].startsWith('http')
  ? new HTTP(new URL(target[0]))
  : new Stdio({ command: target[0], args: target.slice(1), stderr: 'inherit' });

let changed;
const listChanged = new Promise(resolve => { changed = resolve; });
const client = new Client({ name: 'test', version: '1' }, {
  capabilities: {},
  listChanged: { tools: { autoRefresh: false, onChanged: () => changed() } },
  ...(sdk === 'v2' ? { versionNegotiation: { mode: era === 'modern' ? { pin: '2026-07-28' } : 'legacy' } } : {}),
});
client.onerror = error => console.error('error:', error.message);
await client.connect(transport);
const names = async () => (await client.listTools()).tools.map(t => t.name);
assert((await names()).includes('ext_child_echo'));
const call = (name, args, options) => sdk === 'v1'
  ? client.callTool({ name, arguments: args }, undefined, options)
  : client.callTool({ name, arguments: args }, options);

const answers = await Promise.all(Array.from({ length: 64 }, (_, n) => call('ext_child_echo', { n })));
answers.forEach((r, n) => assert.equal(r.content[0].text, `{"n":${n}}`));

const progress = [];
let told;
const onprogress = p => {
  progress.push(p.progress);
  if (p.progress === 3) told = call('ext_child_has_all', {});
};
await call('ext_child_count', {}, { onprogress, resetTimeoutOnProgress: true });
await told;
assert.deepEqual(progress, [1, 2, 3]);

const abort = new AbortController();
const rejected = assert.rejects(call('ext_child_wait', {}, { signal: abort.signal }));
await call('ext_child_is_waiting', {});
abort.abort('enough');
await rejected;
assert.equal((await call('ext_child_was_cancelled', {})).content[0].text, 'yes');

await call('ext_child_add_tool', { name: tool });
await listChanged;
for (let i = 0; !(await names()).includes(`ext_child_${tool}`); i++) {
  assert(i < 100, 'the new tool is not listed');
  await new Promise(resolve => setTimeout(resolve, 50));
}
assert.equal((await call(`ext_child_${tool}`, {})).content[0].text, 'new');
await assert.rejects(call('no_such_tool', {}));
const image = await call('ext_everything_test_image_content', {});
assert.equal(image.content[0].type, 'image');
await client.close();
console.log('ok');
process.exit(0);
