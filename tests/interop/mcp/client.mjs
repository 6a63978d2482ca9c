// SPDX-License-Identifier: Apache-2.0
// usage: node client.mjs MODULES CALLS COMMAND [ARG...]
//
// The official TypeScript client: connects, lists the tools, makes the calls (a JSON array of
// {name, arguments}), and prints one JSON object with what came of it.
import { pathToFileURL } from "node:url";

const [modules, calls, command, ...args] = process.argv.slice(2);
const load = (name) => import(pathToFileURL(`${modules}/@modelcontextprotocol/sdk/dist/esm/client/${name}.js`));
const { Client } = await load("index");
const { StdioClientTransport } = await load("stdio");

const client = new Client({ name: "box-interop", version: "1" });
const transport = new StdioClientTransport({ command, args, env: process.env, stderr: "inherit" });
await client.connect(transport);
const tools = [];
for (let cursor; ;) {
    const page = await client.listTools(cursor ? { cursor } : {});
    tools.push(...page.tools.map((tool) => tool.name));
    if (!(cursor = page.nextCursor)) break;
}
const results = [];
for (const call of JSON.parse(calls)) results.push(await client.callTool(call));
await client.close();
console.log(JSON.stringify({ server: client.getServerVersion(), tools, results }));
