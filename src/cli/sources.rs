//! The arguments that say where the configuration comes from, and loading it from there.
//!
//! The one place that reads the process's environment.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;

use crate::config::{self, Config, ConfigError, Flags};

/// The file, and the flags that win over it and over the environment.
#[derive(Clone, Debug, Args)]
pub(super) struct ConfigSources {
    /// Configuration file (TOML); `diarist config` prints one to start from
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address of the data port [server.listen]
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Address of the admin port [server.admin]
    #[arg(long, value_name = "ADDR")]
    admin: Option<String>,
    /// Base URL of the provider [upstream.base_url]
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,
    /// Database, such as sqlite:///var/lib/diarist.db [store.url]
    #[arg(long, value_name = "URL")]
    database: Option<String>,
    /// File for audit lines; "-" is standard output, "off" writes none [audit.path]
    #[arg(long, value_name = "FILE")]
    audit: Option<String>,
}

impl ConfigSources {
    /// The valid configuration.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with it.
    pub(super) fn load(&self) -> Result<Config, ConfigError> {
        config::load(&self.flags(), &environment(), self.config.as_deref())
    }

    /// The configuration in force as text.
    ///
    /// # Errors
    ///
    /// As [`Sources::load`].
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

/// The process's environment. What is not Unicode becomes replacement characters: a key spelled so is
/// unknown, most values spelled so are wrong, and both should be reported rather than passed over.
pub(super) fn environment() -> BTreeMap<String, String> {
    std::env::vars_os()
        .map(|(name, value)| {
            let text = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
            (text(name), text(value))
        })
        .collect()
}
