//! `random-model`: a model to measure with, as a file for other engines and for the page.

use crate::args::RandomModelArgs;
use crate::error::CliError;
use crate::random_model::random_model;

/// Writes the file.
pub fn run(args: &RandomModelArgs) -> Result<(), CliError> {
    let bytes = random_model(args.random, &args.sizes);
    std::fs::write(&args.out, bytes).map_err(|source| CliError::Write { path: args.out.clone(), source })
}
