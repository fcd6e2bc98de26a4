//! `random-model`: a model to measure with, as a file for other engines and for the page.

use crate::args::RandomModelArgs;
use crate::error::CliError;
use crate::files::{write_error, write_whole};
use crate::random_model::random_model;

/// Writes the file.
pub fn run(args: &RandomModelArgs) -> Result<(), CliError> {
    let bytes = random_model(args.random, &args.sizes);
    write_whole(&args.out, |path| std::fs::write(path, &bytes).map_err(write_error(&args.out)))
}
