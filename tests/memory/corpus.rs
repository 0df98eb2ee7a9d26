//! What real programs said, as conversations that a client of a test can grow, edit and go back in.
//!
//! Plain: a conversation is what the longest request of each recording holds, one recording behind the other. What a
//! program does to its history is judged in `alignment`.

use std::collections::BTreeMap;

use diarist_provider::Conversation;
use serde_json::Value;

use crate::alignment::corpus::requests_of;
use crate::alignment::inflate::Inflate;
use crate::alignment::replayed::RecordedRequest;

/// Programs that speak one after the other, so that each conversation is long. All send text as strings.
const PROGRAMS: [[&str; 3]; 3] = [
    ["aider", "continue", "cline"],
    ["codex", "opencode", "langchain"],
    ["autogen", "openai-agents", "ai-sdk"],
];

/// One for each row of programs.
pub fn conversations() -> Vec<Conversation> {
    PROGRAMS.iter().map(|row| conversation(row)).collect()
}

fn conversation(programs: &[&str]) -> Conversation {
    let mut whole = Conversation {
        id: programs.join("+"),
        source: "tests/corpus".to_owned(),
        tools: None,
        messages: Vec::new(),
        facts: Vec::new(),
    };
    for longest in programs
        .iter()
        .flat_map(|program| longest_requests(program))
    {
        let mut body = longest.body;
        let mut inflate = Inflate::new(&longest.run);
        for message in body["messages"].as_array().unwrap() {
            if message["role"] == "assistant" {
                inflate.reply(message);
            }
        }
        inflate.request(&mut body);
        let all = body["messages"].as_array().unwrap();
        if whole.messages.is_empty() {
            whole.messages.push(all[0].clone());
        }
        whole.tools = whole.tools.or_else(|| body.get("tools").cloned());
        whole.messages.extend(finished(all));
    }
    whole
}

/// The request with the most messages of each run.
fn longest_requests(program: &str) -> Vec<RecordedRequest> {
    let mut runs = BTreeMap::new();
    for request in requests_of(program) {
        let length = |it: &RecordedRequest| it.body["messages"].as_array().map_or(0, Vec::len);
        let known = runs.get(&request.run).map_or(0, length);
        if length(&request) > known {
            runs.insert(request.run.clone(), request);
        }
    }
    runs.into_values().collect()
}

/// What was said up to the last answer that calls nothing, without instructions.
fn finished(all: &[Value]) -> Vec<Value> {
    let is_final =
        |message: &Value| message["role"] == "assistant" && message.get("tool_calls").is_none();
    let end = all.iter().rposition(is_final).map_or(0, |last| last + 1);
    let messages = all[..end].iter();
    let messages =
        messages.filter(|message| message["role"] != "system" && message["role"] != "developer");
    messages.cloned().collect()
}
