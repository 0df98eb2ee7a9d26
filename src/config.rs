//! The configuration: reads the sources, checks every value, and builds the settings of the other modules.
//!
//! [`read`] merges four sources (defaults, file, environment, flags; the later wins) into `RawConfig`, the
//! values as written, and validates those into [`Config`]. A `Config` holds the modules' own settings, so no module
//! has to check or default a value again. All errors are reported together, each with its key and its remedy.
//!
//! This module reads the configuration file and the files with keys for tokens, and nothing else: the
//! environment comes in as a map, so no test depends on that of the process. Called by `cli`.

mod audit_file;
mod cache_rules;
mod common;
mod costs;
mod environment;
mod file_rights;
mod identity;
mod layers;
mod memory;
mod model_settings;
mod nearest;
mod observer;
mod otlp;
mod overrides;
mod parse;
mod phases;
mod platform;
mod problem;
mod reference;
mod reload;
mod rules;
mod settings;
mod spec;
mod tables;
mod thresholds;
mod token_verification;
mod upstream;
mod valid;
mod validate;

use std::collections::BTreeMap;
use std::path::Path;

use environment::unread_variables;
use layers::Layers;
use settings::{RawConfig, SECTIONS};

pub use environment::ENVIRONMENT_PREFIX;
pub use file_rights::is_readable_by_others;
pub use layers::Flags;
pub use problem::{ConfigError, Problem};
pub use reference::reference;
pub use reload::ConfigValues;
pub use valid::{AuditTarget, Config, Database, Override, PepperSettings, UpstreamSettings};

/// A valid configuration, and what a running process needs beside it.
#[derive(Debug)]
pub struct Loaded {
    pub config: Config,
    /// The values it was built from, to find out what a reload changes.
    pub values: ConfigValues,
    /// Settings that are probably mistakes, in whole sentences.
    pub warnings: Vec<String>,
}

/// Reads the configuration: defaults < `file` < `env` < `flags`.
///
/// `env` is the whole environment. Variables that begin with [`ENVIRONMENT_PREFIX`] are keys; a few others
/// (`HOME`, `XDG_DATA_HOME`, ...) say where the platform keeps data.
///
/// # Errors
///
/// All errors, in one [`ConfigError`]: a file that is unreadable or not TOML, unknown keys, values of the
/// wrong kind, values out of range, combinations that contradict each other.
pub fn read(
    flags: &Flags,
    env: &BTreeMap<String, String>,
    file: Option<&Path>,
) -> Result<Loaded, ConfigError> {
    let mut problems = Vec::new();
    let layers = Layers::collect(SECTIONS, flags, env, file, &mut problems);
    let raw = RawConfig::read(&layers, &mut problems);
    match validate::validate(&raw, env, &mut problems) {
        Ok(config) if problems.is_empty() => {
            let mut warnings = unread_variables(SECTIONS, env);
            warnings.extend(upstream::path_warning(&config.upstream.base_url));
            warnings.extend(upstream::plain_http_warnings(&layers));
            warnings.extend(cache_rules::unreachable_warnings(
                &config.requests.cache_rules,
            ));
            warnings.extend(audit_file::rotation_warnings(&raw.audit));
            let stored = config.audit_store_retention;
            warnings.extend(audit_file::store_warning(&raw.audit, stored));
            warnings.extend(otlp::variable_warning(&raw.otlp, env));
            warnings.extend(file_rights::secret_warning(&layers, file));
            Ok(Loaded {
                values: ConfigValues::from_layers(SECTIONS, &layers),
                warnings,
                config,
            })
        }
        _ => Err(ConfigError::new(problems)),
    }
}

/// As [`read`], without what only a running process needs.
///
/// # Errors
///
/// As [`read`].
pub fn load(
    flags: &Flags,
    env: &BTreeMap<String, String>,
    file: Option<&Path>,
) -> Result<Config, ConfigError> {
    read(flags, env, file).map(|loaded| loaded.config)
}

/// The configuration in force as TOML, each value with its source, secrets redacted.
///
/// # Errors
///
/// As [`read`]: an invalid configuration is not in force.
pub fn effective(
    flags: &Flags,
    env: &BTreeMap<String, String>,
    file: Option<&Path>,
) -> Result<String, ConfigError> {
    let config = load(flags, env, file)?;
    let layers = Layers::collect(SECTIONS, flags, env, file, &mut Vec::new());
    Ok(reference::effective(&layers, &config.database))
}
