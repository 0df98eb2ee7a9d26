//! Configuration in two steps: what was written, then what is valid; every error at once.
//!
//! [`load`] lays four sources over each other (defaults, file, environment, flags: the later wins),
//! reads them into `RawConfig`, which holds what somebody wrote, and validates that into
//! [`Config`], which holds plain typed values that no other room has to check or default again.
//! All that is wrong is collected and reported together, each with its key and its remedy.
//!
//! This room reads one file, and those that hold keys for tokens, and nothing else: the environment
//! comes in as a map, so that no test and no other room touches the process's own. It imports no
//! other room; `app` maps the values into the rooms that want them.

mod common;
mod identity;
mod layers;
mod memory;
mod model_settings;
mod nearest;
mod observer;
mod overrides;
mod parse;
mod phases;
mod platform;
mod problem;
mod reference;
mod reload;
mod rules;
mod settings;
mod thresholds;
mod token_verification;
mod valid;
mod validate;

use std::collections::BTreeMap;
use std::path::Path;

use layers::Layers;
use settings::RawConfig;

pub use layers::Flags;
pub use problem::{ConfigError, Problem};
pub use reference::reference;
pub use valid::{
    ActivateAfterIdle, AskUsage, Attachments, AuditTarget, Config, ContinuationHints, Database,
    EarlyActivation, Endpoint, EvidenceLevel, IdentitySettings, KeepMessages, MemoryMode,
    MemorySettings, Models, ObservationSettings, Overflow, Override, PhaseSettings, Placement,
    Redact, ReflectionSettings, ResourceIdentity, Rule, SecretKind, ServerSettings, SetBy,
    Thresholds, TokenVerification, UpstreamSettings, VerificationKey,
};

/// What every environment variable of ours begins with.
pub const ENVIRONMENT_PREFIX: &str = "DIARIST__";

/// Reads the configuration: defaults < `file` < `env` < `flags`.
///
/// `env` is the whole environment: variables that begin with [`ENVIRONMENT_PREFIX`] are keys, a few
/// others (`HOME`, `XDG_DATA_HOME`, ...) tell where the platform keeps data.
///
/// # Errors
///
/// Every problem found, in one [`ConfigError`]: the file unreadable or not TOML, unknown keys,
/// values of the wrong type, values out of range, combinations that contradict each other.
pub fn load(
    flags: &Flags,
    env: &BTreeMap<String, String>,
    file: Option<&Path>,
) -> Result<Config, ConfigError> {
    let mut problems = Vec::new();
    let layers = Layers::collect(flags, env, file, &mut problems);
    let raw = RawConfig::read(&layers, &mut problems);
    match validate::validate(&raw, env, &mut problems) {
        Ok(config) if problems.is_empty() => Ok(Config {
            values: reload::ConfigValues::from_layers(&layers),
            ..config
        }),
        _ => Err(ConfigError::new(problems)),
    }
}

/// The configuration in force as TOML, each value with the source it came from, secrets redacted.
///
/// # Errors
///
/// As [`load`]: nothing is in force while the configuration is invalid.
pub fn effective(
    flags: &Flags,
    env: &BTreeMap<String, String>,
    file: Option<&Path>,
) -> Result<String, ConfigError> {
    load(flags, env, file)?;
    let layers = Layers::collect(flags, env, file, &mut Vec::new());
    Ok(reference::effective(&layers))
}
