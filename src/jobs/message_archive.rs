//! Keeps the texts of messages, if the operator wants that (`memory.keep_messages`), so that a
//! range can be observed although its client no longer sends it.
//!
//! A text is kept as the Observer would see it: without secrets, and with the names of attachments
//! only. System messages of the application are kept word for word, as the log has them. The
//! recorder writes a text when its message is confirmed. Nobody but the Observer gets it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::base::Base;
use super::clock::millis;
use super::exchange::Exchange;
use super::payload::MessageSource;
use super::settings::ArchivePolicy;
use crate::history::{AttachmentKind, Link, Media, MessagePiece, PlainText, Role};
use crate::memory::redact::Redactor;
use crate::memory::{Node, Span};
use crate::store::StoreResult;

/// How often texts that have expired are deleted.
const EXPIRY_INTERVAL: Duration = Duration::from_mins(1);

/// The most texts that one transaction deletes.
const TEXTS_AT_ONCE: u32 = 300;

#[derive(Serialize, Deserialize)]
struct ArchivedMessage {
    role: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    pieces: Vec<ArchivedPiece>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ArchivedPiece {
    Text(String),
    Refusal(String),
    Call {
        id: String,
        name: String,
        arguments: String,
    },
    Result(String),
    Image(String),
    Audio(String),
    File(String),
    Unknown(String),
}

/// Keeps the texts of messages, and deletes them when their time is over.
#[derive(Clone)]
pub(super) struct MessageArchive {
    base: Base,
}

impl MessageArchive {
    pub(super) fn new(base: &Base) -> Self {
        Self { base: base.clone() }
    }

    /// The texts of the messages that `exchange` confirms (`confirmed`), if they are to be kept.
    pub(super) async fn texts_to_keep(
        &self,
        exchange: &Exchange,
        nodes: &[Node],
        confirmed: &[Link],
    ) -> Vec<(Link, String)> {
        let settings = self.base.settings();
        if settings.keep_messages == ArchivePolicy::UntilObserved || confirmed.is_empty() {
            return Vec::new();
        }
        let confirmed: HashSet<&Link> = confirmed.iter().collect();
        let present: Vec<(Link, usize)> = nodes
            .iter()
            .enumerate()
            .filter(|(_, node)| confirmed.contains(&node.link))
            .filter_map(|(place, node)| Some((node.link, exchange.original_index(place)?)))
            .collect();
        let (parsed, options) = (Arc::clone(&exchange.parsed), Arc::clone(&settings.observer));
        let texts = tokio::task::spawn_blocking(move || {
            present
                .into_iter()
                .filter_map(|(link, index)| {
                    let spoken = parsed.reader_text(index)?;
                    Some((link, encode(&spoken, &options.redactor)))
                })
                .collect()
        });
        // If the computation panicked, the messages count as not kept.
        texts.await.unwrap_or_default()
    }

    /// Where to read the text of each message of `span`. `None` if one text is missing: its range
    /// must not count as observed without it (INV-COVER).
    pub(super) async fn locate_texts(
        &self,
        exchange: &Exchange,
        nodes: &[Node],
        span: &Span,
    ) -> Option<Vec<MessageSource>> {
        let places = span.from_count..span.to_count;
        let missing: Vec<Link> = places
            .clone()
            .filter(|place| exchange.original_index(*place).is_none())
            .map(|place| nodes[place].link)
            .collect();
        let mut archived: HashMap<Link, String> = HashMap::new();
        if !missing.is_empty() {
            match self
                .base
                .store
                .kept_messages(&exchange.scope, &missing)
                .await
            {
                Ok(found) => archived.extend(found),
                Err(error) => {
                    if !error.is_logged() {
                        tracing::warn!(%error, "archived texts of messages could not be read");
                    }
                }
            }
        }
        places
            .map(|place| match exchange.original_index(place) {
                Some(index) => Some(MessageSource::Request(index)),
                None => decode(archived.get(&nodes[place].link)?).map(MessageSource::Archived),
            })
            .collect()
    }

    /// Deletes expired texts until `stop`, while memory may be written.
    pub(super) async fn expire(self, stop: CancellationToken) {
        let mut empty_rounds = 0;
        loop {
            let policy = self.base.settings().keep_messages;
            if policy != ArchivePolicy::UntilObserved {
                empty_rounds = 0;
            }
            if let Some(max_age) = expiry_age(policy, empty_rounds)
                && !self.base.settings().read_only
            {
                match self.expire_older(max_age, &stop).await {
                    Ok(0) => empty_rounds += 1,
                    Ok(_) => empty_rounds = 0,
                    Err(error) => {
                        if !error.is_logged() {
                            tracing::warn!(%error, "expired texts of messages could not be deleted; the next round tries again");
                        }
                    }
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(EXPIRY_INTERVAL) => {}
            }
        }
    }

    /// Deletes the texts of this age, in short transactions: others write between them. Returns how many.
    async fn expire_older(
        &self,
        max_age: Duration,
        stop: &CancellationToken,
    ) -> StoreResult<usize> {
        let before_ms = self.base.now_ms().saturating_sub(millis(max_age));
        let mut count = 0;
        while !stop.is_cancelled() {
            let deleted = self
                .base
                .store
                .expire_messages(before_ms, TEXTS_AT_ONCE)
                .await?;
            if deleted.is_empty() {
                break;
            }
            self.base.cache.remove_kept_messages(&deleted);
            count += deleted.len();
        }
        Ok(count)
    }
}

/// The age from which texts are deleted now; `None` if the store need not be queried. If nothing is
/// to be kept, everything is deleted, and no text is added until the next reload. Two rounds
/// without a deletion (`empty_rounds`) are enough then: the second covers an exchange that was
/// being recorded under the old settings.
fn expiry_age(policy: ArchivePolicy, empty_rounds: u32) -> Option<Duration> {
    match policy {
        ArchivePolicy::Always => None,
        ArchivePolicy::UntilObserved => (empty_rounds < 2).then_some(Duration::ZERO),
        ArchivePolicy::For(time) => Some(time),
    }
}

fn encode(spoken: &PlainText, redactor: &Redactor) -> String {
    // The log has the application's own messages word for word.
    let clean = |text: &str| match spoken.role {
        Role::System => text.to_owned(),
        _ => redactor.clean(text),
    };
    let pieces = spoken.pieces.iter().map(|piece| match piece {
        MessagePiece::Text(text) => ArchivedPiece::Text(clean(text)),
        MessagePiece::Refusal(text) => ArchivedPiece::Refusal(clean(text)),
        MessagePiece::Call {
            id,
            name,
            arguments,
        } => ArchivedPiece::Call {
            id: id.clone(),
            name: name.clone(),
            arguments: clean(arguments),
        },
        MessagePiece::Result { id } => ArchivedPiece::Result(id.clone()),
        MessagePiece::Attachment { kind, label, .. } => match kind {
            AttachmentKind::Image => ArchivedPiece::Image(clean(label)),
            AttachmentKind::Audio => ArchivedPiece::Audio(clean(label)),
            AttachmentKind::File => ArchivedPiece::File(clean(label)),
        },
        MessagePiece::Unknown(json) => ArchivedPiece::Unknown(clean(json)),
    });
    let message = ArchivedMessage {
        role: spoken.role.name().to_owned(),
        name: spoken.name.clone(),
        pieces: pieces.collect(),
    };
    // Strings always have a JSON form.
    serde_json::to_string(&message).unwrap_or_default()
}

/// A message from the archive; `None` if the row cannot be read.
pub(super) fn decode(json: &str) -> Option<PlainText> {
    let message: ArchivedMessage = serde_json::from_str(json).ok()?;
    let attachment = |kind, label| MessagePiece::Attachment {
        kind,
        label,
        media: Media::default(),
    };
    let pieces = message.pieces.into_iter().map(|piece| match piece {
        ArchivedPiece::Text(text) => MessagePiece::Text(text),
        ArchivedPiece::Refusal(text) => MessagePiece::Refusal(text),
        ArchivedPiece::Call {
            id,
            name,
            arguments,
        } => MessagePiece::Call {
            id,
            name,
            arguments,
        },
        ArchivedPiece::Result(id) => MessagePiece::Result { id },
        ArchivedPiece::Image(label) => attachment(AttachmentKind::Image, label),
        ArchivedPiece::Audio(label) => attachment(AttachmentKind::Audio, label),
        ArchivedPiece::File(label) => attachment(AttachmentKind::File, label),
        ArchivedPiece::Unknown(json) => MessagePiece::Unknown(json),
    });
    Some(PlainText {
        role: Role::from_name(&message.role)?,
        name: message.name,
        pieces: pieces.collect(),
    })
}

/// The text of an archived message, for people.
pub fn archived_text(json: &str) -> Option<String> {
    let spoken = decode(json)?;
    let texts = spoken.pieces.iter().map(|piece| match piece {
        MessagePiece::Text(text) | MessagePiece::Refusal(text) | MessagePiece::Unknown(text) => {
            text.clone()
        }
        MessagePiece::Call {
            name, arguments, ..
        } => format!("[call of {name}: {arguments}]"),
        MessagePiece::Result { .. } => String::new(),
        MessagePiece::Attachment { label, .. } => format!("[{label}]"),
    });
    let texts: Vec<String> = texts.filter(|text| !text.is_empty()).collect();
    Some(texts.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expiry_of_unkept_messages_stops_after_two_empty_rounds() {
        let hour = Duration::from_hours(1);
        assert_eq!(
            expiry_age(ArchivePolicy::UntilObserved, 0),
            Some(Duration::ZERO)
        );
        assert_eq!(
            expiry_age(ArchivePolicy::UntilObserved, 1),
            Some(Duration::ZERO)
        );
        assert_eq!(expiry_age(ArchivePolicy::UntilObserved, 2), None);
        assert_eq!(expiry_age(ArchivePolicy::For(hour), 9), Some(hour));
        assert_eq!(expiry_age(ArchivePolicy::Always, 0), None);
    }

    #[test]
    fn an_archived_message_is_decoded_unchanged_except_for_its_secrets() {
        let secret = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKL";
        let message = |text: &str| PlainText {
            role: Role::Assistant,
            name: Some("Ann".to_owned()),
            pieces: vec![
                MessagePiece::Text(format!("The key is {text}.")),
                MessagePiece::Refusal("No.".to_owned()),
                MessagePiece::Call {
                    id: "call_1".to_owned(),
                    name: "read".to_owned(),
                    arguments: "{\"path\":\"a\"}".to_owned(),
                },
                MessagePiece::Result {
                    id: "call_0".to_owned(),
                },
                MessagePiece::Attachment {
                    kind: AttachmentKind::File,
                    label: "map.pdf".to_owned(),
                    media: Media::default(),
                },
                MessagePiece::Unknown("{}".to_owned()),
            ],
        };
        let redactor = Redactor::default();
        let written = encode(&message(secret), &redactor);
        assert!(!written.contains(secret));
        let decoded = decode(&written);
        assert_eq!(decoded, Some(message(&redactor.clean(secret))));
        assert!(archived_text(&written).is_some_and(|text| text.contains("[map.pdf]")));
        assert_eq!(decode("half a row"), None);
    }
}
