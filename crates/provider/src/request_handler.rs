//! What the routes share: the state of the server, and one request on one connection.
//!
//! Opens the record's entry of a request, reads its body into the record, and sends answers under a
//! [`Behaviour`]. Decides nothing about content. Used by [`super::chat`] and [`super::routes`]; made by
//! [`super::server`].

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderValue, Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::behaviour::{Behaviour, Schedule};
use super::cache::SimulatedCache;
use super::caller::{CallerKind, IdentifyCaller};
use super::judge::Rules;
use super::options::Options;
use super::prompt::CountTokens;
use super::record::{Credential, Ending, Record, RecordedRequest, RequestWatch, Verdict};
use super::script::Script;
use super::sending::{self, Body};

/// A larger body is a mistake of a test.
pub(super) const MAX_BODY_BYTES: usize = 256 << 20;

/// The state that all connections share.
pub(super) struct ServerState {
    pub(super) record: Arc<Record>,
    pub(super) rules: Mutex<Rules>,
    pub(super) schedule: Mutex<Schedule>,
    pub(super) scripts: Mutex<HashMap<CallerKind, Arc<dyn Script>>>,
    pub(super) cache: Mutex<SimulatedCache>,
    pub(super) identify_caller: IdentifyCaller,
    pub(super) count_tokens: CountTokens,
    keep_bodies: bool,
    pub(super) connections: AtomicU64,
    pub(super) tasks: TaskTracker,
    pub(super) closing: CancellationToken,
}

impl ServerState {
    pub(super) fn new(options: Options) -> Self {
        Self {
            record: Arc::new(Record::new()),
            rules: Mutex::new(options.rules),
            schedule: Mutex::default(),
            scripts: Mutex::new(options.scripts),
            cache: Mutex::new(SimulatedCache::new(&options.count_tokens)),
            identify_caller: options.identify_caller,
            count_tokens: options.count_tokens,
            keep_bodies: options.keep_bodies,
            connections: AtomicU64::new(0),
            tasks: TaskTracker::new(),
            closing: CancellationToken::new(),
        }
    }

    pub(super) fn script(&self, caller: CallerKind) -> Option<Arc<dyn Script>> {
        lock(&self.scripts).get(&caller).cloned()
    }
}

/// A test that panicked elsewhere must not make every later lock panic too.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One request on one connection.
pub(super) struct RequestHandler {
    pub(super) shared: Arc<ServerState>,
    pub(super) connection: u64,
    pub(super) reset: Arc<AtomicBool>,
}

impl RequestHandler {
    pub(super) fn entry(&self, request: &Request<Incoming>) -> RecordedRequest {
        let mut headers = request.headers().clone();
        for name in ["authorization", "api-key", "x-api-key", "cookie"] {
            if let Some(value) = headers.get_mut(name) {
                value.set_sensitive(true);
            }
        }
        RecordedRequest {
            number: 0,
            connection: self.connection,
            at: Instant::now(),
            method: request.method().clone(),
            target: request
                .uri()
                .path_and_query()
                .map_or_else(|| request.uri().to_string(), ToString::to_string),
            credential: Credential::from_headers(&headers),
            headers,
            body: Bytes::new(),
            body_bytes: 0,
            caller: CallerKind::Other,
            model: None,
            messages: 0,
            verdict: Verdict::Pending,
            prompt_usage: None,
            completion_tokens: None,
            reply: None,
            ending: Ending::Open,
        }
    }

    /// Reads a body into the record, frame by frame, so that the record also has what a client sent
    /// before it left.
    pub(super) async fn read(&self, body: Incoming, watch: &mut RequestWatch) -> io::Result<Bytes> {
        let mut body = http_body_util::Limited::new(body, MAX_BODY_BYTES);
        let mut bytes = BytesMut::new();
        let ended = loop {
            match body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        bytes.extend_from_slice(&data);
                        watch.update(|entry| entry.body_bytes = bytes.len());
                    }
                }
                Some(Err(error)) => break Err(io::Error::other(error)),
                None => break Ok(()),
            }
        };
        let bytes = bytes.freeze();
        if self.shared.keep_bodies {
            watch.update(|entry| entry.body = bytes.clone());
        }
        ended.map(|()| bytes)
    }

    /// Sends an answer without streaming: one event, with its length in the head.
    pub(super) fn send_body(
        &self,
        mut response: Response<()>,
        body: Bytes,
        behaviour: &Behaviour,
        watch: RequestWatch,
    ) -> Response<Body> {
        if !behaviour.gzip {
            let length = HeaderValue::from(body.len());
            response.headers_mut().insert(CONTENT_LENGTH, length);
        }
        self.send_events(response, vec![body], behaviour, watch)
    }

    pub(super) fn send_events(
        &self,
        mut response: Response<()>,
        events: Vec<Bytes>,
        behaviour: &Behaviour,
        watch: RequestWatch,
    ) -> Response<Body> {
        if behaviour.omit_content_type {
            response.headers_mut().remove(CONTENT_TYPE);
        }
        for (name, value) in &behaviour.headers {
            if let Ok(value) = HeaderValue::from_str(value) {
                response.headers_mut().append(*name, value);
            }
        }
        let compressed = behaviour
            .gzip
            .then(|| sending::gzip(&events))
            .and_then(Result::ok);
        if compressed.is_some() {
            let gzip = HeaderValue::from_static("gzip");
            response.headers_mut().insert(CONTENT_ENCODING, gzip);
        }
        let events = compressed.unwrap_or(events);
        let has_length = response.headers().contains_key(CONTENT_LENGTH);
        response.map(|()| sending::body(&events, behaviour, has_length, &self.reset, watch))
    }
}
