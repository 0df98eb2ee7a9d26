//! The settings of the export over OTLP. The config module fills them in, and there are some only where something is to
//! be exported.

use http::{HeaderName, HeaderValue};
use url::Url;

/// Where spans and metrics go, and which.
#[derive(Clone, Debug)]
pub struct OtlpSettings {
    /// The base URL of the collector; `/v1/traces` and `/v1/metrics` follow it.
    pub endpoint: Url,
    /// Headers of each export. Their values are sensitive.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Whether spans are exported.
    pub traces: bool,
    /// Whether metrics are exported.
    pub metrics: bool,
    /// Whether requests to the upstream name Diarist's span as their parent.
    pub propagate: bool,
    /// Whether names are those of the newest GenAI conventions.
    pub latest_names: bool,
    /// The host of the upstream, which tells the provider.
    pub upstream: String,
}

/// Why nothing can be exported.
#[derive(Debug, thiserror::Error)]
#[error("the export over OTLP cannot be set up: {0}")]
pub struct OtlpError(pub(super) String);
