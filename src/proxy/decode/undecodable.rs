//! The one error of decoding.

use std::io;

/// The response cannot be decoded, or is too large.
#[derive(Debug, thiserror::Error)]
#[error("the response cannot be decoded")]
pub struct Undecodable;

impl From<io::Error> for Undecodable {
    fn from(_: io::Error) -> Self {
        Self
    }
}
