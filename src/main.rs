//! The binary: parses the command line, runs the command, returns the exit code. Everything else is in the library.

use std::process::ExitCode;

use diarist::cli::{self, Cli};

/// It returns memory to the system soon after a burst of large requests. glibc's allocator kept two thirds of
/// it (`docs/performance.md`).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // If several TLS providers are compiled in, rustls panics at the first handshake unless one is chosen. Features
    // of dependencies can add a provider. Choosing fails only if one is chosen already.
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());

    match Cli::parse_from_args(std::env::args_os()) {
        Ok(cli) => cli.run().unwrap_or_else(|error| cli::report_error(&error)),
        Err(code) => code,
    }
}
