// The tools: what a model is told of each, and what it does.

export interface Tool {
  name: string;
  description: string;
  inputSchema: Record<string, unknown>;
  run(given: Record<string, unknown>): string | Promise<string>;
}

/** The arguments are not for this tool; nothing was done. */
export class Refused extends Error {
  override toString(): string {
    return this.message;
  }
}

export const tools: Tool[] = [
  {
    name: "count",
    description: "Counts the words of a text.",
    inputSchema: {
      type: "object",
      properties: { text: { type: "string", description: "What to count the words of." } },
      required: ["text"],
      additionalProperties: false,
    },
    run(given) {
      const words = text(given, "text").split(/\s+/).filter((word) => word !== "");
      return String(words.length);
    },
  },
];

function text(given: Record<string, unknown>, name: string): string {
  const value = given[name];
  if (typeof value !== "string") {
    throw new Refused(`\`${name}\` is missing, or no string`);
  }
  return value;
}
