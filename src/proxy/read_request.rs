//! Reads a chat completion for memory: identifies its owner and conversation, parses its body, and looks it up.
//!
//! Decides whether memory applies at all, and in which mode. Chooses no snapshot: that is
//! [`super::select_memory`]. Called by `chat_completions` and `dry_run`.

mod possible_answers;

use std::sync::Arc;

use http::HeaderName;
use http::request::Parts;

use self::possible_answers::possible_answer_marks;
use super::answer_position::AnswerPosition;
use super::audit_entry::AuditEntry;
use super::cache_verdict::PromptSource;
use super::holdout;
use super::identify::{
    Identity, OffReason, Sources, Thread, find_thread, identify, identify_owner,
};
use super::memory::{Memory, MemoryRequest, RequestPolicy, SessionAffinity};
use super::mode::{self, DecidedBy, Mode, ModeDecision};
use super::peer_memory;
use super::received_body::ReceivedBody;
use crate::history::{History, MessageKey, Scope, ScopedHash};
use crate::lookup::{Lookup, LookupParams, Sender, anchors, answer_contents};
use crate::memory::alignment::Alignment;
use crate::memory::policy as providers;
use crate::store::LookupKeys;
use crate::wire;

/// The result of reading a request.
#[derive(Default)]
pub(super) struct ReadRequest {
    /// The request, if memory applies to it.
    pub(super) request: Option<Arc<MemoryRequest>>,
    /// Where its answer stands in its conversation; `None` if memory is disabled or the owner is
    /// not known.
    pub(super) answer_position: Option<AnswerPosition>,
    /// What the audit compares of it; `None` if it could not be parsed.
    pub(super) prompt: Option<PromptSource>,
}

impl ReadRequest {
    /// A request of `identity` without memory. If its body cannot be parsed, its history is empty, and only its
    /// answer is tracked.
    async fn parse_without_memory(
        memory: &Memory,
        parts: &Parts,
        received: &ReceivedBody,
        (mut identity, policy): (Identity, &RequestPolicy),
        entry: &mut AuditEntry,
    ) -> Self {
        let scope = &identity.scope;
        entry.set_tenant(scope);
        let Ok((parsed, history)) = received.parse(memory, scope).await else {
            return Self::without_memory(memory, scope, History::chain(scope, Vec::new()));
        };
        entry.set_model(&parsed);
        identity.thread = named_thread(memory, parts, &parsed, (scope, &policy.sources));
        entry.set_thread(&identity.thread, &history);
        Self::look_up_without_memory(memory, policy, &identity, (parsed, history)).await
    }

    /// A request without memory that was parsed. It is looked up all the same: it may belong to a conversation whose memory
    /// is proven by its words. If it does, they stay words of this conversation. Otherwise they are another one's, and prove
    /// nothing any more.
    async fn look_up_without_memory(
        memory: &Memory,
        policy: &RequestPolicy,
        identity: &Identity,
        (parsed, history): (wire::Request, History),
    ) -> Self {
        let (scope, thread) = (&identity.scope, &identity.thread);
        if history.is_empty() {
            return Self::of_parsed_without_memory(memory, scope, (parsed, history), thread);
        }
        let client_history = Arc::new(history);
        let request = (&parsed, &client_history);
        let found = find_conversation(memory, policy, identity, request, Mode::Off).await;
        match found {
            Ok(found) => Self {
                request: None,
                answer_position: Some(found.answer_position),
                prompt: Some(PromptSource::new(
                    &Arc::new(parsed),
                    &client_history,
                    thread,
                    thread.child,
                    false,
                )),
            },
            Err(Forgotten { .. }) => Self::of_parsed_without_memory(
                memory,
                scope,
                (parsed, Arc::unwrap_or_clone(client_history)),
                thread,
            ),
        }
    }

    /// A request without memory that was parsed and is not looked up.
    fn of_parsed_without_memory(
        memory: &Memory,
        scope: &Scope,
        (parsed, history): (wire::Request, History),
        thread: &Thread,
    ) -> Self {
        let prompt = PromptSource::new(&Arc::new(parsed), &history, thread, thread.child, false);
        Self {
            prompt: Some(prompt),
            ..Self::without_memory(memory, scope, history)
        }
    }

    /// The request of a conversation that was forgotten, and so is its answer.
    fn forgotten(mut self, memory: &Memory, receipt: i64) -> Self {
        if let Some(position) = &mut self.answer_position {
            position.forget_answers(&memory.tombstones, receipt);
        }
        self
    }

    /// A request without memory. Its answer is tracked all the same: it may prove later that another request
    /// belongs to this conversation.
    fn without_memory(memory: &Memory, scope: &Scope, history: History) -> Self {
        let is_stranger = !memory.accepted_tenants.contains(&scope.tenant);
        Self {
            request: None,
            answer_position: Some(AnswerPosition::without_memory(
                (&memory.cache, memory.pepper()),
                scope,
                history,
                is_stranger,
            )),
            prompt: None,
        }
    }
}

/// Identifies and parses a request, and looks up what is known of its conversation. If memory does not
/// apply, the audit entry has the reason.
pub(super) async fn read_request(
    memory: &Memory,
    parts: &Parts,
    received: &ReceivedBody,
    entry: &mut AuditEntry,
) -> ReadRequest {
    // Read once: a reload applies from the next request on.
    let policy = memory.policy.current();
    if !memory.enabled {
        entry.set_off(OffReason::Disabled);
        let read = read_for_audit(memory, parts, received, &policy, entry);
        let prompt = Box::pin(read).await;
        return ReadRequest {
            prompt,
            ..ReadRequest::default()
        };
    }
    match parse_for_memory(memory, parts, received, &policy, entry).await {
        Ok(parsed) => look_up(memory, parts, policy, parsed, entry).await,
        Err(without_memory) => without_memory,
    }
}

/// A request for which memory is on, before anything was looked up.
struct ParsedForMemory {
    identity: Identity,
    parsed: wire::Request,
    history: History,
    model: String,
    decided: ModeDecision,
}

/// Identifies and parses a request, and decides its mode. `Err` is no failure: it holds the request if memory does not
/// apply to it.
async fn parse_for_memory(
    memory: &Memory,
    parts: &Parts,
    received: &ReceivedBody,
    policy: &RequestPolicy,
    entry: &mut AuditEntry,
) -> Result<ParsedForMemory, ReadRequest> {
    let mut identity = identify_or_track(memory, parts, received, policy, entry).await?;
    let (parsed, history) = match received.parse(memory, &identity.scope).await {
        Ok(read) => read,
        Err(reason) => {
            entry.set_bypass(reason.to_string());
            let nothing = History::chain(&identity.scope, Vec::new());
            return Err(ReadRequest::without_memory(
                memory,
                &identity.scope,
                nothing,
            ));
        }
    };
    identity.thread = named_thread(memory, parts, &parsed, (&identity.scope, &policy.sources));
    if let Some(token_error) = identity.token_error {
        // An invalid token counts as an ordinary credential. The audit says why it was not used.
        let ignored = format!("authorization:{}", token_error.name());
        identity.thread.ignored.push(ignored);
    }
    entry.set_parsed(&identity, &parsed, &history);
    if history.is_empty() {
        entry.set_bypass("no_history".to_owned());
        let (scope, thread) = (&identity.scope, &identity.thread);
        let read = (parsed, history);
        return Err(ReadRequest::of_parsed_without_memory(
            memory, scope, read, thread,
        ));
    }
    let model = parsed.model().unwrap_or_default().to_owned();
    let decided = mode::decide(
        &policy.rules,
        policy.read_only.is_read_only(&model),
        parts,
        &model,
    );
    entry.set_mode(decided);
    if decided.mode == Mode::Off {
        entry.set_off(match decided.by {
            DecidedBy::Rule(_) => OffReason::Rule,
            _ => OffReason::ByHeader,
        });
        let read = (parsed, history);
        let read = ReadRequest::look_up_without_memory(memory, policy, &identity, read);
        return Err(Box::pin(read).await);
    }
    Ok(ParsedForMemory {
        identity,
        parsed,
        history,
        model,
        decided,
    })
}

/// What is known of the conversation of a request.
struct FoundConversation {
    lookup: Lookup,
    alignment: Option<Alignment>,
    /// The chain that memory knows it by.
    history: Arc<History>,
    answer_position: AnswerPosition,
    /// The hash of its first leading system message.
    system: Option<ScopedHash>,
}

/// The conversation of a request was forgotten: its receipt.
struct Forgotten {
    receipt: i64,
}

/// Looks up what is known of the conversation of a request, unless that was forgotten.
async fn find_conversation(
    memory: &Memory,
    policy: &RequestPolicy,
    identity: &Identity,
    (parsed, client_history): (&wire::Request, &Arc<History>),
    mode: Mode,
) -> Result<FoundConversation, Forgotten> {
    let pepper = policy.identity.pepper;
    let answer_marks = |is_ending_known: &dyn Fn(&ScopedHash) -> bool| {
        possible_answer_marks(parsed, client_history, &pepper, is_ending_known)
    };
    let lookup_keys = || {
        // Also answers that were forgotten.
        let answers = answer_marks(&|_| true).marks;
        LookupKeys {
            anchors: anchors(client_history, 0).collect(),
            answer_contents: answer_contents(client_history, &answers),
            answers,
            thread_key: identity.thread.key.clone(),
            ..LookupKeys::default()
        }
    };
    let links = client_history.messages().iter().map(|chained| chained.link);
    let scope = &identity.scope;
    if let Some(receipt) = memory.tombstones.receipt_for(scope, links, lookup_keys) {
        return Err(Forgotten { receipt });
    }
    let first = parsed.leading_messages().messages().first();
    let system =
        first.map(|message| MessageKey::from_message(&client_history.root(), message).content);
    let sender = Sender {
        is_stranger: !memory.accepted_tenants.contains(&scope.tenant),
        may_be_stored: mode == Mode::On,
    };
    let params = LookupParams {
        model: parsed.model().unwrap_or_default(),
        thread_key: identity.thread.key.as_deref(),
        system,
        level: policy.evidence,
        sender,
        account: identity.account,
        marks_quotations: mode != Mode::Off,
    };
    let pending_lookup = memory.cache.look_up(scope, client_history, params, || {
        answer_marks(&|ending| memory.cache.may_know_ending(scope, ending))
    });
    let (lookup, alignment) = pending_lookup.await;
    let history = alignment.as_ref().map_or_else(
        || Arc::clone(client_history),
        |alignment| Arc::clone(&alignment.history),
    );
    let origins = lookup.origins.clone();
    let answer_position = AnswerPosition::new(
        (&memory.cache, pepper),
        (scope, sender),
        (client_history, origins),
        &history,
    );
    Ok(FoundConversation {
        lookup,
        alignment,
        history,
        answer_position,
        system,
    })
}

/// Looks up what is known of the conversation of a request, and decides what memory may do for it.
async fn look_up(
    memory: &Memory,
    parts: &Parts,
    policy: Arc<RequestPolicy>,
    request: ParsedForMemory,
    entry: &mut AuditEntry,
) -> ReadRequest {
    let ParsedForMemory {
        identity,
        parsed,
        history: client_history,
        model,
        mut decided,
    } = request;
    let client_history = Arc::new(client_history);
    let request = (&parsed, &client_history);
    let found = find_conversation(memory, &policy, &identity, request, decided.mode).await;
    let FoundConversation {
        mut lookup,
        alignment,
        history,
        answer_position,
        system,
    } = match found {
        Ok(found) => found,
        Err(Forgotten { receipt }) => {
            entry.set_bypass("forgotten".to_owned());
            let read = (parsed, Arc::unwrap_or_clone(client_history));
            let (scope, thread) = (&identity.scope, &identity.thread);
            let read = ReadRequest::of_parsed_without_memory(memory, scope, read, thread);
            return read.forgotten(memory, receipt);
        }
    };
    entry.set_parsed(&identity, &parsed, &history);
    if identity.thread.child && alignment.is_some() && decided.mode == Mode::On {
        // A sub-agent does not continue the conversation that it works for, but its messages would be
        // recorded there.
        (decided.mode, decided.by) = (Mode::Read, DecidedBy::Child);
        entry.set_mode(decided);
    }
    let writes = decided.mode == Mode::On;
    let held_out = if writes {
        holdout::is_held_out(policy.holdout, &identity, &history, &lookup)
    } else {
        None
    };
    entry.set_holdout(held_out);
    let held_out = held_out == Some(true);
    if held_out {
        lookup.peer_intro = None;
    } else if writes {
        entry.set_notice(memory.jobs.notice(&identity.scope.tenant, &model));
    }
    peer_memory::filter_candidates(memory, &identity, writes, &mut lookup);
    let parsed = Arc::new(parsed);
    let is_side_task = matches!(decided.by, DecidedBy::Task | DecidedBy::Child);
    let is_side_task = is_side_task || identity.thread.child;
    let prompt = PromptSource::new(&parsed, &history, &identity.thread, is_side_task, true);
    let affinity_header = affinity_header(memory, parts, &parsed, &policy);
    let request = MemoryRequest {
        affinity_header,
        writes,
        held_out,
        policy,
        identity,
        parsed,
        history,
        alignment: alignment.map(Arc::new),
        lookup,
        system,
        model,
    };
    ReadRequest {
        request: Some(Arc::new(request)),
        answer_position: Some(answer_position),
        prompt: Some(prompt),
    }
}

/// Who the request belongs to. Without an identity, or where memory is off for it, the request is read without memory.
/// `Err` is no failure: it holds the request if memory does not apply to it.
async fn identify_or_track(
    memory: &Memory,
    parts: &Parts,
    received: &ReceivedBody,
    policy: &RequestPolicy,
    entry: &mut AuditEntry,
) -> Result<Identity, ReadRequest> {
    let off_by_header = mode::from_header(&parts.headers) == Some(Mode::Off);
    let identity = identify(&parts.headers, parts.uri.query(), &policy.identity);
    let identity = match identity {
        Ok(identity) => identity,
        Err(off) => {
            entry.set_off(if off_by_header {
                OffReason::ByHeader
            } else {
                off
            });
            let Ok(owner) = identify_owner(&parts.headers, parts.uri.query(), &policy.identity)
            else {
                return Err(ReadRequest::default());
            };
            let owner = (owner, policy);
            return Err(Box::pin(ReadRequest::parse_without_memory(
                memory, parts, received, owner, entry,
            ))
            .await);
        }
    };
    entry.set_tenant(&identity.scope);
    let off = match off_by_header {
        true => Some(OffReason::ByHeader),
        false if memory.capabilities.is_signing(&identity.scope.tenant) => Some(OffReason::Signed),
        false if !memory.has_room_for_tenant(&identity, policy) => Some(OffReason::TooManyTenants),
        false => None,
    };
    if let Some(off) = off {
        entry.set_off(off);
        let owner = (identity, policy);
        let read = ReadRequest::parse_without_memory(memory, parts, received, owner, entry);
        return Err(Box::pin(read).await);
    }
    Ok(identity)
}

/// The header that tells the provider which conversation it is; `None` if the client says that itself, in this header or
/// in the field that stands for it.
fn affinity_header(
    memory: &Memory,
    parts: &Parts,
    parsed: &wire::Request,
    policy: &RequestPolicy,
) -> Option<HeaderName> {
    let header = match &policy.session_affinity {
        SessionAffinity::Never => return None,
        SessionAffinity::Documented => {
            HeaderName::from_static(providers::affinity_header(&memory.sent_prompts.host)?)
        }
        SessionAffinity::Header(header) => header.clone(),
    };
    let is_open = !parts.headers.contains_key(&header) && parsed.field("session_id").is_none();
    is_open.then_some(header)
}

/// The conversation's name, unless too many conversations of the owner use it.
fn named_thread(
    memory: &Memory,
    parts: &Parts,
    parsed: &wire::Request,
    (scope, sources): (&Scope, &Sources),
) -> Thread {
    let mut thread = find_thread(&parts.headers, parsed, sources);
    let is_shared = |key: &String| memory.cache.is_shared_thread_key(scope, key);
    if thread.key.as_ref().is_some_and(is_shared) {
        thread.drop_key();
    }
    thread
}

/// Notes whose request it is, its conversation and model, for the audit of a process without memory. Returns what is
/// compared of it: without memory the provider's cache matters as much.
async fn read_for_audit(
    memory: &Memory,
    parts: &Parts,
    received: &ReceivedBody,
    policy: &RequestPolicy,
    entry: &mut AuditEntry,
) -> Option<PromptSource> {
    // Nothing else needs the body.
    memory.audit.as_ref()?;
    let owner = identify_owner(&parts.headers, parts.uri.query(), &policy.identity).ok()?;
    entry.set_tenant(&owner.scope);
    if let Ok((parsed, history)) = received.parse(memory, &owner.scope).await {
        entry.set_model(&parsed);
        let thread = named_thread(memory, parts, &parsed, (&owner.scope, &policy.sources));
        entry.set_thread(&thread, &history);
        let parsed = Arc::new(parsed);
        return Some(PromptSource::new(
            &parsed,
            &history,
            &thread,
            thread.child,
            false,
        ));
    }
    if let Some(outline) = received.outline(memory).await {
        entry.set_outline(outline);
    }
    None
}
