/**
 * Brings a fresh machine to the point where the project builds. Each step looks first and installs
 * only what is missing. These files use nothing but Node itself, since they run before `npm ci`.
 */

import { createHash } from "node:crypto";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import path from "node:path";
import { ask, heading, must, ROOT, ScriptError } from "./run.mjs";

const MIN_NODE = [20, 19];
const MIN_RUST = [1, 95];
const WASM_TARGET = "wasm32-unknown-unknown";

/** Debian packages, each with what proves that it is not needed. */
const BROWSER_PACKAGES = [{ name: "chromium", isPresent: () => chromiumPath() !== undefined }];
const FIREFOX_PACKAGES = [{ name: "firefox-esr", isPresent: () => firefoxPath() !== undefined }];
const VULKAN_PACKAGES = [
  { name: "libvulkan1", isPresent: hasVulkanLoader },
  { name: "mesa-vulkan-drivers", isPresent: () => lavapipePath() !== undefined },
];

/** Where the Vulkan loader lies on systems without `ldconfig`. */
const VULKAN_LOADERS = ["/usr/lib/libvulkan.so.1", "/usr/lib64/libvulkan.so.1", "/usr/local/lib/libvulkan.so.1"];

/** What building needs: Rust with its web target, and the npm packages. */
export async function setUpBuild() {
  checkNode();
  await setUpRust();
  await setUpNpm();
}

/** What checking needs besides: the formatter and the linter of Rust. */
export async function setUpLints() {
  const missing = [
    ["rustfmt", "fmt"],
    ["clippy", "clippy"],
  ].filter(([, command]) => ask("cargo", [command, "--version"]) === undefined);
  if (missing.length > 0) {
    await rustup("component", missing.map(([name]) => name));
  }
}

/** What browser tests need: a real Chromium. */
export async function setUpBrowser() {
  await setUpPackages(BROWSER_PACKAGES);
}

/** What the tests in a second browser need. */
export async function setUpFirefox() {
  await setUpPackages(FIREFOX_PACKAGES);
}

/** What the GPU tests of cargo need: Vulkan in software. */
export async function setUpVulkan() {
  await setUpPackages(VULKAN_PACKAGES);
}

/** Chromium or a browser that is as good, or undefined. `CHROMIUM_PATH` decides where it is set. */
export function chromiumPath() {
  const wanted = process.env.CHROMIUM_PATH;
  if (wanted !== undefined && wanted !== "") {
    if (!existsSync(wanted)) {
      throw new ScriptError(`CHROMIUM_PATH names ${wanted}, and there is no such file.`);
    }
    return wanted;
  }
  return ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].find((file) => existsSync(file));
}

/** Firefox, or undefined. */
export function firefoxPath() {
  return ["/usr/bin/firefox-esr", "/usr/bin/firefox"].find((file) => existsSync(file));
}

/** The description of Mesa's software Vulkan for the loader, or undefined. */
export function lavapipePath() {
  const directory = "/usr/share/vulkan/icd.d";
  return ["lvp_icd.json", "lvp_icd.x86_64.json", "lvp_icd.aarch64.json"]
    .map((file) => path.join(directory, file))
    .find((file) => existsSync(file));
}

function checkNode() {
  if (!isAtLeast(process.versions.node, MIN_NODE)) {
    throw new ScriptError(`Node ${MIN_NODE.join(".")} or newer is needed; this is ${process.versions.node}.`);
  }
}

async function setUpRust() {
  if (ask("cargo", ["--version"]) === undefined) {
    throw new ScriptError("Rust is missing. Install it with rustup (https://rustup.rs), then run this again.");
  }
  const version = /^rustc (\S+)/.exec(ask("rustc", ["--version"]) ?? "")?.[1] ?? "unknown";
  if (!isAtLeast(version, MIN_RUST)) {
    throw new ScriptError(`Rust ${MIN_RUST.join(".")} or newer is needed; this is ${version}. Run "rustup update stable".`);
  }
  if (ask("cc", ["--version"]) === undefined) {
    throw new ScriptError('Rust links with the C compiler "cc", which is missing. On Debian the package gcc has it.');
  }
  const sysroot = ask("rustc", ["--print", "sysroot"])?.trim() ?? "";
  if (!existsSync(path.join(sysroot, "lib", "rustlib", WASM_TARGET))) {
    await rustup("target", [WASM_TARGET]);
  }
}

/** Adds targets or components to the toolchain in use. */
async function rustup(kind, names) {
  heading(`Installing for Rust: ${names.join(", ")}`);
  if (ask("rustup", ["--version"]) === undefined) {
    throw new ScriptError(`Rust lacks ${names.join(" and ")}, and there is no rustup to install it with.`);
  }
  await must("rustup", [kind, "add", ...names]);
}

/** Whether a version such as `1.95.0` is not older than `[major, minor]`. */
function isAtLeast(version, [wantedMajor, wantedMinor]) {
  const [major, minor] = version.split(".").map(Number);
  return major > wantedMajor || (major === wantedMajor && minor >= wantedMinor);
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

async function setUpPackages(packages) {
  const missing = () => packages.filter(({ isPresent }) => !isPresent()).map(({ name }) => name);
  const names = missing();
  if (names.length > 0) {
    await installPackages(names);
  }
  const stillMissing = missing();
  if (stillMissing.length > 0) {
    throw new ScriptError(`Still missing after the installation: ${stillMissing.join(", ")}.`);
  }
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

/** Looks where the dynamic linker looks, whoever has put the library there. */
function hasVulkanLoader() {
  const cache = ask("ldconfig", ["-p"]) ?? ask("/sbin/ldconfig", ["-p"]) ?? "";
  return cache.includes("libvulkan.so.1") || VULKAN_LOADERS.some((file) => existsSync(file));
}
