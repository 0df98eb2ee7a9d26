//! Reads recorded conversations.

use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;

use diarist_provider::Conversation;

/// The first `limit` conversations of `file`.
///
/// # Errors
///
/// A file that cannot be read, a line that is not a conversation (with its number), or no
/// conversation at all.
pub(super) fn read(file: &Path, limit: Option<usize>) -> anyhow::Result<Vec<Conversation>> {
    let text =
        std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let mut conversations = Vec::new();
    for (at, line) in text.lines().enumerate() {
        if limit.is_some_and(|limit| conversations.len() >= limit) {
            break;
        }
        if line.trim().is_empty() {
            continue;
        }
        let place = || format!("{}, line {}", file.display(), at + 1);
        let conversation: Conversation = serde_json::from_str(line)
            .with_context(|| format!("{}: not a conversation", place()))?;
        if let Some(defect) = defect(&conversation) {
            bail!("{}: {defect}", place());
        }
        conversations.push(conversation);
    }
    ensure!(
        !conversations.is_empty(),
        "{} contains no conversation",
        file.display()
    );
    Ok(conversations)
}

/// Why a conversation cannot be played.
fn defect(conversation: &Conversation) -> Option<String> {
    let roleless = |message: &Value| message.get("role").and_then(Value::as_str).is_none();
    if let Some(at) = conversation.messages.iter().position(roleless) {
        return Some(format!("message {} has no role", at + 1));
    }
    if conversation.requests().next().is_none() {
        return Some(
            "it has no assistant message after another message, so there is nothing to request"
                .to_owned(),
        );
    }
    None
}
