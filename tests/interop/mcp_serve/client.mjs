// SPDX-License-Identifier: Apache-2.0
// usage: node client.mjs MODULES RELEASE MODE TARGET CALLS
//
// The official TypeScript client, of release 1 (@modelcontextprotocol/sdk) or 2 (@modelcontextprotocol/client).
// MODE is legacy or modern, TARGET a URL or a JSON {command, args, env}, CALLS a JSON array of {name, arguments}; in
// arguments "$HANDLE" is the session_id of the last result that had one. Prints one JSON object with what came of it.
import { pathToFileURL } from "node:url";

const [modules, release, mode, target, calls] = process.argv.slice(2);
const load = (path) => import(pathToFileURL(`${modules}/@modelcontextprotocol/${path}`));

async function classes() {
    if (release === "1") {
        const { Client } = await load("sdk/dist/esm/client/index.js");
        const { StdioClientTransport } = await load("sdk/dist/esm/client/stdio.js");
        const { StreamableHTTPClientTransport } = await load("sdk/dist/esm/client/streamableHttp.js");
        return { Client, StdioClientTransport, StreamableHTTPClientTransport };
    }
    return { ...(await load("client/dist/index.mjs")), ...(await load("client/dist/stdio.mjs")) };
}

const { Client, StdioClientTransport, StreamableHTTPClientTransport } = await classes();
const options = mode === "modern" ? { versionNegotiation: { mode: { pin: "2026-07-28" } } } : {};
const client = new Client({ name: "box-interop", version: "1" }, options);
const transport = target.startsWith("http")
    ? new StreamableHTTPClientTransport(new URL(target))
    : new StdioClientTransport({ ...JSON.parse(target), stderr: "inherit" });
await client.connect(transport);

const { tools } = await client.listTools();
const results = [];
let handle;
for (const { name, arguments: given } of JSON.parse(calls)) {
    const text = JSON.stringify(given ?? {}).replaceAll("$HANDLE", handle ?? "");
    const result = await client.callTool({ name, arguments: JSON.parse(text) });
    if (name === "create_session") handle = result.structuredContent.session_id;
    results.push(result);
}
const progress = [];
const request = { name: "exec", arguments: { command: "echo a; sleep 1.2; echo b" } };
const extra = { onprogress: (p) => progress.push(p.message) };
const long = await (release === "1" ? client.callTool(request, undefined, extra) : client.callTool(request, extra));
const abort = new AbortController();
const hanging = { name: "exec", arguments: { command: "echo x; sleep 600", timeout_sec: 600 } };
const stop = { signal: abort.signal, onprogress: () => abort.abort("enough") };
const cancelled = await (release === "1" ? client.callTool(hanging, undefined, stop) : client.callTool(hanging, stop))
    .then(() => false, () => true);
const { resources } = await client.listResources();
const { resourceTemplates } = await client.listResourceTemplates();
const contents = [];
for (const { uri } of resources) contents.push((await client.readResource({ uri })).contents[0]);
console.log(JSON.stringify({
    server: client.getServerVersion(), version: client.getNegotiatedProtocolVersion?.() ?? transport.protocolVersion ?? null,
    tools: tools.map((tool) => tool.name), results, progress, long: long.content[0].text, cancelled, resources,
    resourceTemplates, contents,
}));
await client.close();
