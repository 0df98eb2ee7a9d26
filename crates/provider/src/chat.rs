//! One chat request: judge it, measure it, let a script answer it, or fail as scripted.
//!
//! Every rule it applies is somebody else's: [`mod@super::judge`], [`super::cache`], the scripts and
//! the behaviours. Called by [`super::server`].

use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, RETRY_AFTER};
use http::response::Builder;
use http::{HeaderMap, HeaderValue, Request, Response};
use hyper::body::Incoming;
use serde_json::{Map, Value};

use super::Part;
use super::answer::Answer;
use super::behaviour::{Behaviour, Cut, Failure};
use super::cache::Measured;
use super::judge::{self, Accepted};
use super::record::{Credential, Recorded, Stage, Verdict, Watch};
use super::refusal::Refusal;
use super::script::{Ask, Reply};
use super::sending::{self, Body};
use super::server::{Call, MAX_BODY_BYTES, lock};

/// What a stream is called; the length of what is called so is announced to nobody.
const EVENT_STREAM: &str = "text/event-stream; charset=utf-8";

/// A request body that has been read.
struct Received {
    parsed: Option<Map<String, Value>>,
    /// Decompressed, where it came compressed.
    bytes: Bytes,
    part: Part,
}

impl Call {
    pub(super) async fn chat(
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
            Err(refusal) if behaviour.refuse_in_stream && received.asks_for_stream() => {
                let events = sending::encode(&[refusal.body()], &behaviour);
                watch.note(|entry| entry.verdict = Verdict::Refused(refusal));
                Ok(self.send(
                    event_stream(Response::builder())?,
                    events,
                    &behaviour,
                    watch,
                ))
            }
            Err(refusal) => {
                let response = error_response(&refusal);
                let body = Bytes::from(refusal.body().to_string());
                watch.note(|entry| entry.verdict = Verdict::Refused(refusal));
                Ok(self.plain(response, body, &behaviour, watch))
            }
        }
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
        let response = event_stream(response)?;
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
        if kind == EVENT_STREAM {
            return Ok(self.send(response, vec![body.into()], behaviour, watch));
        }
        Ok(self.plain(response, body.into(), behaviour, watch))
    }
}

impl Received {
    fn asks_for_stream(&self) -> bool {
        let request = self.parsed.as_ref();
        request.is_some_and(|request| request.get("stream") == Some(&Value::Bool(true)))
    }

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

fn event_stream(response: Builder) -> io::Result<Response<()>> {
    response
        .header(CONTENT_TYPE, EVENT_STREAM)
        .header("cache-control", "no-cache")
        .body(())
        .map_err(io::Error::other)
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
