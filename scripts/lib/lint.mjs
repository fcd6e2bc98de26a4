/** The checks that run no code of the project. */

export const WEB_PACKAGES = ["signbit-engine", "signbit-tokenizer", "signbit-shaders", "signbit-gguf"];

/** Name, command and arguments of each check. */
export const LINTS = [
  ["rustfmt", "cargo", ["fmt", "--all", "--check"]],
  ["clippy", "cargo", ["clippy", "--locked", "--workspace", "--all-targets", "--", "--deny", "warnings"]],
  [
    "clippy for the web",
    "cargo",
    [
      "clippy",
      "--locked",
      ...WEB_PACKAGES.flatMap((name) => ["--package", name]),
      "--lib",
      "--target",
      "wasm32-unknown-unknown",
      "--",
      "--deny",
      "warnings",
    ],
  ],
];
