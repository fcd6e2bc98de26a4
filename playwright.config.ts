import { defineConfig, type PlaywrightTestProject } from "@playwright/test";
import type { Options } from "./tests/browser/test.ts";

const PORT = Number(process.env["SIGNBIT_TEST_PORT"] ?? 41_730);

/** Chromium without what it does in the background by itself. */
const QUIET = [
  "--no-sandbox",
  "--no-first-run",
  "--disable-quic",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
  // By a name like this a page has no secure context, as it has under the plain address of another machine.
  "--host-resolver-rules=MAP insecure.test 127.0.0.1",
];
/** WebGPU in software, on every machine the same. */
const SOFTWARE_WEBGPU = ["--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"];
/** Clearing workgroup memory makes SwiftShader compile each pipeline for seconds. */
const FAST_COMPILE = "--enable-dawn-features=disable_workgroup_init";

export default defineConfig<Options>({
  testDir: "tests/browser",
  outputDir: "test-results/browser",
  reporter: [["list"], ["json", { outputFile: process.env["PLAYWRIGHT_JSON_OUTPUT_FILE"] ?? "test-results/results.json" }]],
  workers: 2,
  fullyParallel: true,
  forbidOnly: process.env["CI"] !== undefined,
  timeout: 180_000,
  expect: { timeout: 60_000 },
  use: { baseURL: `http://127.0.0.1:${PORT}`, trace: "retain-on-failure" },
  webServer: {
    command: "node tests/browser/server.mjs",
    port: PORT,
    env: { PORT: String(PORT), SECOND_PORT: String(PORT + 1) },
    reuseExistingServer: false,
  },
  projects: [
    // What does not depend on the GPU is tested where a load takes least, on the processor.
    project("webgpu", "webgpu", [...SOFTWARE_WEBGPU, FAST_COMPILE], { grepInvert: /@page/ }),
    // As a visitor's browser is, with nothing switched off to make the tests quick.
    project("webgpu-plain", "webgpu", SOFTWARE_WEBGPU, { grep: /@smoke/ }),
    project("no-webgpu", "cpu", [], { grepInvert: /@webgpu/ }),
  ],
});

function project(
  name: string,
  backend: Options["backend"],
  flags: readonly string[],
  filter: Pick<PlaywrightTestProject, "grep" | "grepInvert">,
): PlaywrightTestProject<Options> {
  return {
    name,
    ...filter,
    use: {
      backend,
      browserName: "chromium",
      launchOptions: { executablePath: process.env["CHROMIUM_PATH"] ?? "/usr/bin/chromium", args: [...QUIET, ...flags] },
    },
  };
}
