//! The command line: three steps, [`args`] → [`cluster`] → a command.
//!
//! - [`args`]: flags as plain data
//! - [`cluster`]: a model and its shards, ready to run, from a topology file or in loopback; [`loading`]: how far it is
//! - [`serve`]: no command: the API
//! - [`chat`]: a talk over the API of a running server
//! - [`generate`], [`verify`] (and [`drift`]), [`eval`], [`inspect`], [`keygen`]: the commands
//! - [`trace`]: `--trace`, for those that run the model
//! - [`quic`]: from a topology file to connected shards
//! - [`output`], [`failure`]: what went wrong, in one message and an exit code
//!
//! stdout carries data only; everything said to a person goes to stderr.

pub mod args;
pub mod chat;
pub mod cluster;
pub mod drift;
pub mod eval;
pub mod failure;
pub mod generate;
pub mod inspect;
pub mod keygen;
pub mod loading;
pub mod output;
pub mod quic;
pub mod serve;
pub mod trace;
pub mod verify;

use std::process::ExitCode;

use clap::Parser;
use laguna_worker::logging;

use args::{Args, Command};
use failure::Failure;

/// Parses the command line, runs it, and says how it went.
pub fn main() -> ExitCode {
    let args = Args::parse();
    logging::init();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) if failure.is_broken_pipe() => ExitCode::SUCCESS,
        Err(failure) if failure.is_quiet() => ExitCode::from(failure.code()),
        Err(failure) => {
            logging::error(&failure);
            ExitCode::from(failure.code())
        }
    }
}

fn run(args: &Args) -> Result<(), Failure> {
    match &args.command {
        None => serve::run(args, &args.serve),
        Some(Command::Generate(generate)) => generate::run(args, generate),
        Some(Command::Chat(chat)) => chat::run(chat),
        Some(Command::Verify(verify)) => verify::run(args, verify),
        Some(Command::Eval(eval)) => eval::run(args, eval),
        Some(Command::Inspect(inspect)) => inspect::run(args, inspect),
        Some(Command::Keygen(keygen)) => keygen::run(args, keygen),
    }
}
