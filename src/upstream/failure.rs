//! The errors on the way to the upstream, divided by what the client may know.

use std::error::Error;
use std::time::Duration;

/// The error of a body that is being sent.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The deadline of the connector passed.
#[derive(Debug, thiserror::Error)]
#[error("no connection within {0:?}")]
pub(super) struct ConnectTimedOut(pub(super) Duration);

/// Why an upstream cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    #[error("the scheme `{0}` is not http or https")]
    Scheme(String),
    #[error("the address has no usable host")]
    Host,
    #[error("credentials in the address are not sent to an upstream; clients bring their own")]
    Userinfo,
    #[error("an upstream's address has no query and no fragment")]
    Query,
    #[error("the platform's root certificates cannot be read")]
    Roots(#[source] std::io::Error),
}

/// Why there is no response head.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    #[error("the connection could not be made")]
    Connect(#[source] BoxedCause),
    #[error("the connection was not made within {0:?}")]
    ConnectTimeout(Duration),
    #[error("no response head came within {0:?}")]
    HeadTimeout(Duration),
    /// The request's own body failed; the cause is what the body reported.
    #[error("the request's body ended in an error")]
    Body(#[source] BoxedCause),
    #[error("the connection broke before the response head")]
    Broken(#[source] BoxedCause),
    /// The connection ended in the moment in which it was given the request.
    #[error("the connection ended as it was given the request")]
    Lost,
}

type BoxedCause = Box<dyn Error + Send + Sync>;

impl SendError {
    pub(super) fn classify(error: hyper_util::client::legacy::Error) -> Self {
        if let Some(ConnectTimedOut(after)) = cause(&error) {
            return Self::ConnectTimeout(*after);
        }
        if error.is_connect() {
            return Self::Connect(error.into());
        }
        match cause::<hyper::Error>(&error) {
            Some(inner) if inner.is_user() => Self::Body(error.into()),
            _ => Self::Broken(error.into()),
        }
    }
}

/// The first cause of type `T` in the chain of an error.
pub fn cause<'a, T: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a T> {
    let mut current = Some(error);
    while let Some(error) = current {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        current = error.source();
    }
    None
}
