//! Hashes for the worker that keeps model files: browsers offer none that takes a file in pieces.

use std::fmt::Write;

use sha2::Digest;
use wasm_bindgen::prelude::*;

/// SHA-256 (FIPS 180-4) of bytes that arrive in pieces.
#[wasm_bindgen]
#[derive(Default)]
pub struct Sha256 {
    inner: sha2::Sha256,
}

#[wasm_bindgen]
impl Sha256 {
    /// The hash of no bytes yet.
    #[wasm_bindgen(constructor)]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.inner.update(bytes);
    }

    /// The digest of all bytes, as 64 lower-case hexadecimal digits.
    pub fn finish(self) -> String {
        self.inner.finalize().iter().fold(String::with_capacity(64), |mut text, byte| {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
    }
}

/// XXH3 (xxHash 0.8) of all bytes, 128 bits as 32 lower-case hexadecimal digits: it finds damage at the
/// speed of memory, and is no defence against forgery.
#[wasm_bindgen]
pub fn checksum(bytes: &[u8]) -> String {
    crate::snapshot::digest(bytes)
}
