import assert from "node:assert/strict";
import test from "node:test";

import { reply } from "../plugin/dist/server.js";

const call = (name, given) =>
  reply(JSON.stringify({ id: 1, method: "tools/call", params: { name, arguments: given } }));

test("words are counted", async () => {
  const said = await call("count", { text: "one  two\nthree" });
  assert.deepEqual(said.result.content, [{ type: "text", text: "3" }]);
});

test("what does not fit is refused", async () => {
  assert.match((await call("count", { text: 7 })).error.message, /`text`/);
  assert.match((await call("other", {})).error.message, /no tool/);
});
