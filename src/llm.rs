//! Calls to the models that observe and reflect. Never on the request path.
//!
//! One [`Llm`] for the process: a pooled client that follows no redirect, uses no proxy and has no
//! total timeout, because each call has its own deadline. This module decides how a call is written for a
//! model (a parameter that the model refuses is left out and remembered) and which class a failure
//! has. It never decides whether to call or to try again: `jobs` does, with [`backoff()`] and
//! [`Breaker`]. It never logs a prompt, an answer or a credential.

mod backoff;
mod breaker;
mod call;
mod capabilities;
mod client;
mod credential_headers;
mod endpoint;
mod error;
mod lenient_json;
pub mod model_catalog;
mod reply;
mod reported_usage;

pub use crate::memory::prompt::Prompt;
pub use backoff::{MAX_RETRY_AFTER, backoff, retry_after};
pub use breaker::Breaker;
pub use call::{CallSettings, Models};
pub use client::{Llm, ModelClient};
pub use credential_headers::CredentialHeaders;
pub(crate) use credential_headers::in_query as credentials_in_query;
pub use endpoint::{Endpoint, UpstreamRoute};
pub use error::{CallError, FailedCall};
pub use reply::{Finish, Reply};
pub use reported_usage::ReportedUsage;
