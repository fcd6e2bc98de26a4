//! `logits`: the model's output after every position, for comparing engines.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use pollster::block_on;
use signbit_engine::EngineError;
use signbit_engine::engine::Engine;
use signbit_engine::model::ModelOptions;

use super::open_device;
use crate::args::LogitsArgs;
use crate::error::CliError;
use crate::files::{ModelFiles, read_ids, write_error, write_whole};

/// Writes the logits. The file appears under its name only once it is complete.
pub fn run(args: &LogitsArgs) -> Result<(), CliError> {
    let ids = read_ids(&args.ids)?;
    if ids.is_empty() {
        return Err(EngineError::InvalidRequest { reason: "there are no tokens to read".to_owned() }.into());
    }
    let mut files = ModelFiles::open(&args.model)?.expecting(&args.check.sha256)?;
    let mut engine = Engine::new(open_device(args.backend)?);
    let context_length = u32::try_from(ids.len()).unwrap_or(u32::MAX);
    files.load(&mut engine, ModelOptions { context_length, ..ModelOptions::default() })?;
    check_ids(&engine, &ids)?;

    write_whole(&args.out, |path| write(&mut engine, &ids, args.chunk, path))
}

/// Refuses ids that would fail in a later step, before anything is computed.
fn check_ids(engine: &Engine, ids: &[u32]) -> Result<(), CliError> {
    let model = &engine.loaded()?.model;
    let vocab = model.config().vocab_size;
    if let Some(id) = ids.iter().find(|&&id| id >= vocab) {
        let reason = format!("token id {id} is outside the vocabulary of {vocab}");
        return Err(EngineError::InvalidRequest { reason }.into());
    }
    let (prompt_tokens, context_length) = (ids.len(), model.context_length() as usize);
    if prompt_tokens > context_length {
        return Err(EngineError::ContextFull { prompt_tokens, context_length }.into());
    }
    Ok(())
}

fn write(engine: &mut Engine, ids: &[u32], chunk: u32, path: &Path) -> Result<(), CliError> {
    let failed = write_error(path);
    let mut out = BufWriter::new(File::create(path).map_err(&failed)?);
    let mut fault = None;
    let scored = block_on(engine.score(ids, chunk, |rows| {
        let bytes: Vec<u8> = rows.iter().flat_map(|logit| logit.to_le_bytes()).collect();
        out.write_all(&bytes).map_err(|source| {
            let reason = source.to_string();
            fault = Some(source);
            EngineError::InvalidRequest { reason }
        })
    }));
    if let Some(source) = fault {
        return Err(failed(source));
    }
    scored?;
    out.flush().map_err(failed)
}
