//! The arguments for the sources of the configuration, and loading it from there.
//!
//! The only file that reads the environment of the process.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;

use crate::config::{self, Config, ConfigError, Flags, Loaded};

/// The configuration file, and the flags, which win over the file and over the environment. They may stand in front of
/// a subcommand and behind it.
#[derive(Clone, Debug, Args)]
pub(super) struct ConfigSources {
    /// Configuration file (TOML); `diarist config` prints one to start from
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address of the data port [server.listen]
    #[arg(long, global = true, value_name = "ADDR")]
    listen: Option<String>,
    /// Address of the admin port [server.admin]
    #[arg(long, global = true, value_name = "ADDR")]
    admin: Option<String>,
    /// Base URL of the provider [upstream.base_url]
    #[arg(long, global = true, value_name = "URL")]
    upstream: Option<String>,
    /// Database file, such as /var/lib/diarist/diarist.db [store.url]
    #[arg(long, global = true, value_name = "PATH")]
    database: Option<String>,
    /// File for audit lines; "-" is standard output, "off" writes none [audit.path]
    #[arg(long, global = true, value_name = "FILE")]
    audit: Option<String>,
}

impl ConfigSources {
    /// Whether the command line names a configuration file.
    pub(super) fn names_file(&self) -> bool {
        self.config.is_some()
    }

    /// The valid configuration, its values and its warnings.
    ///
    /// # Errors
    ///
    /// All errors of the configuration.
    pub(super) fn read(&self) -> Result<Loaded, ConfigError> {
        config::read(&self.flags(), &environment(), self.config.as_deref())
    }

    /// The valid configuration.
    ///
    /// # Errors
    ///
    /// All errors of the configuration.
    pub(super) fn load(&self) -> Result<Config, ConfigError> {
        config::load(&self.flags(), &environment(), self.config.as_deref())
    }

    /// The configuration in force as text.
    ///
    /// # Errors
    ///
    /// As [`ConfigSources::load`].
    pub(super) fn effective(&self) -> Result<String, ConfigError> {
        config::effective(&self.flags(), &environment(), self.config.as_deref())
    }

    fn flags(&self) -> Flags {
        Flags {
            listen: self.listen.clone(),
            admin: self.admin.clone(),
            upstream: self.upstream.clone(),
            database: self.database.clone(),
            audit: self.audit.clone(),
        }
    }
}

/// The environment of the process. Bytes that are not Unicode become replacement characters, so that such a key
/// is reported as unknown and most such values as invalid, instead of being ignored.
pub(super) fn environment() -> BTreeMap<String, String> {
    std::env::vars_os()
        .map(|(name, value)| {
            let text = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
            (text(name), text(value))
        })
        .collect()
}
