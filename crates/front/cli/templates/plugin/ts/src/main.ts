// The plugin: a server of the Model Context Protocol over standard streams.
//
// Standard output belongs to the protocol; what is written to standard error
// is in the plugin's log. New tools go into tools.ts.

import { createInterface } from "node:readline";
import { reply } from "./server.js";

for await (const line of createInterface({ input: process.stdin })) {
  const said = await reply(line);
  if (said !== undefined) {
    process.stdout.write(JSON.stringify(said) + "\n");
  }
}
