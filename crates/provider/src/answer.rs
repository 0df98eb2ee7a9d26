//! Writes a reply as the API's JSON: one completion object, or the chunks of a stream.
//!
//! Pure. Bytes, frames and faults are the task of [`super::sending`]. Called by [`super::chat`].

use serde_json::{Map, Value, json};

use super::cache::{CacheKind, PromptUsage};
use super::judge::signature_for;
use super::script::{Reply, ToolCall};

/// Characters of a streamed delta, unless a behaviour sets another length.
const DELTA_CHARS: usize = 24;

/// Everything that an answer is made of.
#[derive(Debug)]
pub(super) struct Answer<'a> {
    pub(super) id: String,
    pub(super) model: &'a str,
    /// Unix seconds.
    pub(super) created: u64,
    /// One reply for each choice.
    pub(super) replies: Vec<Reply>,
    pub(super) prompt_usage: PromptUsage,
    pub(super) completion_tokens: u32,
    /// Whether tool calls get the signature with which they must come back.
    pub(super) with_signatures: bool,
}

impl Answer<'_> {
    /// The object of an answer without streaming.
    pub(super) fn completion(&self) -> Value {
        let choices: Vec<Value> = self
            .replies
            .iter()
            .enumerate()
            .map(|(index, reply)| {
                json!({
                    "index": index,
                    "message": self.message(reply),
                    "logprobs": null,
                    "finish_reason": finish_reason(reply),
                })
            })
            .collect();
        json!({
            "id": self.id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
            "usage": self.usage(),
            "system_fingerprint": "fp_scripted",
        })
    }

    /// The assistant message of the first choice.
    pub(super) fn first_message(&self) -> Option<Value> {
        self.replies.first().map(|reply| self.message(reply))
    }

    /// The chunks of a streamed answer. With `usage`, all of them have the key, and one more chunk
    /// without choices has the value.
    pub(super) fn chunks(&self, delta_chars: Option<usize>, usage: bool) -> Vec<Value> {
        let size = delta_chars.unwrap_or(DELTA_CHARS).max(1);
        let mut chunks = Vec::new();
        for (index, reply) in self.replies.iter().enumerate() {
            for delta in self.deltas(reply, size) {
                chunks.push(self.chunk(index, &delta, None, usage));
            }
            chunks.push(self.chunk(index, &json!({}), Some(finish_reason(reply)), usage));
        }
        if usage {
            let mut last = self.envelope();
            last.insert("choices".into(), json!([]));
            last.insert("usage".into(), self.usage());
            chunks.push(Value::Object(last));
        }
        chunks
    }

    fn message(&self, reply: &Reply) -> Value {
        let mut message = json!({
            "role": "assistant",
            "content": reply.content,
            "refusal": reply.refusal,
            "annotations": [],
        });
        if let Some(reasoning) = &reply.reasoning {
            message["reasoning_content"] = json!(reasoning);
        }
        if !reply.calls.is_empty() {
            let calls = reply
                .calls
                .iter()
                .map(|call| self.call(call, &call.arguments));
            message["tool_calls"] = calls.collect();
        }
        message
    }

    fn call(&self, call: &ToolCall, arguments: &str) -> Value {
        let mut object = json!({
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": arguments},
        });
        if self.with_signatures {
            object["extra_content"] =
                json!({"google": {"thought_signature": signature_for(&call.id)}});
        }
        object
    }

    fn deltas(&self, reply: &Reply, size: usize) -> Vec<Value> {
        let mut deltas = vec![json!({"role": "assistant", "content": "", "refusal": null})];
        for text in split(reply.reasoning.as_deref().unwrap_or_default(), size) {
            deltas.push(json!({ "reasoning_content": text }));
        }
        for text in split(reply.content.as_deref().unwrap_or_default(), size) {
            deltas.push(json!({ "content": text }));
        }
        if let Some(refusal) = &reply.refusal {
            deltas.push(json!({ "refusal": refusal }));
        }
        for (index, call) in reply.calls.iter().enumerate() {
            let mut first = self.call(call, "");
            first["index"] = json!(index);
            deltas.push(json!({ "tool_calls": [first] }));
            for text in split(&call.arguments, size) {
                let part = json!({"index": index, "function": {"arguments": text}});
                deltas.push(json!({ "tool_calls": [part] }));
            }
        }
        deltas
    }

    fn chunk(&self, index: usize, delta: &Value, finish: Option<&str>, usage: bool) -> Value {
        let mut chunk = self.envelope();
        let choice =
            json!({"index": index, "delta": delta, "logprobs": null, "finish_reason": finish});
        chunk.insert("choices".into(), json!([choice]));
        if usage {
            chunk.insert("usage".into(), Value::Null);
        }
        Value::Object(chunk)
    }

    fn envelope(&self) -> Map<String, Value> {
        let mut envelope = Map::new();
        envelope.insert("id".into(), json!(self.id));
        envelope.insert("object".into(), json!("chat.completion.chunk"));
        envelope.insert("created".into(), json!(self.created));
        envelope.insert("model".into(), json!(self.model));
        envelope.insert("system_fingerprint".into(), json!("fp_scripted"));
        envelope
    }

    /// In the words of the provider whose cache is simulated.
    fn usage(&self) -> Value {
        let prompt = self.prompt_usage;
        let mut usage = json!({
            "prompt_tokens": prompt.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": prompt.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": prompt.cached_tokens, "audio_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
        });
        if let Some(written) = prompt.written_tokens() {
            usage["prompt_tokens_details"]["cache_write_tokens"] = json!(written);
        }
        match prompt.kind {
            CacheKind::Steps | CacheKind::Breakpoints => {}
            CacheKind::Units => {
                usage["prompt_tokens_details"].take();
                usage["prompt_cache_hit_tokens"] = json!(prompt.cached_tokens);
                usage["prompt_cache_miss_tokens"] = json!(prompt.uncached_tokens());
            }
            CacheKind::Marks => return self.usage_of_marks(),
        }
        usage
    }

    /// As Anthropic reports it: the input without what was read or written.
    fn usage_of_marks(&self) -> Value {
        let prompt = self.prompt_usage;
        let written = prompt.written_tokens().unwrap_or_default();
        json!({
            "input_tokens": prompt.uncached_tokens() - written,
            "cache_read_input_tokens": prompt.cached_tokens,
            "cache_creation_input_tokens": written,
            "cache_creation": {
                "ephemeral_5m_input_tokens": written - prompt.hour_tokens,
                "ephemeral_1h_input_tokens": prompt.hour_tokens,
            },
            "output_tokens": self.completion_tokens,
            "service_tier": "standard",
        })
    }
}

fn finish_reason(reply: &Reply) -> &'static str {
    match reply.finish {
        Some(finish) => finish,
        None if reply.calls.is_empty() => "stop",
        None => "tool_calls",
    }
}

/// Pieces of `size` characters.
fn split(text: &str, size: usize) -> Vec<String> {
    let mut pieces = Vec::new();
    let mut characters = text.chars().peekable();
    while characters.peek().is_some() {
        pieces.push(characters.by_ref().take(size).collect());
    }
    pieces
}
