//! What the prompt cache of the scripted provider did, and why: the truth that the audit is judged by.
//!
//! It is found in the provider's record, in the body that the client sent and in the body that the provider received.
//! Nothing of the code under test is asked.

use std::sync::Arc;

use diarist_provider::{
    CacheKind, Lost, PromptUsage, RecordedRequest, SimulatedCache, estimate_tokens,
};
use serde_json::{Value, json};

/// Anthropic counts in single tokens. Less than expected by so many still counts as all.
const STEP: u32 = 128;

/// One answered request of a conversation.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// The client's body.
    pub sent: Value,
    /// What the provider received, and what its cache did.
    pub record: Arc<RecordedRequest>,
    /// The client asked for no memory.
    pub is_off: bool,
    /// The client went back to an earlier point.
    pub went_back: bool,
    /// More time passed since the request before than the provider keeps a prompt.
    pub is_late: bool,
    /// The answer said how many tokens it took.
    pub has_usage: bool,
}

/// The verdict that the audit should give, and the cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Truth {
    pub verdict: &'static str,
    pub cause: Option<&'static str>,
}

impl Truth {
    /// The cause, or the verdict where none is needed.
    pub fn label(self) -> &'static str {
        self.cause.unwrap_or(self.verdict)
    }
}

/// One conversation: its request before, and a cache that knows nothing else and forgets nothing.
pub struct Conversation {
    before: Option<Exchange>,
    ideal: SimulatedCache,
}

impl Default for Conversation {
    fn default() -> Self {
        Self {
            before: None,
            ideal: SimulatedCache::new(&estimate_tokens()),
        }
    }
}

impl Conversation {
    /// The truth about its next request.
    pub fn next(&mut self, now: Exchange) -> Truth {
        let received = now.received();
        let request = received.as_object().unwrap();
        let owner = ("", now.model());
        let (ideal, stored) = self.ideal.read(now.usage().kind, owner, request);
        self.ideal.store(&stored);
        let before = self.before.as_ref();
        let allowed = before.map_or(0, |before| {
            // Any beginning can be read, or whole prefixes only.
            let common = match now.usage().kind {
                CacheKind::Steps | CacheKind::Units => read_after(before, &now),
                CacheKind::Breakpoints | CacheKind::Marks => common_messages(before, &now),
            };
            let allowed = ideal.cached_tokens.min(common);
            let is_long = allowed >= now.usage().kind.minimum_tokens(now.model());
            if is_long { allowed } else { 0 }
        });
        let truth = truth(before, &now, allowed);
        self.before = Some(now);
        truth
    }
}

/// The truth about `now`, which came after `before` in its conversation. Of what both have in common, a cache that forgets
/// nothing would have given back `allowed` tokens.
fn truth(before: Option<&Exchange>, now: &Exchange, allowed: u32) -> Truth {
    let new_truth = |verdict, cause| Truth { verdict, cause };
    if !now.has_usage {
        return new_truth("unknown", None);
    }
    let Some(before) = before else {
        return new_truth("cold_start", None);
    };
    let (left, usage) = (before.usage(), now.usage());
    let verdict = if usage.cached_tokens == 0 {
        "miss"
    } else {
        "partial"
    };
    if usage.cached_tokens == 0 && (lacks_marks(before) || lacks_marks(now)) {
        return new_truth(verdict, Some("cache_marks"));
    }
    let expected = left.stored_tokens.min(usage.prompt_tokens);
    let is_short = expected < usage.kind.minimum_tokens(now.model());
    if usage.cached_tokens == 0 && is_short {
        return new_truth(verdict, Some("below_minimum"));
    }
    let step = usage
        .kind
        .step_tokens()
        .max(if usage.kind == CacheKind::Marks {
            STEP
        } else {
            1
        });
    let is_less_than = |tokens: u32| usage.cached_tokens + step < tokens - tokens % step;
    if !is_less_than(expected) {
        return new_truth("warm", None);
    }
    let cause = if before.model() != now.model() {
        "model_changed"
    } else if now.is_late && usage.lost == Some(Lost::Expired) && is_less_than(allowed) {
        "idle"
    } else if let Some(cause) = change(before, now) {
        cause
    } else if usage.kind == CacheKind::Marks && allowed < left.stored_tokens {
        "cache_marks"
    } else if usage.lost == Some(Lost::Forgotten) {
        "provider"
    } else {
        "nothing that the provider knows"
    };
    new_truth(verdict, Some(cause))
}

/// What a cache that holds `before` and nothing else gives back of `now`.
fn read_after(before: &Exchange, now: &Exchange) -> u32 {
    let mut cache = SimulatedCache::new(&estimate_tokens());
    let mut read = |exchange: &Exchange| {
        let received = exchange.received();
        let request = received.as_object().unwrap();
        let (usage, stored) = cache.read(now.usage().kind, ("", ""), request);
        cache.store(&stored);
        usage.cached_tokens
    };
    read(before);
    read(now)
}

/// Tokens of the beginning that two prompts have in common, in whole messages.
fn common_messages(before: &Exchange, now: &Exchange) -> u32 {
    let (old, mut new) = (before.received(), now.received());
    let same = |name: &str| old[name] == new[name];
    if !same("tools") || !same("functions") {
        return 0;
    }
    let count = messages(&old)
        .iter()
        .zip(&messages(&new))
        .take_while(|(old, new)| old == new)
        .count();
    new["messages"].as_array_mut().unwrap().truncate(count);
    let mut cache = SimulatedCache::new(&estimate_tokens());
    let request = new.as_object().unwrap();
    let (usage, _) = cache.read(now.usage().kind, ("", ""), request);
    usage.prompt_tokens
}

/// The provider stores up to marks, the prompt is long enough, and nothing of it is stored.
fn lacks_marks(exchange: &Exchange) -> bool {
    let usage = exchange.usage();
    let is_long = usage.prompt_tokens >= usage.kind.minimum_tokens(exchange.model());
    usage.kind == CacheKind::Marks && is_long && usage.stored_tokens == 0
}

impl Exchange {
    pub fn usage(&self) -> PromptUsage {
        self.record.prompt_usage.unwrap()
    }

    pub fn model(&self) -> &str {
        self.record.model.as_deref().unwrap()
    }

    fn client_messages(&self) -> Vec<Value> {
        messages(&self.sent)
    }

    fn received(&self) -> Value {
        self.record.json().unwrap()
    }

    /// How many of the client's messages behind its system message the provider did not receive.
    pub fn replaced(&self) -> usize {
        let received = messages(&self.received());
        let all = self.client_messages();
        let first = all.iter().position(|message| message["role"] != "system");
        let behind = &all[first.unwrap_or(all.len())..];
        let stays = |message: &&Value| received.contains(message);
        behind
            .iter()
            .rposition(|message| !stays(&message))
            .map_or(0, |last| last + 1)
    }

    /// The text that stands in place of messages, up to its last observation.
    fn observations(&self) -> Option<String> {
        let client = self.client_messages();
        let received = messages(&self.received());
        let mut ours = received
            .iter()
            .filter(|message| !client.contains(message))
            .filter_map(|message| message["content"].as_str());
        let text = ours.find(|text| text.contains("<observations>"))?;
        let hints = ["\n<current-task>\n", "\n<suggested-response>\n"];
        let end = hints.iter().filter_map(|tag| text.find(tag)).min();
        Some(text[..end.unwrap_or(text.len())].trim_end().to_owned())
    }
}

/// The cause that lies in the prompt; `None` if it only grew.
fn change(before: &Exchange, now: &Exchange) -> Option<&'static str> {
    let (old_body, new_body) = (before.received(), now.received());
    if ["tools", "functions", "response_format"]
        .iter()
        .any(|name| old_body[name] != new_body[name])
    {
        return Some("tools_changed");
    }
    let (old, new) = (messages(&old_body), messages(&new_body));
    let at = (0..old.len()).find(|at| new.get(*at) != old.get(*at))?;
    let by_client = if now.went_back {
        "forked"
    } else if has_insertion(before, now) {
        "message_inserted"
    } else {
        "message_changed"
    };
    let is_ours = |exchange: &Exchange, message: Option<&Value>| {
        message.is_some_and(|message| !exchange.client_messages().contains(message))
    };
    let (was_ours, is_ours) = (is_ours(before, old.get(at)), is_ours(now, new.get(at)));
    if !was_ours && !is_ours && old[at]["role"] == "system" {
        return Some("system_changed");
    }
    // The observations stand for what was replaced. If the client changed none of that, they changed by themselves.
    let behind = |exchange: &Exchange| {
        let all = exchange.client_messages();
        all.into_iter()
            .skip_while(|message| message["role"] == "system")
            .collect::<Vec<_>>()
    };
    let (old, new) = (behind(before), behind(now));
    let kept = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let replaced = before.replaced().max(now.replaced());
    if kept < old.len() && (kept < replaced || !was_ours && !is_ours) {
        return Some(by_client);
    }
    Some(match (before.observations(), now.observations()) {
        (None, Some(_)) if before.is_off => "memory_switched",
        (_, None) => "memory_switched",
        (Some(old), Some(new)) if !new.starts_with(&old) => "reflection",
        (_, Some(_)) => "activation",
    })
}

/// Whether the client put something in front of messages that it had sent, and changed none of them.
fn has_insertion(before: &Exchange, now: &Exchange) -> bool {
    let (old, mut new) = (before.client_messages(), now.client_messages());
    if let Some(first) = old.iter().zip(&new).position(|(old, new)| old != new) {
        // Without what is new in front of the next old message, everything stands as it was.
        let Some(again) = new.iter().skip(first).position(|it| *it == old[first]) else {
            return false;
        };
        new.drain(first..first + again);
        return new.starts_with(&old);
    }
    false
}

/// The messages without marks, text as one string.
fn messages(body: &Value) -> Vec<Value> {
    let all = body["messages"].as_array().unwrap();
    all.iter().map(plain).collect()
}

fn plain(message: &Value) -> Value {
    let mut message = message.clone();
    if let Some(parts) = message["content"].as_array() {
        let text = parts
            .iter()
            .map(|part| part["text"].as_str().unwrap())
            .collect::<String>();
        message["content"] = json!(text);
    }
    message.as_object_mut().unwrap().remove("cache_control");
    message
}
