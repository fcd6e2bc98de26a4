//! `random-model`: a model to measure with, as a file for other engines and for the page.

use std::fs::File;
use std::io::{BufWriter, Write};

use crate::args::RandomModelArgs;
use crate::error::CliError;
use crate::files::{write_error, write_whole};
use crate::random_model::RandomModel;

/// Writes the file.
pub fn run(args: &RandomModelArgs) -> Result<(), CliError> {
    let model = RandomModel::new(args.random, &args.sizes);
    write_whole(&args.out, |path| {
        let write = || {
            let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
            model.write(&mut out)?;
            out.flush()
        };
        write().map_err(write_error(&args.out))
    })
}
