//! Who sent a request to the provider: a conversation, an Observer, a Reflector, or none of them.
//!
//! Scripts, behaviours and the record are kept per caller. [`super::options`] has the default rule that tells
//! them apart.

use std::sync::Arc;

use serde_json::{Map, Value};

/// Tells from a request who is asking.
pub type IdentifyCaller = Arc<dyn Fn(&Map<String, Value>) -> CallerKind + Send + Sync>;

/// The model name that means the Observer, unless [`Options::recognise`] says otherwise.
pub const OBSERVER_MODEL: &str = "observer-mini";
/// The model name that means the Reflector, unless [`Options::recognise`] says otherwise.
pub const REFLECTOR_MODEL: &str = "reflector-mini";

/// Who is asking. Scripts and behaviours are set for each part by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallerKind {
    /// A client's conversation, or one of its side calls.
    Actor,
    /// An Observer's call.
    Observer,
    /// A Reflector's call.
    Reflector,
    /// Anything that is no chat request: models, embeddings, echoes.
    Other,
}
