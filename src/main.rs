//! The binary: parses the command line, runs the command, returns the exit code. Everything else is in the library.

use std::process::ExitCode;

use diarist::cli::{self, Cli};

/// It returns memory to the system soon after a burst of large requests. glibc's allocator kept two thirds of
/// it (`docs/performance.md`).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    small_pages();
    enough_descriptors();

    // If several TLS providers are compiled in, rustls panics at the first handshake unless one is chosen. Features
    // of dependencies can add a provider. Choosing fails only if one is chosen already.
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());

    match Cli::parse_from_args(std::env::args_os()) {
        Ok(cli) => cli.run().unwrap_or_else(|error| cli::report_error(&error)),
        Err(code) => code,
    }
}

/// Lets the system give this process pages of 4 KB only. The allocator asks for huge pages of 2 MB. The system clears
/// each of them when its first byte is written, in up to a millisecond, and most stay nearly empty: a body of 8 MB took
/// five times as long and twice the memory.
fn small_pages() {
    #[cfg(target_os = "linux")]
    {
        // A system that does not know the call goes on as it is.
        let _ = rustix::thread::disable_transparent_huge_pages(true);
    }
}

/// Raises the limit for file descriptors as far as the system allows. Each request in progress needs two, and the usual
/// limit is 1,024, since some old programs cannot count further.
fn enough_descriptors() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        /// Several times what `server.max_connections` and `server.max_requests` need by default.
        const ENOUGH: u64 = 65_536;
        let limit = getrlimit(Resource::Nofile);
        let wanted = limit.maximum.map_or(ENOUGH, |most| most.min(ENOUGH));
        if limit.current.is_some_and(|current| current < wanted) {
            let current = Some(wanted);
            // A system that refuses leaves the limit as it was.
            let _ = setrlimit(Resource::Nofile, Rlimit { current, ..limit });
        }
    }
}
