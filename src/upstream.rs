//! The pooled client for the upstream: addresses, TLS, timeouts.
//!
//! [`Upstream`] decides the address of a request and sends it. It never changes headers or bodies, never follows a
//! redirect, never decompresses, and never repeats a request of which a byte was written. Called by `proxy`.

mod connect;
mod failure;
mod target;
mod tracked_connection;

use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{Request, Response, Uri};
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::capture_connection;
use hyper_util::rt::TokioTimer;
use metrics::Histogram;
use rustls::{ClientConfig, RootCertStore};
use tokio::time::{Instant, timeout_at};
use url::Url;

use self::connect::Connector;
pub use self::failure::{BoxError, SendError, SetupError, cause};
use self::target::Target;
use self::tracked_connection::has_ended;
use crate::tasks::Tasks;
use crate::telemetry::{self, kept};

static HEAD: LazyLock<Histogram> =
    LazyLock::new(|| kept(|| metrics::histogram!(telemetry::UPSTREAM_HEAD)));

/// How often a request that waits for its response head looks whether its connection still exists.
const CONNECTION_CHECK: Duration = Duration::from_secs(1);

/// A body on its way to the upstream.
pub type RequestBody = UnsyncBoxBody<Bytes, BoxError>;

/// A request as the upstream gets it.
#[derive(Debug)]
pub struct PreparedRequest {
    pub request: Request<RequestBody>,
    /// Of a body that comes from the client while it is sent.
    pub upload: Option<UploadClock>,
}

/// Whether a body that is being sent has something to send.
#[derive(Clone, Debug, Default)]
pub struct UploadClock(Arc<Mutex<Upload>>);

#[derive(Clone, Copy, Debug, Default)]
enum Upload {
    #[default]
    NotBegun,
    /// The client has to send more. How long that may take, the body itself decides.
    AtClient,
    /// Everything that has come was handed over at this time.
    AtUpstream(Instant),
}

impl UploadClock {
    /// The body was asked for its next bytes; whether they have to come from the client first.
    pub fn set(&self, is_at_client: bool) {
        *self.lock() = if is_at_client {
            Upload::AtClient
        } else {
            Upload::AtUpstream(Instant::now())
        };
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Upload> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The time limits for the upstream.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// Name resolution, TCP and TLS together.
    pub connect: Duration,
    /// From the end of a request to the response head. Long, because models think before they answer.
    pub head: Duration,
    /// How long a client that asked for `100 Continue` waits for the upstream's answer. After that, its body is sent
    /// anyway.
    pub expect_continue: Duration,
    /// How long an unused connection is kept. Less than the upstream's own limit (5 s in Node): a request on a connection
    /// that is just being closed cannot always be repeated.
    pub pool_idle: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            head: Duration::from_mins(10),
            // As long as curl waits.
            expect_continue: Duration::from_secs(1),
            pool_idle: Duration::from_secs(4),
        }
    }
}

/// Where requests with one path go. Nearly all have the same path, so that of the last one is kept.
#[derive(Clone, Debug)]
struct Address {
    received: PathAndQuery,
    uri: Uri,
    url: Arc<Url>,
}

/// One upstream: its address and its connections. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Upstream {
    target: Arc<Target>,
    latest: Arc<Mutex<Option<Address>>>,
    timeouts: Timeouts,
    client: Client<Connector, RequestBody>,
}

impl Upstream {
    /// Prepares the client; does not connect yet.
    ///
    /// # Errors
    /// If the address cannot be an upstream's, or the platform's root certificates cannot be read.
    pub fn new(base_url: &Url, timeouts: Timeouts, tasks: &Tasks) -> Result<Self, SetupError> {
        let target = Target::new(base_url)?;
        // A plain upstream needs no root certificates; a container may have none.
        let tls = if target.is_https() {
            connect::with_platform_roots()?
        } else {
            connect::with_roots(RootCertStore::empty())?
        };
        Ok(Self::build(target, timeouts, &tls, tasks))
    }

    /// Like [`Upstream::new`], but trusts only the given root certificates.
    ///
    /// # Errors
    /// If the address cannot be an upstream's.
    pub fn with_roots(
        roots: RootCertStore,
        base_url: &Url,
        timeouts: Timeouts,
        tasks: &Tasks,
    ) -> Result<Self, SetupError> {
        let tls = connect::with_roots(roots)?;
        Ok(Self::build(Target::new(base_url)?, timeouts, &tls, tasks))
    }

    fn build(target: Target, timeouts: Timeouts, tls: &ClientConfig, tasks: &Tasks) -> Self {
        // Later than the deadline for the answer: the client has its 504 then, and what is left of its request is not kept.
        let write_timeout = timeouts.head + CONNECTION_CHECK;
        let connector = connect::connector(tls, timeouts.connect, write_timeout);
        Self {
            target: Arc::new(target),
            latest: Arc::default(),
            timeouts,
            client: client(connector, &timeouts, tasks),
        }
    }

    /// Where a request of the data port goes: `/v1/...` onto the path of the base URL, any other
    /// path unchanged, always at the upstream's own origin.
    ///
    /// # Errors
    /// If the address becomes too long.
    pub fn uri_for(&self, path_and_query: &PathAndQuery) -> Result<Uri, http::Error> {
        match self.latest_address(path_and_query) {
            Some(address) => Ok(address.uri),
            None => self.target.uri_for(path_and_query),
        }
    }

    /// The same address as a URL; `None` if it is none.
    pub fn url_for(&self, path_and_query: &PathAndQuery) -> Option<Arc<Url>> {
        if let Some(address) = self.latest_address(path_and_query) {
            return Some(address.url);
        }
        let uri = self.target.uri_for(path_and_query).ok()?;
        let url = Arc::new(Url::parse(&uri.to_string()).ok()?);
        // A query may hold a credential, which is not to be kept.
        if path_and_query.query().is_none() {
            *self.latest() = Some(Address {
                received: path_and_query.clone(),
                uri,
                url: Arc::clone(&url),
            });
        }
        Some(url)
    }

    fn latest_address(&self, received: &PathAndQuery) -> Option<Address> {
        let latest = self.latest();
        latest
            .as_ref()
            .filter(|address| address.received == *received)
            .cloned()
    }

    fn latest(&self) -> std::sync::MutexGuard<'_, Option<Address>> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The configured URL: for logs. It holds no credentials, no query and no fragment.
    pub fn base_url(&self) -> String {
        self.target.base_url()
    }

    pub fn timeouts(&self) -> &Timeouts {
        &self.timeouts
    }

    /// Sends a request whose address came from [`Upstream::uri_for`] and waits for the head of the
    /// response. Dropping the future takes the request back.
    ///
    /// # Errors
    /// If no response head arrives; see [`SendError`] for what can be told apart.
    pub async fn send(&self, prepared: PreparedRequest) -> Result<Response<Incoming>, SendError> {
        let PreparedRequest {
            mut request,
            upload,
        } = prepared;
        let connection = capture_connection(&mut request);
        let sent = Instant::now();
        // The time for an answer begins when the request is with the upstream.
        let deadline = || {
            let since = match upload.as_ref().map(|clock| *clock.lock()) {
                Some(Upload::AtClient) => Instant::now(),
                Some(Upload::AtUpstream(since)) => since,
                Some(Upload::NotBegun) | None => sent,
            };
            since + self.timeouts.head
        };
        let mut response = std::pin::pin!(self.client.request(request));
        let mut had_ended = false;
        loop {
            let next_check = deadline().min(Instant::now() + CONNECTION_CHECK);
            if let Ok(response) = timeout_at(next_check, &mut response).await {
                let response = response.map_err(SendError::classify)?;
                HEAD.record(sent.elapsed());
                return Ok(response);
            }
            if Instant::now() >= deadline() {
                return Err(SendError::HeadTimeout(self.timeouts.head));
            }
            // At the first look the answer may be on its way from the connection to here.
            let has_ended = has_ended(&connection);
            if has_ended && had_ended {
                return Err(SendError::Lost);
            }
            had_ended = has_ended;
        }
    }
}

fn client(
    connector: Connector,
    timeouts: &Timeouts,
    tasks: &Tasks,
) -> Client<Connector, RequestBody> {
    Client::builder(tasks.outlasting().clone())
        .pool_timer(TokioTimer::new())
        .timer(TokioTimer::new())
        .pool_idle_timeout(timeouts.pool_idle)
        .http1_preserve_header_case(true)
        .build(connector)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cached_upstream_address_belongs_to_its_path_and_has_no_query() {
        let base = Url::parse("http://host/api/v1").unwrap();
        let upstream = Upstream::new(&base, Timeouts::default(), &Tasks::new()).unwrap();
        let paths = [
            ("/v1/a", "http://host/api/v1/a"),
            ("/v1/a", "http://host/api/v1/a"),
            ("/v1/b", "http://host/api/v1/b"),
            ("/v1/b?key=secret", "http://host/api/v1/b?key=secret"),
            ("/v1/b", "http://host/api/v1/b"),
            ("/v1/A", "http://host/api/v1/A"),
        ];
        for (received, sent) in paths {
            let received: PathAndQuery = received.parse().unwrap();
            assert_eq!(upstream.url_for(&received).unwrap().as_str(), sent);
            assert_eq!(upstream.uri_for(&received).unwrap().to_string(), sent);
            assert!(!format!("{upstream:?}").contains("secret"));
        }
    }
}
