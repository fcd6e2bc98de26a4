//! The command line tool: models described, run and checked natively.
//!
//! A command prints its result on standard output. If it fails it prints one line on standard
//! error, `error: message [code]`, and exits with 1; with 2 if the command line itself is wrong.

mod args;
mod commands;
mod error;
mod files;
mod output;
mod random_model;
mod snapshot_files;

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use args::{Cli, Command};
use error::{CliError, one_line};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return report_usage(&error),
    };
    let result = match cli.command {
        Command::Inspect(args) => commands::inspect::run(&args),
        Command::Tokenize(args) => commands::text::tokenize(&args),
        Command::Render(args) => commands::text::render(&args),
        Command::Logits(args) => commands::logits::run(&args),
        Command::Generate(args) => commands::generate::run(args),
        Command::Chat(args) => commands::chat::run(&args),
        Command::Evaluate(args) => commands::evaluate::run(&args),
        Command::Session(args) => commands::session::run(&args),
        Command::Bench(args) => commands::bench::run(&args),
        Command::RandomModel(args) => commands::random_model::run(&args),
        Command::Compare(args) => commands::check::compare(&args),
        Command::Kernels(args) => commands::check::kernels(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report(&error),
    }
}

fn report(error: &CliError) -> ExitCode {
    if error.is_broken_pipe() {
        return ExitCode::SUCCESS;
    }
    print_error(&error.line());
    match error {
        CliError::Usage(_) => ExitCode::from(2),
        _ => ExitCode::FAILURE,
    }
}

/// Help goes to standard output; a fault of the command line is shortened to its first paragraph.
fn report_usage(error: &clap::Error) -> ExitCode {
    let text = error.render().to_string();
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        return output::print(&text).map_or_else(|e| report(&e), |()| ExitCode::SUCCESS);
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return report(&CliError::Usage("a command is needed; signbit --help lists them".to_owned()));
    }
    let paragraph = text.split("\n\n").next().unwrap_or_default();
    print_error(&format!("{} [usage]", one_line(paragraph)));
    ExitCode::from(2)
}

fn print_error(line: &str) {
    use std::io::Write;
    // Where standard error is closed as well there is nobody left to tell.
    let _ = writeln!(std::io::stderr(), "{line}");
}
