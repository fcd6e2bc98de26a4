//! Tests of the GGUF reader. Expected values come from the format's description, from the
//! reference implementation's output under `tests/golden`, or from published file sizes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests may fail loudly")]

mod blocks;
mod golden_models;
mod hostile;
mod metadata;
mod mutations;
mod prefix;
mod q2_layout;
mod raw;
mod split;

use std::path::PathBuf;

/// A file or folder under the repository root.
fn repository(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}
