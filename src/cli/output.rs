//! Output of commands: results to standard output, errors to standard error.
//!
//! A reader that closes the pipe (`diarist config | head`) is not an error; `println!` would panic.

use std::io::{self, ErrorKind, Write as _};
use std::process::ExitCode;

use crate::app::StartError;
use crate::config::ConfigError;
use crate::store::{OpenError, PepperError};
use crate::telemetry::LoggingError;

/// `EX_USAGE` of sysexits.h: the command line or the configuration has an error. A supervisor can be told not to
/// restart on this code.
pub const EX_USAGE: u8 = 64;

/// Prints the result of a command.
///
/// # Errors
///
/// Standard output cannot be written. A reader that has closed it is not an error.
pub(super) fn print(text: &str) -> io::Result<()> {
    print_while_read(text).map(|_| ())
}

/// The same, and whether somebody still reads.
///
/// # Errors
///
/// As [`print()`].
pub(super) fn print_while_read(text: &str) -> io::Result<bool> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true),
    }
}

/// Prints an error to standard error.
pub(super) fn print_error(text: &str) {
    // If standard error is closed, the exit code still reports the error.
    drop(writeln!(io::stderr().lock(), "diarist: {text}"));
}

/// Prints the error that ended a command, and returns the exit code of the process.
#[must_use]
pub fn report_error(error: &anyhow::Error) -> ExitCode {
    print_error(&chain(error));
    let is_configuration = error.is::<ConfigError>()
        || error.is::<PepperError>()
        || error.is::<LoggingError>()
        || error
            .downcast_ref::<OpenError>()
            .is_some_and(OpenError::is_wrong_pepper)
        || error
            .downcast_ref::<StartError>()
            .is_some_and(StartError::is_configuration);
    if is_configuration {
        ExitCode::from(EX_USAGE)
    } else {
        ExitCode::FAILURE
    }
}

/// An error and its causes in one line. A cause that the text before it already contains is left out.
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
    fn each_cause_is_printed_once() {
        let error = anyhow!("address in use")
            .context("cannot listen on 127.0.0.1:1: address in use")
            .context("cannot start");
        assert_eq!(
            chain(&error),
            "cannot start: cannot listen on 127.0.0.1:1: address in use"
        );
    }
}
