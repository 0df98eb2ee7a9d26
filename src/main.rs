//! The binary: parse, run, exit code. Everything else is the library's.

use std::process::ExitCode;

use diarist::cli::{self, Cli};

fn main() -> ExitCode {
    // With several providers compiled in, rustls panics at the first handshake unless one is chosen;
    // choosing here holds whatever a dependency may switch on. It fails only if one is chosen already.
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());

    match Cli::parse_from_args(std::env::args_os()) {
        Ok(cli) => cli.run().unwrap_or_else(|error| cli::report_error(&error)),
        Err(code) => code,
    }
}
