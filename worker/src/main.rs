//! `laguna-worker`: see [`laguna_worker`].

use std::process::ExitCode;

use clap::Parser;
use laguna_worker::args::Args;
use laguna_worker::{logging, run};

fn main() -> ExitCode {
    let args = Args::parse();
    logging::init();
    match run::run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            logging::error(&error);
            ExitCode::from(error.exit_code())
        }
    }
}
