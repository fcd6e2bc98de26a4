/** The npm package as someone uses it who has nothing but the package: no bundler, plain files. */

import { spawnSync } from "node:child_process";
import { copyFileSync, createReadStream, existsSync, mkdirSync, readdirSync, writeFileSync } from "node:fs";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { expect, test } from "./test.js";

const ROOT = fileURLToPath(new URL("../../", import.meta.url));
const TYPES: Readonly<Record<string, string>> = {
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript; charset=utf-8",
  ".wasm": "application/wasm",
};
const PAGE = `<!doctype html>
<html lang="en">
  <meta charset="utf-8" />
  <title>Package</title>
  <link rel="icon" href="data:," />
  <p id="answer"></p>
  <script type="module">
    import { createEngine } from "./node_modules/signbit/dist/client.js";
    const engine = await createEngine();
    await engine.load("tiny-geo.gguf");
    const messages = [{ role: "user", content: "What is the capital of France?" }];
    const { choices } = await engine.chat.completions.create({ messages, temperature: 0 });
    document.getElementById("answer").textContent = choices[0].message.content;
  </script>
</html>
`;

test("the packed package works from plain files @page", async ({ page }, info) => {
  const site = info.outputPath("site");
  mkdirSync(site, { recursive: true });
  // What "prepack" builds has been built for the other tests.
  npm(["pack", path.join(ROOT, "worker"), "--ignore-scripts"], site);
  const archive = readdirSync(site).find((name) => name.endsWith(".tgz")) ?? "";
  writeFileSync(path.join(site, "package.json"), '{ "private": true }');
  npm(["install", `./${archive}`, "--offline"], site);
  expect(existsSync(path.join(site, "node_modules/signbit/wasm/input.hash"))).toBe(false);
  expect(existsSync(path.join(site, "node_modules/signbit/src/client.ts"))).toBe(true);
  copyFileSync(path.join(ROOT, "tests/golden/tiny-geo/model.gguf"), path.join(site, "tiny-geo.gguf"));
  writeFileSync(path.join(site, "index.html"), PAGE);
  const server = await serve(site);
  try {
    await page.goto(`http://127.0.0.1:${(server.address() as AddressInfo).port}/index.html`);
    await expect(page.locator("#answer")).toHaveText("The capital of France is Paris.");
  } finally {
    server.close();
  }
});

function npm(args: readonly string[], cwd: string): void {
  const { status, stderr } = spawnSync("npm", [...args, "--no-audit", "--no-fund", "--loglevel=error"], { cwd, encoding: "utf8" });
  expect(status, stderr).toBe(0);
}

/** The folder's files, as the simplest of web servers gives them. */
async function serve(folder: string): Promise<Server> {
  const server = createServer((request, response) => {
    const file = path.join(folder, path.posix.normalize(request.url ?? "/"));
    const type = TYPES[path.extname(file)] ?? "application/octet-stream";
    createReadStream(file)
      .on("open", () => response.writeHead(200, { "content-type": type }))
      .on("error", () => response.writeHead(404).end())
      .pipe(response);
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return server;
}
