//! `laguna-bench`: see [`laguna_bench`].

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    laguna_bench::cli::main()
}
