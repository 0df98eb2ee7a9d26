//! What commands say: results to standard output, complaints to standard error.
//!
//! A reader that goes away (`diarist config | head`) is no failure; `println!` would panic there.

use std::io::{self, ErrorKind, Write as _};
use std::process::ExitCode;

use super::EX_USAGE;
use crate::config::ConfigError;

/// Prints the result of a command.
///
/// # Errors
///
/// Standard output cannot be written, other than by having been closed by its reader.
pub(super) fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// Says on standard error why a command ended early, and with which code the process should end.
#[must_use]
pub fn report_error(error: &anyhow::Error) -> ExitCode {
    // If standard error is gone, the exit code still speaks.
    drop(writeln!(io::stderr().lock(), "diarist: {}", chain(error)));
    if error.is::<ConfigError>() {
        ExitCode::from(EX_USAGE)
    } else {
        ExitCode::FAILURE
    }
}

/// An error and its causes in one line. Some errors repeat their cause in their own words already;
/// those causes are left out, so that each is said once.
fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn each_cause_is_said_once() {
        let error = anyhow!("address in use")
            .context("cannot listen on 127.0.0.1:1: address in use")
            .context("cannot start");
        assert_eq!(
            chain(&error),
            "cannot start: cannot listen on 127.0.0.1:1: address in use"
        );
    }
}
