//! What is written when the program panics: the place, never the message.
//!
//! The message of a panic may quote a request: a slice out of bounds shows up to 256 bytes of its text. Called by
//! `cli` before any command.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::Write as _;
use std::panic::PanicHookInfo;

/// From now on a panic writes its file, line and thread to the log, or to standard error before there is a log. With
/// `RUST_BACKTRACE=1` it adds the names of the functions.
pub fn install_panic_hook() {
    std::panic::set_hook(Box::new(write_place));
}

fn write_place(info: &PanicHookInfo<'_>) {
    let place = info.location().map(ToString::to_string).unwrap_or_default();
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("unnamed");
    let backtrace = Backtrace::capture();
    let functions = match backtrace.status() {
        BacktraceStatus::Captured => format!("\n{backtrace}"),
        _ => String::new(),
    };
    if tracing::dispatcher::has_been_set() {
        tracing::error!(
            place,
            thread,
            "a fault in the program: it panicked{functions}"
        );
    } else {
        // Without standard error there is nowhere to write to.
        let _ = writeln!(
            std::io::stderr(),
            "diarist: a fault in the program: it panicked at {place} in thread {thread}{functions}"
        );
    }
}
