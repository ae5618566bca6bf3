//! `laguna-coord`: see [`laguna_coordinator`].

fn main() -> std::process::ExitCode {
    laguna_coordinator::cli::main()
}
