//! The valid configuration: the settings of every module, with nothing left to check, default or resolve.
//!
//! Each module defines its own settings; this file only says which modules have some. Built by `validate`
//! alone, read by `app` and `cli`.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use secrecy::SecretString;
use url::Url;

use crate::audit;
use crate::jobs;
use crate::memory::Pattern;
use crate::model_prices::NamedPrice;
use crate::proxy::{Limits, RequestPolicy};
use crate::server;
use crate::upstream::Timeouts;

/// Everything that an operator decides.
#[derive(Debug, Clone)]
pub struct Config {
    /// Both ports and their connections. Port 0 takes a free port.
    pub server: server::Settings,
    /// Requests in flight, and how long their bodies may take.
    pub limits: Limits,
    pub upstream: UpstreamSettings,
    pub database: Database,
    pub pepper: PepperSettings,
    /// Conversations without a request for this long are deleted; `None`: none is.
    pub retention: Option<Duration>,
    /// The most bytes that the conversations of one account may take; `None`: any number.
    pub max_account_bytes: Option<u64>,
    /// Jobs of conversations without a request for this long are deleted.
    pub job_retention: Duration,
    pub audit: AuditTarget,
    /// When a new audit file begins.
    pub audit_rotation: audit::Rotation,
    /// How long audit lines stay in the database; `None`: none are stored.
    pub audit_store_retention: Option<Duration>,
    /// Prices for reports of the audit.
    pub audit_prices: Vec<NamedPrice>,
    /// Where audit lines go as spans and metrics.
    pub otlp: Option<audit::OtlpSettings>,
    /// `[memory] enabled`; `false` makes a plain proxy.
    pub memory_enabled: bool,
    /// How requests are treated. The aliases in it are empty: the store has them.
    pub requests: RequestPolicy,
    /// How memory is made. Its overrides are those of `overrides` that match this upstream.
    pub memory: jobs::Settings,
    /// `[[memory.overrides]]` for any upstream, the narrowest first; the first that matches counts.
    pub overrides: Vec<Override>,
}

/// Where requests go.
#[derive(Debug, Clone)]
pub struct UpstreamSettings {
    /// HTTP or HTTPS with a host. No user, query or fragment; a path does not end with a slash.
    pub base_url: Url,
    pub timeouts: Timeouts,
}

/// Which database holds memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Database {
    /// An SQLite file, by its path.
    Sqlite(PathBuf),
    /// SQLite in memory: its content is lost at exit.
    SqliteInMemory,
}

impl fmt::Display for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => write!(f, "sqlite://{}", path.display()),
            Self::SqliteInMemory => f.write_str("sqlite::memory:"),
        }
    }
}

/// Where the secret is that keys every hash in the database. `secret` wins over `file`.
#[derive(Debug, Clone, Default)]
pub struct PepperSettings {
    pub secret: Option<SecretString>,
    pub file: Option<PathBuf>,
}

/// Where audit lines go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuditTarget {
    Off,
    Stdout,
    /// Appended to this file.
    File(PathBuf),
}

/// Settings of memory for some models or upstreams. Patterns have `*` for any text and `?` for one character.
#[derive(Debug, Clone)]
pub struct Override {
    /// Pattern for the conversation's model; `None` matches any.
    pub model: Option<String>,
    /// Pattern for the upstream's host; `None` matches any. At least one of the two is set.
    pub upstream: Option<String>,
    /// Whether memory is sent but not made for these conversations.
    pub read_only: bool,
    /// All settings, the inherited ones included.
    pub settings: Arc<jobs::Settings>,
}

impl Override {
    /// Whether this override is for an upstream with this host.
    pub(super) fn matches_upstream(&self, host: &str) -> bool {
        let pattern = self.upstream.as_deref();
        pattern.is_none_or(|pattern| Pattern::new(pattern).matches(host))
    }

    /// The models that this override is for.
    pub(super) fn model_pattern(&self) -> Pattern {
        Pattern::new(self.model.as_deref().unwrap_or("*"))
    }

    /// Whether both have the same patterns.
    pub(super) fn same_target(&self, other: &Self) -> bool {
        let target = |item: &Self| {
            let lower = |text: &Option<String>| text.as_deref().map(str::to_lowercase);
            (lower(&item.model), lower(&item.upstream))
        };
        target(self) == target(other)
    }

    /// The narrower override has the greater value: model and upstream, then model alone, then upstream
    /// alone; among equals the one with more literal characters. A pattern of wildcards alone does not count.
    pub(super) fn specificity(&self) -> (usize, usize) {
        let literal = |text: &Option<String>| {
            let text = text.as_deref().unwrap_or_default();
            text.chars().filter(|c| !matches!(c, '*' | '?')).count()
        };
        let (model, upstream) = (literal(&self.model), literal(&self.upstream));
        let named_fields = 2 * usize::from(model > 0) + usize::from(upstream > 0);
        (named_fields, model + upstream)
    }
}

impl Config {
    /// Valid settings that an operator may not have intended, in whole sentences.
    #[must_use]
    pub fn hints(&self) -> Vec<String> {
        let mut hints = Vec::new();
        let mut hint = |condition: bool, text: &str| {
            if condition {
                hints.push(text.to_owned());
            }
        };
        let memory = self.memory_enabled;
        hint(
            !memory,
            "Memory is off (memory.enabled = false): Diarist is a plain proxy.",
        );
        hint(
            memory && self.memory.placement.is_none(),
            "Observations are made but never sent (upstream.placement = \"off\").",
        );
        hint(
            memory && self.memory.observation.model.is_none(),
            "The Observer uses each conversation's own model. Set memory.model or \
             memory.observation.model to a cheap model: an expensive one makes memory late where prices are \
             known, and elsewhere it can cost twice what it saves on a conversation of 60,000 tokens.",
        );
        let unpriced = self.memory.unpriced_model().unwrap_or_default();
        hint(
            memory && !unpriced.is_empty(),
            &format!(
                "No price of {unpriced} is known, so memory is made at the published thresholds and not when it \
                 pays. To change that, add the model to audit.prices or set memory.cost.observer_input."
            ),
        );
        hint(
            memory && self.requests.read_only.default,
            "Memory is only read (memory.read_only = true): nothing new is remembered.",
        );
        hint(
            memory && self.database == Database::SqliteInMemory,
            "The database is in memory: everything is forgotten at exit.",
        );
        hint(
            memory && !self.server.listen.ip().is_loopback(),
            "The data port is reachable from other machines: requests without a credential get no memory.",
        );
        hint(
            !self.server.admin.ip().is_loopback() && self.server.admin_token.is_none(),
            "The admin port is reachable from other machines, and server.admin_token is not set: they get \
             neither /metrics nor the details of /readyz.",
        );
        hints
    }
}
