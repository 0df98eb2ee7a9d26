//! Connections to the upstream: TCP without delay, TLS by rustls, and one deadline for both. Called by [`super`].

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_rustls::{ConfigBuilderExt as _, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::{ClientConfig, RootCertStore};
use tower_service::Service;

use super::failure::{BoxError, ConnectTimedOut, SetupError};
use super::tracked_connection::TrackedConnection;

/// Connections for HTTP/1.1 alone. Over HTTP/2 the requests of all clients would share one connection: a client that does
/// not read its answer would stop the answers of all others, a server takes some 100 requests at a time, and it ends the
/// connection under the rest of them.
pub(super) fn connector(
    tls: &ClientConfig,
    deadline: Duration,
    write_timeout: Duration,
) -> Connector {
    let builder = HttpsConnectorBuilder::new().with_tls_config(tls.clone());
    let inner = builder.https_or_http().enable_http1();
    Connector {
        inner: inner.wrap_connector(tcp(deadline)),
        deadline,
        write_timeout,
    }
}

fn tcp(deadline: Duration) -> HttpConnector {
    let mut tcp = HttpConnector::new();
    // A delayed small write costs a token 40 ms.
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(Duration::from_mins(1)));
    // Shared among the addresses of a name, so that a dead first one leaves time for the next.
    tcp.set_connect_timeout(Some(deadline));
    tcp.enforce_http(false);
    tcp
}

type WantsRoots = rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier>;

/// The crypto provider is named here and not taken from the process: another library may have installed none, or a
/// different one.
fn tls_config() -> Result<WantsRoots, SetupError> {
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .map_err(|error| SetupError::Roots(std::io::Error::other(error)))
}

/// Trusts what the platform trusts (or what `SSL_CERT_FILE` and `SSL_CERT_DIR` name).
pub(super) fn with_platform_roots() -> Result<ClientConfig, SetupError> {
    let roots = tls_config()?
        .with_native_roots()
        .map_err(SetupError::Roots)?;
    Ok(roots.with_no_client_auth())
}

/// Trusts only these.
pub(super) fn with_roots(roots: RootCertStore) -> Result<ClientConfig, SetupError> {
    let config = tls_config()?.with_root_certificates(roots);
    Ok(config.with_no_client_auth())
}

/// Connects within a deadline that also covers name resolution and the TLS handshake.
#[derive(Clone, Debug)]
pub(super) struct Connector {
    inner: HttpsConnector<HttpConnector>,
    deadline: Duration,
    write_timeout: Duration,
}

impl Service<Uri> for Connector {
    type Response = TrackedConnection;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<TrackedConnection, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, address: Uri) -> Self::Future {
        let (connecting, deadline) = (self.inner.call(address), self.deadline);
        let write_timeout = self.write_timeout;
        Box::pin(async move {
            tokio::time::timeout(deadline, connecting)
                .await
                .map_err(|_| ConnectTimedOut(deadline))?
                .map(|stream| TrackedConnection::new(stream, write_timeout))
        })
    }
}
