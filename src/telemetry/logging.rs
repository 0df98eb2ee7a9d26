//! Sets up logging: the output, its form, and the lines that can never be turned on.
//!
//! Lines go to standard error; standard output is for audit records and command output. Nothing waits until they are
//! written. Called once, by the command line.

use std::io::{self, IsTerminal as _};

use tracing::Metadata;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::{FilterExt as _, ParseError, filter_fn};
use tracing_subscriber::util::TryInitError;
use tracing_subscriber::{
    EnvFilter, Layer as _, layer::SubscriberExt as _, util::SubscriberInitExt as _,
};

use super::log_writer::{LogGuard, LogWriter};

/// The form of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Readable text on a terminal, JSON otherwise.
    #[default]
    Auto,
    Text,
    Json,
}

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LoggingError {
    #[error(
        "DIARIST_LOG (or RUST_LOG): `{directive}` names no level; write a level (error, warn, info, debug, trace, off), or \
         module=level, such as warn,diarist=debug"
    )]
    Level { directive: String },
    #[error("DIARIST_LOG (or RUST_LOG): the log filter `{filter}` cannot be read")]
    Filter { filter: String, source: ParseError },
    #[error("the thread that writes the log cannot start")]
    Thread(#[from] io::Error),
    #[error("logging has been set up before")]
    AlreadyInitialized(#[from] TryInitError),
}

const DEFAULT_FILTER: &str = "warn,diarist=info";

/// Libraries whose debug and trace lines quote the data they carry: header values, statements, TLS state. Credentials
/// must not reach a log at any level, so these libraries stop at `info`.
const QUOTING_LIBRARIES: [&str; 9] = [
    "hyper",
    "hyper_util",
    "hyper_rustls",
    "h2",
    "rustls",
    "reqwest",
    "tower",
    "sqlx",
    "tokio_util",
];

/// Starts logging. `filter` is the value of `DIARIST_LOG` or `RUST_LOG`, if set. What it returns is dropped when the
/// process ends, and writes the last lines.
///
/// # Errors
/// If the filter cannot be read or logging was set up before.
pub fn init_logging(format: LogFormat, filter: Option<&str>) -> Result<LogGuard, LoggingError> {
    let filter = filter
        .filter(|text| !text.trim().is_empty())
        .unwrap_or(DEFAULT_FILTER);
    check_levels(filter)?;
    let parsed = EnvFilter::try_new(filter).map_err(|source| LoggingError::Filter {
        filter: filter.to_owned(),
        source,
    })?;
    let filter = parsed.and(filter_fn(may_be_logged));
    let stderr = io::stderr;
    let json = match format {
        LogFormat::Auto => !stderr().is_terminal(),
        LogFormat::Text => false,
        LogFormat::Json => true,
    };
    let (writer, guard) = LogWriter::start(stderr(), report_lost)?;
    let lines = tracing_subscriber::fmt::layer().with_writer(move || writer.clone());
    let lines = if json {
        lines.json().flatten_event(true).boxed()
    } else {
        lines.with_ansi(stderr().is_terminal()).boxed()
    };
    tracing_subscriber::registry()
        .with(lines.with_filter(filter))
        .try_init()?;
    Ok(guard)
}

fn report_lost(lost: u64) {
    tracing::warn!(
        lost,
        "log lines were lost: whoever reads standard error did not take them in time, or its disk was full"
    );
}

/// A word that is no level would be read as the name of a module, and everything else would be off.
fn check_levels(filter: &str) -> Result<(), LoggingError> {
    // Spans with fields are for experts, and may contain commas.
    if filter.contains('[') {
        return Ok(());
    }
    let directives = filter.split(',').map(str::trim);
    for directive in directives.filter(|directive| !directive.is_empty()) {
        let level = directive
            .rsplit_once('=')
            .map_or(directive, |(_, level)| level);
        if level.parse::<LevelFilter>().is_err() {
            return Err(LoggingError::Level {
                directive: directive.to_owned(),
            });
        }
    }
    Ok(())
}

fn may_be_logged(line: &Metadata<'_>) -> bool {
    let library = line.target().split("::").next().unwrap_or_default();
    !QUOTING_LIBRARIES.contains(&library) || *line.level() <= LevelFilter::INFO
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn an_unknown_log_level_is_an_error() {
        for fine in [
            "info",
            "WARN,diarist=debug",
            "off",
            "warn, diarist::proxy=trace",
            "a[b{c=1,d=2}]=info",
        ] {
            assert!(check_levels(fine).is_ok(), "{fine}");
        }
        for wrong in ["warning", "verbose", "diarist=loud", "warn,diarist"] {
            assert!(check_levels(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn libraries_that_quote_traffic_never_log_debug_lines() {
        struct Count(Arc<AtomicUsize>);
        impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Count {
            fn on_event(
                &self,
                _: &tracing::Event<'_>,
                _: tracing_subscriber::layer::Context<'_, S>,
            ) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let count = Arc::new(AtomicUsize::new(0));
        let filter = EnvFilter::new("trace").and(filter_fn(may_be_logged));
        let lines =
            tracing_subscriber::registry().with(Count(Arc::clone(&count)).with_filter(filter));
        tracing::subscriber::with_default(lines, || {
            tracing::debug!(target: "h2::codec", "quotes a header");
            tracing::trace!(target: "hyper", "quotes a body");
            assert_eq!(count.load(Ordering::Relaxed), 0);
            tracing::info!(target: "hyper", "a remark");
            tracing::trace!(target: "diarist::proxy", "a detail");
            assert_eq!(count.load(Ordering::Relaxed), 2);
        });
    }

    #[test]
    fn the_error_of_an_invalid_log_filter_names_it() {
        let error = init_logging(LogFormat::Auto, Some("diarist=loud")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "DIARIST_LOG (or RUST_LOG): `diarist=loud` names no level; write a level (error, warn, info, debug, trace, \
             off), or module=level, such as warn,diarist=debug"
        );
    }
}
