//! Builds the wasm module of the engine, with its JavaScript glue and its types.
//!
//! `cargo xtask wasm` compiles the engine for the web, runs wasm-bindgen as a library (so that the
//! lock file pins library and tool together), optimises the result with the `wasm-opt` of the
//! project's npm packages, writes it to `worker/wasm/` and holds its size against a limit.
//!
//! A system `wasm-opt` is never used: binaryen 108, which Debian 12 ships, exits with success and
//! writes a module that fails at start-up.

use std::collections::hash_map::DefaultHasher;
use std::ffi::OsStr;
use std::hash::{Hash, Hasher};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::{env, fs};

use flate2::Compression;
use flate2::write::GzEncoder;
use wasm_bindgen_cli_support::Bindgen;

/// What a visitor downloads before the first weight: wasm and glue, gzipped, in bytes.
const MAX_GZIPPED_BYTES: usize = 1_500_000;

const PACKAGE: &str = "signbit-engine";
const LIBRARY: &str = "signbit_engine";
const TARGET: &str = "wasm32-unknown-unknown";
const USAGE: &str = "usage: cargo xtask wasm";

#[derive(Debug, thiserror::Error)]
enum XtaskError {
    #[error("{USAGE}")]
    Usage,
    #[error("no workspace above {0}")]
    NoWorkspace(PathBuf),
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error("{program} could not be started: {source}")]
    Start { program: String, source: io::Error },
    #[error("{program} failed with {status}")]
    Failed { program: String, status: std::process::ExitStatus },
    #[error("cargo reported no wasm file for {0}; is its crate-type cdylib?")]
    NoArtifact(&'static str),
    #[error("wasm-bindgen: {0}")]
    Bindgen(Box<dyn std::error::Error + Send + Sync>),
    #[error("{0} is missing; run `npm ci` first")]
    NoWasmOpt(PathBuf),
    #[error("the module is {actual} bytes gzipped, over the limit of {limit}")]
    TooLarge { actual: usize, limit: usize },
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let result = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["wasm"] => build_wasm(),
        _ => Err(XtaskError::Usage),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

fn build_wasm() -> Result<(), XtaskError> {
    let root = workspace_root()?;
    let compiled = compile(&root)?;
    let out_dir = root.join("worker").join("wasm");
    let optimised = out_dir.join(format!("{LIBRARY}_bg.wasm"));
    let glue = out_dir.join(format!("{LIBRARY}.js"));
    let stamp = out_dir.join("input.hash");

    let fingerprint = fingerprint(&root, &compiled)?;
    let is_current = optimised.is_file()
        && glue.is_file()
        && fs::read_to_string(&stamp).is_ok_and(|text| text == fingerprint);
    if !is_current {
        // The stamp goes first: a build that stops half-way must not look finished.
        if stamp.exists() {
            fs::remove_file(&stamp).map_err(io_error(&stamp))?;
        }
        bind(&compiled, &out_dir)?;
        optimise(&root, &optimised)?;
        fs::write(&stamp, &fingerprint).map_err(io_error(&stamp))?;
    }
    report_size(&[&optimised, &glue])
}

fn workspace_root() -> Result<PathBuf, XtaskError> {
    let manifest_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest_dir
        .ancestors()
        .nth(2)
        .map(Path::to_path_buf)
        .ok_or_else(|| XtaskError::NoWorkspace(manifest_dir.to_path_buf()))
}

/// Compiles the engine and returns the path of the wasm file that cargo reports.
fn compile(root: &Path) -> Result<PathBuf, XtaskError> {
    let cargo = env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(&cargo)
        .current_dir(root)
        .args(["build", "--release", "--lib", "--locked", "--package", PACKAGE, "--target", TARGET])
        .arg("--message-format=json-render-diagnostics")
        .stderr(Stdio::inherit())
        .output()
        .map_err(|source| XtaskError::Start { program: cargo.clone(), source })?;
    if !output.status.success() {
        return Err(XtaskError::Failed { program: cargo, status: output.status });
    }
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message.pointer("/target/name").and_then(|name| name.as_str()) == Some(LIBRARY))
        .filter_map(|message| message.get("filenames").cloned())
        .filter_map(|names| serde_json::from_value::<Vec<PathBuf>>(names).ok())
        .flatten()
        .find(|path| path.extension() == Some(OsStr::new("wasm")))
        .ok_or(XtaskError::NoArtifact(PACKAGE))
}

fn bind(compiled: &Path, out_dir: &Path) -> Result<(), XtaskError> {
    let mut bindgen = Bindgen::new();
    bindgen
        .input_path(compiled)
        .web(true)
        .and_then(|bindgen| bindgen.typescript(true).omit_default_module_path(false).generate(out_dir))
        .map_err(|error| XtaskError::Bindgen(error.into()))
}

/// Runs `wasm-opt -O3` of the npm package in place.
fn optimise(root: &Path, module: &Path) -> Result<(), XtaskError> {
    let wasm_opt = wasm_opt_path(root);
    if !wasm_opt.is_file() {
        return Err(XtaskError::NoWasmOpt(wasm_opt));
    }
    let status = Command::new("node")
        .arg(&wasm_opt)
        .arg(module)
        .arg("-O3")
        .arg("-o")
        .arg(module)
        .status()
        .map_err(|source| XtaskError::Start { program: "node".to_owned(), source })?;
    if status.success() { Ok(()) } else { Err(XtaskError::Failed { program: "wasm-opt".to_owned(), status }) }
}

fn wasm_opt_path(root: &Path) -> PathBuf {
    root.join("node_modules").join("binaryen").join("bin").join("wasm-opt")
}

/// A hash over everything that decides the output: the compiled module, the version of binaryen
/// and this tool itself. Optimising takes minutes on a slow machine, and most runs change nothing.
fn fingerprint(root: &Path, compiled: &Path) -> Result<String, XtaskError> {
    let binaryen = root.join("node_modules").join("binaryen").join("package.json");
    let mut hasher = DefaultHasher::new();
    for path in [compiled, &binaryen] {
        fs::read(path).map_err(io_error(path))?.hash(&mut hasher);
    }
    include_str!("main.rs").hash(&mut hasher);
    Ok(format!("{:016x}\n", hasher.finish()))
}

fn report_size(files: &[&Path]) -> Result<(), XtaskError> {
    let mut total_raw = 0;
    let mut total_gzipped = 0;
    for path in files {
        let bytes = fs::read(path).map_err(io_error(path))?;
        let gzipped = gzipped_len(&bytes).map_err(io_error(path))?;
        print_size(&path.file_name().unwrap_or_default().to_string_lossy(), bytes.len(), gzipped);
        total_raw += bytes.len();
        total_gzipped += gzipped;
    }
    print_size("total", total_raw, total_gzipped);
    if total_gzipped > MAX_GZIPPED_BYTES {
        return Err(XtaskError::TooLarge { actual: total_gzipped, limit: MAX_GZIPPED_BYTES });
    }
    Ok(())
}

fn print_size(name: &str, raw: usize, gzipped: usize) {
    println!("{name:<24} {raw:>10} bytes {gzipped:>10} gzipped");
}

fn gzipped_len(bytes: &[u8]) -> io::Result<usize> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes)?;
    Ok(encoder.finish()?.len())
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> XtaskError + use<> {
    let path = path.to_path_buf();
    move |source| XtaskError::Io { path, source }
}
