//! Who sent a request to the provider: a conversation, an Observer, a Reflector, or none of them.
//!
//! Scripts, behaviours and the record are kept per caller. [`super::options`] has the default rule that tells
//! them apart.

use std::sync::Arc;

use serde_json::{Map, Value};

/// Finds out who sent a request.
pub type IdentifyCaller = Arc<dyn Fn(&Map<String, Value>) -> CallerKind + Send + Sync>;

/// The model name of the Observer, unless [`super::Options::identify_caller`] decides otherwise.
pub const OBSERVER_MODEL: &str = "observer-mini";
/// The model name of the Reflector, unless [`super::Options::identify_caller`] decides otherwise.
pub const REFLECTOR_MODEL: &str = "reflector-mini";

/// Who sent a request. Scripts and behaviours are set for each caller separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallerKind {
    /// A client's conversation, or a side call of the client.
    Actor,
    /// An Observer's call.
    Observer,
    /// A Reflector's call.
    Reflector,
    /// A request that is no chat request: models, embeddings, echoes.
    Other,
}
