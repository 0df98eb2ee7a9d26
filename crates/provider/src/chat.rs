//! One chat request: judge it, measure it, let a script answer it, or fail as scripted.
//!
//! Has no rules of its own: these are in [`mod@super::judge`], [`super::cache`], the scripts and the
//! behaviours. Called by [`super::server`].

use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, RETRY_AFTER};
use http::response::Builder;
use http::{HeaderMap, HeaderValue, Request, Response};
use hyper::body::Incoming;
use serde_json::{Map, Value};

use super::answer::Answer;
use super::behaviour::{Behaviour, Cut, Failure};
use super::cache::PromptUsage;
use super::caller::CallerKind;
use super::judge::{self, AcceptedRequest};
use super::record::{Credential, RecordedRequest, RequestWatch, Stage, Verdict};
use super::refusal::Refusal;
use super::request_handler::{MAX_BODY_BYTES, RequestHandler, lock};
use super::script::{Reply, ScriptInput};
use super::sending::{self, Body};

/// The content type of a stream. Answers with this type get no length.
const EVENT_STREAM: &str = "text/event-stream; charset=utf-8";

/// A request body that has been read.
struct ReceivedRequest {
    parsed: Option<Map<String, Value>>,
    /// The body, decompressed if it was compressed.
    bytes: Bytes,
    caller: CallerKind,
}

impl RequestHandler {
    pub(super) async fn chat(
        self,
        request: Request<Incoming>,
        mut watch: RequestWatch,
    ) -> io::Result<Response<Body>> {
        let early = lock(&self.shared.schedule).take_early();
        if let Some(behaviour) = early
            && let Some(failure) = &behaviour.fail
        {
            return self.fail(failure, &behaviour, watch);
        }
        let (head, body) = request.into_parts();
        let bytes = self.read(body, &mut watch).await?;
        watch.set_stage(Stage::BeforeHead);

        let received = self.receive(&head.headers, bytes);
        watch.update(|entry| received.describe(entry));
        let behaviour = lock(&self.shared.schedule).take(received.caller);
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
        let credential = Credential::from_headers(&head.headers);
        match self.judge(&received, &credential) {
            Ok((accepted, prompt_usage)) => {
                self.complete(&accepted, prompt_usage, received.caller, &behaviour, watch)
            }
            Err(refusal) if behaviour.refuse_in_stream && received.asks_for_stream() => {
                let events = sending::encode(&[refusal.body()], &behaviour);
                watch.update(|entry| entry.verdict = Verdict::Refused(refusal));
                Ok(self.send_events(
                    event_stream(Response::builder())?,
                    events,
                    &behaviour,
                    watch,
                ))
            }
            Err(refusal) => {
                let response = error_response(&refusal);
                let body = Bytes::from(refusal.body().to_string());
                watch.update(|entry| entry.verdict = Verdict::Refused(refusal));
                Ok(self.send_body(response, body, &behaviour, watch))
            }
        }
    }

    fn receive(&self, headers: &HeaderMap, bytes: Bytes) -> ReceivedRequest {
        let bytes = decompressed(headers, bytes);
        let parsed = judge::parse(&bytes).ok();
        let caller = parsed.as_ref().map_or(CallerKind::Actor, |request| {
            (self.shared.identify_caller)(request)
        });
        ReceivedRequest {
            parsed,
            bytes,
            caller,
        }
    }

    fn judge(
        &self,
        received: &ReceivedRequest,
        credential: &Credential,
    ) -> Result<(AcceptedRequest, PromptUsage), Refusal> {
        let rules = lock(&self.shared.rules).clone();
        let accepted = match &received.parsed {
            Some(request) => judge::inspect_parsed(request.clone(), &rules)?,
            // The body did not parse; this refusal says so in the API's words.
            None => judge::inspect(&received.bytes, &rules)?,
        };
        let (owner, model) = (credential.reveal(), &accepted.model);
        let mut cache = lock(&self.shared.cache);
        let (prompt_usage, stored) = cache.read(rules.cache, (owner, model), &accepted.request);
        rules.check_window(prompt_usage.prompt_tokens)?;
        cache.store(&stored);
        Ok((accepted, prompt_usage))
    }

    fn complete(
        &self,
        accepted: &AcceptedRequest,
        prompt_usage: PromptUsage,
        caller: CallerKind,
        behaviour: &Behaviour,
        watch: RequestWatch,
    ) -> io::Result<Response<Body>> {
        let replies = self.replies(accepted, caller);
        let answer = Answer {
            id: format!("chatcmpl-scripted{}", watch.number()),
            model: &accepted.model,
            created: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| since.as_secs()),
            completion_tokens: replies.iter().map(|reply| self.tokens(reply)).sum(),
            replies,
            prompt_usage,
            with_signatures: lock(&self.shared.rules).signature,
        };
        watch.update(|entry| {
            entry.verdict = Verdict::Accepted;
            entry.prompt_usage = Some(prompt_usage);
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
            return Ok(self.send_body(
                response,
                answer.completion().to_string().into(),
                behaviour,
                watch,
            ));
        }
        let usage = accepted.include_usage || behaviour.unrequested_usage;
        let chunks = answer.chunks(behaviour.delta_chars, usage);
        let response = event_stream(response)?;
        Ok(self.send_events(
            response,
            sending::encode(&chunks, behaviour),
            behaviour,
            watch,
        ))
    }

    fn replies(&self, accepted: &AcceptedRequest, caller: CallerKind) -> Vec<Reply> {
        let script = self.shared.script(caller);
        (0..accepted.n)
            .map(|choice| {
                let input = ScriptInput {
                    request: &accepted.request,
                    messages: accepted.messages(),
                    caller,
                    choice,
                };
                script
                    .as_ref()
                    .map_or_else(Reply::default, |script| script.reply(&input))
            })
            .collect()
    }

    fn tokens(&self, reply: &Reply) -> u32 {
        let count = &self.shared.count_tokens;
        let texts = [&reply.content, &reply.reasoning, &reply.refusal];
        let text_tokens: u32 = texts.into_iter().flatten().map(|text| count(text)).sum();
        let call_tokens: u32 = reply
            .calls
            .iter()
            .map(|call| count(&call.name) + count(&call.arguments))
            .sum();
        text_tokens + call_tokens
    }

    fn fail(
        &self,
        failure: &Failure,
        behaviour: &Behaviour,
        watch: RequestWatch,
    ) -> io::Result<Response<Body>> {
        watch.update(|entry| entry.verdict = Verdict::Failed(failure.status));
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
            return Ok(self.send_events(response, vec![body.into()], behaviour, watch));
        }
        Ok(self.send_body(response, body.into(), behaviour, watch))
    }
}

impl ReceivedRequest {
    fn asks_for_stream(&self) -> bool {
        let request = self.parsed.as_ref();
        request.is_some_and(|request| request.get("stream") == Some(&Value::Bool(true)))
    }

    fn describe(&self, entry: &mut RecordedRequest) {
        entry.caller = self.caller;
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

/// A body that does not decompress stays as it came; the judge then refuses it as no JSON.
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
