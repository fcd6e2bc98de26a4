/** Running commands: visible output, checked exit codes, nothing swallowed. */

import { spawn, spawnSync } from "node:child_process";
import path from "node:path";
import { fileURLToPath } from "node:url";

export const ROOT = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "../..");

/** A failure that the message explains; no stack trace helps. */
export class ScriptError extends Error {}

/** Prints a heading between the outputs of two steps. */
export function heading(text) {
  console.log(`\n== ${text}`);
}

/**
 * Runs a command in the project's root with its output shown, and resolves with its exit code and
 * that output.
 */
export function run(command, args, { env = {}, quiet = false } = {}) {
  return new Promise((resolve, reject) => {
    const child = spawn(command, args, {
      cwd: ROOT,
      env: { ...process.env, ...env },
      stdio: ["ignore", "pipe", "pipe"],
    });
    let output = "";
    const collect = (stream) => (chunk) => {
      output += chunk;
      if (!quiet) {
        stream.write(chunk);
      }
    };
    child.stdout.on("data", collect(process.stdout));
    child.stderr.on("data", collect(process.stderr));
    child.on("error", (error) =>
      reject(new ScriptError(error.code === "ENOENT" ? `${command} is not installed.` : `${command}: ${error.message}`)),
    );
    child.on("close", (code, signal) => resolve({ code: code ?? 1, signal, output }));
  });
}

/** Runs a command that must succeed. */
export async function must(command, args, options) {
  const { code, output } = await run(command, args, options);
  if (code !== 0) {
    throw new ScriptError(`${command} ${args.join(" ")} failed with exit code ${code}.${options?.quiet ? `\n${output}` : ""}`);
  }
  return output;
}

/** The output of a command, or undefined where it is missing or fails. */
export function ask(command, args) {
  const { status, stdout } = spawnSync(command, args, { cwd: ROOT, encoding: "utf8" });
  return status === 0 ? stdout : undefined;
}

/** Runs a script's main function and turns its failures into an exit code. */
export async function main(body) {
  try {
    await body();
  } catch (error) {
    console.error(error instanceof ScriptError ? `\n${error.message}` : error);
    process.exitCode = 1;
  }
}
