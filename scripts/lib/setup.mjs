/**
 * Brings a fresh machine to the point where the project builds. Each step looks first and installs
 * only what is missing. These files use nothing but Node itself, since they run before `npm ci`.
 */

import { createHash } from "node:crypto";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import path from "node:path";
import { ask, heading, must, ROOT, ScriptError } from "./run.mjs";

const MIN_NODE = [20, 19];
const WASM_TARGET = "wasm32-unknown-unknown";

/** Debian packages of the tests, each with what proves that it is not needed. */
const TEST_PACKAGES = [
  { name: "chromium", isPresent: () => chromiumPath() !== undefined },
  { name: "libvulkan1", isPresent: () => isInstalled("libvulkan1") },
  { name: "mesa-vulkan-drivers", isPresent: () => lavapipePath() !== undefined },
];

/** What building needs: Rust with its web target, and the npm packages. */
export async function setUpBuild() {
  checkNode();
  await setUpRust();
  await setUpNpm();
}

/** What testing needs besides: a real Chromium, and Vulkan in software. */
export async function setUpTests() {
  const missing = TEST_PACKAGES.filter(({ isPresent }) => !isPresent()).map(({ name }) => name);
  if (missing.length > 0) {
    await installPackages(missing);
  }
  const stillMissing = TEST_PACKAGES.filter(({ isPresent }) => !isPresent()).map(({ name }) => name);
  if (stillMissing.length > 0) {
    throw new ScriptError(`Still missing after the installation: ${stillMissing.join(", ")}.`);
  }
}

/** Chromium or a browser that is as good, or undefined. `CHROMIUM_PATH` decides where it is set. */
export function chromiumPath() {
  const wanted = process.env.CHROMIUM_PATH;
  if (wanted !== undefined && wanted !== "") {
    return existsSync(wanted) ? wanted : undefined;
  }
  return ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].find((file) => existsSync(file));
}

/** The description of Mesa's software Vulkan for the loader, or undefined. */
export function lavapipePath() {
  const directory = "/usr/share/vulkan/icd.d";
  return ["lvp_icd.json", "lvp_icd.x86_64.json", "lvp_icd.aarch64.json"]
    .map((file) => path.join(directory, file))
    .find((file) => existsSync(file));
}

function checkNode() {
  const [major = 0, minor = 0] = process.versions.node.split(".").map(Number);
  if (major < MIN_NODE[0] || (major === MIN_NODE[0] && minor < MIN_NODE[1])) {
    throw new ScriptError(`Node ${MIN_NODE.join(".")} or newer is needed; this is ${process.versions.node}.`);
  }
}

async function setUpRust() {
  if (ask("cargo", ["--version"]) === undefined) {
    throw new ScriptError("Rust is missing. Install it with rustup (https://rustup.rs), then run this again.");
  }
  const sysroot = ask("rustc", ["--print", "sysroot"])?.trim() ?? "";
  if (existsSync(path.join(sysroot, "lib", "rustlib", WASM_TARGET))) {
    return;
  }
  heading(`Installing the Rust target ${WASM_TARGET}`);
  if (ask("rustup", ["--version"]) === undefined) {
    throw new ScriptError(`The Rust target ${WASM_TARGET} is missing and there is no rustup to install it with.`);
  }
  await must("rustup", ["target", "add", WASM_TARGET]);
}

async function setUpNpm() {
  const modules = path.join(ROOT, "node_modules");
  const stamp = path.join(modules, ".installed");
  const wanted = createHash("sha256")
    .update(readFileSync(path.join(ROOT, "package-lock.json")))
    .digest("hex");
  if (existsSync(stamp) && readFileSync(stamp, "utf8") === wanted) {
    return;
  }
  heading("Installing the npm packages");
  await must("npm", ["ci"]);
  writeFileSync(stamp, wanted);
}

async function installPackages(names) {
  heading(`Installing ${names.join(", ")}`);
  if (ask("dpkg-query", ["--version"]) === undefined || ask("apt-get", ["--version"]) === undefined) {
    throw new ScriptError(
      `Missing: ${names.join(", ")} (Debian's names). Install them with this system's package manager; ` +
        "CHROMIUM_PATH may name a Chromium elsewhere.",
    );
  }
  const prefix = process.getuid?.() === 0 ? [] : ["sudo"];
  const apt = [...prefix, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get"];
  await must(apt[0], [...apt.slice(1), "update", "--quiet"]);
  await must(apt[0], [...apt.slice(1), "install", "--quiet", "--yes", "--no-install-recommends", ...names]);
}

function isInstalled(name) {
  return ask("dpkg-query", ["--show", "--showformat=${db:Status-Status}", name]) === "installed";
}
