/** A session that a page has exported goes on in the command line tool. */

import { execFileSync } from "node:child_process";
import { writeFileSync } from "node:fs";
import { expect, openHarness, test } from "./test.js";

/** With the tests of the whole workspace the tool is built as well, and that is done only once. */
const BUILD = ["test", "--locked", "--quiet", "--workspace", "--no-run"];
const TOKENS = 64;

/** What the tool says of a session that it has restored. */
interface Restored {
  readonly differs: readonly { readonly what: string }[];
}

for (const { model, path, kv_cache } of [
  { model: "tiny-geo", path: "tiny-geo/model.gguf", kv_cache: "f32" },
  { model: "models/qwen35-q1_0", path: "models/qwen35-q1_0/model.gguf", kv_cache: "kivi" },
] as const) {
  test(`a session of ${model} with the ${kv_cache} cache goes on natively as in the page @page`, async ({ page, backend }, info) => {
    test.setTimeout(600_000);
    await openHarness(page);
    const { file, expected } = await page.evaluate(
      async ({ backend, model, kv_cache, tokens }) => {
        const { load, Talk, generate } = harness.sessions;
        const engine = await harness.openEngine(backend);
        await load(engine, model, { kv_cache });
        const talk = new Talk(17, "chat");
        await talk.turn(engine, 150);
        const file = await engine.sessions.export("chat");
        const { answer } = await generate(engine, talk.ids, { session: "chat", max_tokens: tokens });
        engine.terminate();
        return { file: [...new Uint8Array(await file.arrayBuffer())], expected: answer };
      },
      { backend, model, kv_cache, tokens: TOKENS },
    );
    const tar = info.outputPath("session.tar");
    writeFileSync(tar, Uint8Array.from(file));
    execFileSync("cargo", BUILD, { stdio: "inherit" });
    const args = ["session", "restore", `tests/golden/${path}`, tar, "--max-tokens", String(TOKENS), "--ignore-stop", "--json", "--backend", "cpu"];
    const { differs, ...found } = JSON.parse(execFileSync("target/debug/signbit", args, { encoding: "utf8" })) as Restored;
    expect(found).toMatchObject({ ids: expected, restored: { tokens: 157 }, reused_tokens: 157 });
    // The page's processor and this one are the same, but for the instructions that are used of it.
    expect(differs.map(({ what }) => what)).toEqual(["name"]);
  });
}
