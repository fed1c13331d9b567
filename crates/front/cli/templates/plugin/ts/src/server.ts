// The protocol: what is answered to each line.

import { Refused, tools } from "./tools.js";

type Fields = Record<string, unknown>;

/** What is answered to a line, or nothing where nobody waits for an answer. */
export async function reply(line: string): Promise<Fields | undefined> {
  let asked: Fields;
  try {
    asked = fields(JSON.parse(line));
  } catch {
    return { jsonrpc: "2.0", id: null, error: { code: -32700, message: "this is no JSON" } };
  }
  if (asked.id === undefined) {
    return undefined;
  }
  const said = { jsonrpc: "2.0", id: asked.id };
  try {
    const result = await answer(asked.method, fields(asked.params));
    if (result === undefined) {
      return { ...said, error: { code: -32601, message: "no such method" } };
    }
    return { ...said, result };
  } catch (error) {
    return { ...said, error: { code: -32602, message: String(error) } };
  }
}

async function answer(method: unknown, params: Fields): Promise<Fields | undefined> {
  const capabilities = { tools: {} };
  switch (method) {
    case "server/discover":
      return { supportedVersions: ["2026-07-28"], capabilities, resultType: "complete" };
    case "initialize": {
      const serverInfo = { name: "{{name}}", version: "0.1.0" };
      return { protocolVersion: "2025-11-25", capabilities, serverInfo };
    }
    case "ping":
      return {};
    case "tools/list": {
      const told = tools.map(({ name, description, inputSchema }) => ({ name, description, inputSchema }));
      return { tools: told, resultType: "complete" };
    }
    case "tools/call":
      return call(params.name, fields(params.arguments));
    default:
      return undefined;
  }
}

async function call(name: unknown, given: Fields): Promise<Fields> {
  const tool = tools.find((one) => one.name === name);
  if (tool === undefined) {
    throw new Refused(`there is no tool \`${name}\``);
  }
  let text: string;
  let isError = false;
  try {
    text = await tool.run(given);
  } catch (error) {
    if (error instanceof Refused) {
      throw error;
    }
    text = String(error);
    isError = true;
  }
  return { content: [{ type: "text", text }], isError, resultType: "complete" };
}

function fields(value: unknown): Fields {
  return typeof value === "object" && value !== null ? (value as Fields) : {};
}
