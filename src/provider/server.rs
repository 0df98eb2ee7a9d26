//! The provider's HTTP side: accepts connections, decides which route a request takes, and serves
//! chat completions.
//!
//! Every rule it applies is somebody else's: [`super::judge`], [`super::cache`], the scripts and
//! the behaviours. Started by [`super::Provider::start`].

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Map, Value};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use super::answer::Answer;
use super::behaviour::{Behaviour, Cut, Failure, Schedule};
use super::cache::{Measured, PromptCache};
use super::judge::{self, Accepted, Rules};
use super::record::{Credential, Ending, Record, Recorded, Stage, Verdict, Watch};
use super::refusal::Refusal;
use super::script::{Ask, Reply, Script};
use super::sending::{self, Body};
use super::socket::Socket;
use super::{Options, Part, Recognise, routes};
use crate::tasks::Tasks;

/// Larger bodies than any test sends are a mistake, not a request.
const MAX_BODY_BYTES: usize = 256 << 20;

/// What all connections share.
pub(super) struct Shared {
    pub(super) record: Arc<Record>,
    pub(super) rules: Mutex<Rules>,
    pub(super) schedule: Mutex<Schedule>,
    pub(super) scripts: Mutex<HashMap<Part, Arc<dyn Script>>>,
    cache: Mutex<PromptCache>,
    recognise: Recognise,
    count: super::Count,
    keep_bodies: bool,
    connections: AtomicU64,
    pub(super) tasks: Tasks,
    pub(super) closing: CancellationToken,
}

impl Shared {
    pub(super) fn new(options: Options) -> Self {
        Self {
            record: Arc::new(Record::new()),
            rules: Mutex::new(options.rules),
            schedule: Mutex::default(),
            scripts: Mutex::new(options.scripts),
            cache: Mutex::new(PromptCache::new(Arc::clone(&options.count))),
            recognise: options.recognise,
            count: options.count,
            keep_bodies: options.keep_bodies,
            connections: AtomicU64::new(0),
            tasks: Tasks::new(),
            closing: CancellationToken::new(),
        }
    }

    fn script(&self, part: Part) -> Option<Arc<dyn Script>> {
        lock(&self.scripts).get(&part).cloned()
    }
}

/// A test that panicked elsewhere must not turn every later lock into another panic.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Accepts until the provider closes.
pub(super) async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        let accepted = tokio::select! {
            () = shared.closing.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        // A failed accept is the client's (or a passing shortage of descriptors): go on.
        let Ok((stream, _)) = accepted else { continue };
        let connection = shared.connections.fetch_add(1, Ordering::Relaxed);
        let task = serve(stream, connection, Arc::clone(&shared));
        shared.tasks.spawn("provider connection", task);
    }
}

async fn serve(stream: TcpStream, connection: u64, shared: Arc<Shared>) {
    // Only latency is lost where it cannot be set.
    let _ = stream.set_nodelay(true);
    let (socket, reset) = Socket::new(stream);
    let service = service_fn(|request| {
        let call = Call {
            shared: Arc::clone(&shared),
            connection,
            reset: Arc::clone(&reset),
        };
        call.answer(request)
    });
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new());
    let serving = http
        .serve_connection(TokioIo::new(socket), service)
        .with_upgrades();
    tokio::select! {
        // How a connection ended is written down by the watches of its requests.
        _ = serving => {}
        () = shared.closing.cancelled() => {}
    }
}

/// One request on one connection.
pub(super) struct Call {
    pub(super) shared: Arc<Shared>,
    connection: u64,
    reset: Arc<AtomicBool>,
}

/// A request body that has been read.
struct Received {
    parsed: Option<Map<String, Value>>,
    /// Decompressed, where it came compressed.
    bytes: Bytes,
    part: Part,
}

impl Call {
    async fn answer(self, request: Request<Incoming>) -> io::Result<Response<Body>> {
        let watch = self.shared.record.open(self.entry(&request));
        if request.uri().path().ends_with("/chat/completions") {
            self.chat(request, watch).await
        } else {
            routes::answer(&self, request, watch).await
        }
    }

    fn entry(&self, request: &Request<Incoming>) -> Recorded {
        let mut headers = request.headers().clone();
        for name in ["authorization", "api-key", "x-api-key", "cookie"] {
            if let Some(value) = headers.get_mut(name) {
                value.set_sensitive(true);
            }
        }
        Recorded {
            number: 0,
            connection: self.connection,
            at: Instant::now(),
            method: request.method().clone(),
            target: request
                .uri()
                .path_and_query()
                .map_or_else(|| request.uri().to_string(), ToString::to_string),
            credential: Credential::of(&headers),
            headers,
            body: Bytes::new(),
            body_bytes: 0,
            part: Part::Other,
            model: None,
            messages: 0,
            verdict: Verdict::Pending,
            measured: None,
            completion_tokens: None,
            reply: None,
            ending: Ending::Open,
        }
    }

    async fn chat(
        self,
        request: Request<Incoming>,
        mut watch: Watch,
    ) -> io::Result<Response<Body>> {
        let early = lock(&self.shared.schedule).take_early();
        if let Some(behaviour) = early
            && let Some(failure) = &behaviour.fail
        {
            return self.fail(failure, &behaviour, watch);
        }
        let (head, body) = request.into_parts();
        let bytes = self.read(body, &mut watch).await?;
        watch.reach(Stage::BeforeHead);

        let received = self.receive(&head.headers, bytes);
        watch.note(|entry| received.describe(entry));
        let behaviour = lock(&self.shared.schedule).take(received.part);
        if behaviour.silent {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(behaviour.before_head).await;
        if behaviour.cut == Some(Cut::BeforeHead) {
            watch.cut();
            return Err(io::Error::other("cut before the head, as scripted"));
        }
        if let Some(failure) = &behaviour.fail {
            return self.fail(failure, &behaviour, watch);
        }
        let credential = Credential::of(&head.headers);
        match self.judge(&received, &credential) {
            Ok((accepted, measured)) => {
                self.complete(&accepted, measured, received.part, &behaviour, watch)
            }
            Err(refusal) => {
                let response = error_response(&refusal);
                let body = Bytes::from(refusal.body().to_string());
                watch.note(|entry| entry.verdict = Verdict::Refused(refusal));
                Ok(self.plain(response, body, &behaviour, watch))
            }
        }
    }

    /// Reads a body into the record, frame by frame: a client that leaves half-way has still sent
    /// what it has sent.
    pub(super) async fn read(&self, body: Incoming, watch: &mut Watch) -> io::Result<Bytes> {
        let mut body = http_body_util::Limited::new(body, MAX_BODY_BYTES);
        let mut bytes = BytesMut::new();
        let ended = loop {
            match body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        bytes.extend_from_slice(&data);
                        watch.note(|entry| entry.body_bytes = bytes.len());
                    }
                }
                Some(Err(error)) => break Err(io::Error::other(error)),
                None => break Ok(()),
            }
        };
        let bytes = bytes.freeze();
        if self.shared.keep_bodies {
            watch.note(|entry| entry.body = bytes.clone());
        }
        ended.map(|()| bytes)
    }

    fn receive(&self, headers: &HeaderMap, bytes: Bytes) -> Received {
        let bytes = decompressed(headers, bytes);
        let parsed = judge::parse(&bytes).ok();
        let part = parsed
            .as_ref()
            .map_or(Part::Actor, |request| (self.shared.recognise)(request));
        Received {
            parsed,
            bytes,
            part,
        }
    }

    fn judge(
        &self,
        received: &Received,
        credential: &Credential,
    ) -> Result<(Accepted, Measured), Refusal> {
        let rules = lock(&self.shared.rules).clone();
        let accepted = match &received.parsed {
            Some(request) => judge::inspect_parsed(request.clone(), &rules)?,
            // It did not parse: this says so in the API's words.
            None => judge::inspect(&received.bytes, &rules)?,
        };
        let mut cache = lock(&self.shared.cache);
        let (measured, path) = cache.read(credential.reveal(), &accepted.model, &accepted.prompt);
        rules.fits(measured.prompt_tokens)?;
        cache.store(&path);
        Ok((accepted, measured))
    }

    fn complete(
        &self,
        accepted: &Accepted,
        measured: Measured,
        part: Part,
        behaviour: &Behaviour,
        watch: Watch,
    ) -> io::Result<Response<Body>> {
        let replies = self.replies(accepted, part);
        let answer = Answer {
            id: format!("chatcmpl-scripted{}", watch.number()),
            model: &accepted.model,
            created: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| since.as_secs()),
            completion_tokens: replies.iter().map(|reply| self.tokens(reply)).sum(),
            replies,
            measured,
            signed: lock(&self.shared.rules).signature,
        };
        watch.note(|entry| {
            entry.verdict = Verdict::Accepted;
            entry.measured = Some(measured);
            entry.completion_tokens = Some(answer.completion_tokens);
            entry.reply = answer.first_message();
        });
        let response =
            Response::builder().header("x-request-id", format!("req_{}", watch.number()));
        if !accepted.stream {
            let response = response
                .header(CONTENT_TYPE, "application/json")
                .body(())
                .map_err(io::Error::other)?;
            return Ok(self.plain(
                response,
                answer.completion().to_string().into(),
                behaviour,
                watch,
            ));
        }
        let usage = accepted.include_usage || behaviour.unasked_usage;
        let chunks = answer.chunks(behaviour.delta_chars, usage);
        let response = response
            .header(CONTENT_TYPE, "text/event-stream; charset=utf-8")
            .header("cache-control", "no-cache")
            .body(())
            .map_err(io::Error::other)?;
        Ok(self.send(
            response,
            sending::encode(&chunks, behaviour),
            behaviour,
            watch,
        ))
    }

    fn replies(&self, accepted: &Accepted, part: Part) -> Vec<Reply> {
        let script = self.shared.script(part);
        (0..accepted.n)
            .map(|choice| {
                let ask = Ask {
                    request: &accepted.request,
                    messages: accepted.messages(),
                    part,
                    choice,
                };
                script
                    .as_ref()
                    .map_or_else(Reply::default, |script| script.reply(&ask))
            })
            .collect()
    }

    fn tokens(&self, reply: &Reply) -> u32 {
        let count = &self.shared.count;
        let said = [&reply.content, &reply.reasoning, &reply.refusal];
        let said: u32 = said.into_iter().flatten().map(|text| count(text)).sum();
        let called: u32 = reply
            .calls
            .iter()
            .map(|call| count(&call.name) + count(&call.arguments))
            .sum();
        said + called
    }

    fn fail(
        &self,
        failure: &Failure,
        behaviour: &Behaviour,
        watch: Watch,
    ) -> io::Result<Response<Body>> {
        watch.note(|entry| entry.verdict = Verdict::Failed(failure.status));
        let mut response = Response::builder().status(failure.status);
        if let Some(seconds) = failure.retry_after {
            response = response.header(RETRY_AFTER, seconds);
        }
        let (kind, body) = failure.body.clone().unwrap_or_else(|| {
            let refusal = Refusal::for_status(failure.status);
            ("application/json", refusal.body().to_string())
        });
        let response = response
            .header(CONTENT_TYPE, kind)
            .body(())
            .map_err(io::Error::other)?;
        Ok(self.plain(response, body.into(), behaviour, watch))
    }

    /// An answer that is not a stream: one event, with its length announced.
    pub(super) fn plain(
        &self,
        mut response: Response<()>,
        body: Bytes,
        behaviour: &Behaviour,
        watch: Watch,
    ) -> Response<Body> {
        if !behaviour.gzip {
            let length = HeaderValue::from(body.len());
            response.headers_mut().insert(CONTENT_LENGTH, length);
        }
        self.send(response, vec![body], behaviour, watch)
    }

    fn send(
        &self,
        mut response: Response<()>,
        events: Vec<Bytes>,
        behaviour: &Behaviour,
        watch: Watch,
    ) -> Response<Body> {
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
        let announced = response.headers().contains_key(CONTENT_LENGTH);
        response.map(|()| sending::body(&events, behaviour, announced, &self.reset, watch))
    }
}

impl Received {
    fn describe(&self, entry: &mut Recorded) {
        entry.part = self.part;
        let Some(request) = &self.parsed else { return };
        entry.model = request
            .get("model")
            .and_then(Value::as_str)
            .map(str::to_owned);
        entry.messages = request
            .get("messages")
            .and_then(Value::as_array)
            .map_or(0, Vec::len);
    }
}

fn error_response(refusal: &Refusal) -> Response<()> {
    let mut response = Response::new(());
    if let Ok(status) = http::StatusCode::from_u16(refusal.status) {
        *response.status_mut() = status;
    }
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}

/// What does not decompress is left as it came: judging it says that it is no JSON.
fn decompressed(headers: &HeaderMap, bytes: Bytes) -> Bytes {
    use std::io::Read as _;

    if headers
        .get(CONTENT_ENCODING)
        .is_none_or(|coding| coding != "gzip")
    {
        return bytes;
    }
    let mut plain = Vec::new();
    let limit = u64::try_from(MAX_BODY_BYTES).unwrap_or(u64::MAX);
    match flate2::read::GzDecoder::new(bytes.as_ref())
        .take(limit)
        .read_to_end(&mut plain)
    {
        Ok(_) => plain.into(),
        Err(_) => bytes,
    }
}
