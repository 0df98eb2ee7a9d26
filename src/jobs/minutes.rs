//! What a message said, where the operator has it kept (`memory.keep_messages`): its words as the Observer
//! would be shown them, secrets taken out of all but the application's own (system) messages, which stand
//! in the log word for word, and of attachments the names alone. So a range can be observed though its
//! client no longer sends it. Written by the recorder as soon as a message is
//! confirmed; never sent to anybody but the Observer.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::Shop;
use super::intake::Exchange;
use super::payload::Words;
use super::settings::Keep;
use crate::history::{Attachment, Link, Media, Piece, Role, Spoken};
use crate::memory::redact::Redactor;
use crate::memory::{Node, Span};

/// Between two looks for what was kept long enough.
const EVERY: Duration = Duration::from_mins(1);

#[derive(Serialize, Deserialize)]
struct Minute {
    role: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    pieces: Vec<Said>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Said {
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

/// The words of those messages of `exchange` that it confirms (`confirmed`), where they are to be kept.
pub(super) async fn of(
    shop: &Shop,
    exchange: &Exchange,
    nodes: &[Node],
    confirmed: &[Link],
) -> Vec<(Link, String)> {
    let settings = shop.settings.now();
    if settings.keep == Keep::UntilObserved || confirmed.is_empty() {
        return Vec::new();
    }
    let confirmed: HashSet<&Link> = confirmed.iter().collect();
    let at_hand: Vec<(Link, usize)> = nodes
        .iter()
        .enumerate()
        .filter(|(_, node)| confirmed.contains(&node.link))
        .filter_map(|(place, node)| Some((node.link, exchange.words(place)?)))
        .collect();
    let (parsed, options) = (Arc::clone(&exchange.parsed), Arc::clone(&settings.observer));
    let written = tokio::task::spawn_blocking(move || {
        at_hand
            .into_iter()
            .filter_map(|(link, index)| {
                let spoken = parsed.told(index)?;
                Some((link, write(&spoken, &options.redactor)))
            })
            .collect()
    });
    // Without its words a message is as if they were never kept.
    written.await.unwrap_or_default()
}

/// Where the words of each message of `span` are to be read. `None` where those of one are not at hand:
/// its range must not count as observed without them (INV-COVER).
pub(super) async fn at_hand(
    shop: &Shop,
    exchange: &Exchange,
    nodes: &[Node],
    span: &Span,
) -> Option<Vec<Words>> {
    let places = span.from_count..span.to_count;
    let wanted: Vec<Link> = places
        .clone()
        .filter(|place| exchange.words(*place).is_none())
        .map(|place| nodes[place].link)
        .collect();
    let mut kept: HashMap<Link, String> = HashMap::new();
    if !wanted.is_empty() {
        match shop.store.kept(&exchange.scope, &wanted).await {
            Ok(found) => kept.extend(found),
            Err(error) => tracing::warn!(error = %error, "words that are kept could not be read"),
        }
    }
    places
        .map(|place| match exchange.words(place) {
            Some(index) => Some(Words::Sent(index)),
            None => read(kept.get(&nodes[place].link)?).map(Words::Kept),
        })
        .collect()
}

/// Deletes what was kept long enough, again and again.
pub(super) async fn expire(shop: Shop, stop: CancellationToken) {
    let mut in_vain = 0;
    loop {
        let keep = shop.settings.now().keep;
        if keep != Keep::UntilObserved {
            in_vain = 0;
        }
        if let Some(kept_for) = kept_for(keep, in_vain) {
            let kept_ms = i64::try_from(kept_for.as_millis()).unwrap_or(i64::MAX);
            let before_ms = shop.clock.now_ms().saturating_sub(kept_ms);
            match shop.store.expire(before_ms).await {
                Ok(gone) => {
                    shop.recall.expired(&gone);
                    in_vain = if gone.is_empty() { in_vain + 1 } else { 0 };
                }
                Err(error) => {
                    tracing::warn!(error = %error, "words that were kept long enough stay for now");
                }
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(EVERY) => {}
        }
    }
}

/// How long what is deleted now was kept; `None` where the store need not be asked. Where nothing is to be
/// kept everything goes, and nothing is added until the configuration is read anew: when twice nothing was
/// left, `in_vain`, what was just being recorded by the settings of before is gone as well.
fn kept_for(keep: Keep, in_vain: u32) -> Option<Duration> {
    match keep {
        Keep::Always => None,
        Keep::UntilObserved => (in_vain < 2).then_some(Duration::ZERO),
        Keep::For(time) => Some(time),
    }
}

fn write(spoken: &Spoken, redactor: &Redactor) -> String {
    // The application's own messages stand in the log word for word.
    let clean = |text: &str| match spoken.role {
        Role::System => text.to_owned(),
        _ => redactor.clean(text),
    };
    let pieces = spoken.pieces.iter().map(|piece| match piece {
        Piece::Text(text) => Said::Text(clean(text)),
        Piece::Refusal(text) => Said::Refusal(clean(text)),
        Piece::Call {
            id,
            name,
            arguments,
        } => Said::Call {
            id: id.clone(),
            name: name.clone(),
            arguments: clean(arguments),
        },
        Piece::Result { id } => Said::Result(id.clone()),
        Piece::Attachment { kind, label, .. } => match kind {
            Attachment::Image => Said::Image(clean(label)),
            Attachment::Audio => Said::Audio(clean(label)),
            Attachment::File => Said::File(clean(label)),
        },
        Piece::Unknown(json) => Said::Unknown(clean(json)),
    });
    let minute = Minute {
        role: spoken.role.name().to_owned(),
        name: spoken.name.clone(),
        pieces: pieces.collect(),
    };
    // Strings alone: always JSON.
    serde_json::to_string(&minute).unwrap_or_default()
}

/// A message as it was kept; `None` where the row cannot be read.
pub(super) fn read(words: &str) -> Option<Spoken> {
    let minute: Minute = serde_json::from_str(words).ok()?;
    let named = |kind, label| Piece::Attachment {
        kind,
        label,
        media: Media::default(),
    };
    let pieces = minute.pieces.into_iter().map(|said| match said {
        Said::Text(text) => Piece::Text(text),
        Said::Refusal(text) => Piece::Refusal(text),
        Said::Call {
            id,
            name,
            arguments,
        } => Piece::Call {
            id,
            name,
            arguments,
        },
        Said::Result(id) => Piece::Result { id },
        Said::Image(label) => named(Attachment::Image, label),
        Said::Audio(label) => named(Attachment::Audio, label),
        Said::File(label) => named(Attachment::File, label),
        Said::Unknown(json) => Piece::Unknown(json),
    });
    Some(Spoken {
        role: Role::from_name(&minute.role)?,
        name: minute.name,
        pieces: pieces.collect(),
    })
}

/// What a kept message says, for people.
pub fn kept_words(words: &str) -> Option<String> {
    let spoken = read(words)?;
    let said = spoken.pieces.iter().map(|piece| match piece {
        Piece::Text(text) | Piece::Refusal(text) | Piece::Unknown(text) => text.clone(),
        Piece::Call {
            name, arguments, ..
        } => format!("[call of {name}: {arguments}]"),
        Piece::Result { .. } => String::new(),
        Piece::Attachment { label, .. } => format!("[{label}]"),
    });
    let said: Vec<String> = said.filter(|said| !said.is_empty()).collect();
    Some(said.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_store_is_not_asked_for_ever_for_what_is_not_kept() {
        let hour = Duration::from_hours(1);
        assert_eq!(kept_for(Keep::UntilObserved, 0), Some(Duration::ZERO));
        assert_eq!(kept_for(Keep::UntilObserved, 1), Some(Duration::ZERO));
        assert_eq!(kept_for(Keep::UntilObserved, 2), None);
        assert_eq!(kept_for(Keep::For(hour), 9), Some(hour));
        assert_eq!(kept_for(Keep::Always, 0), None);
    }

    #[test]
    fn a_message_is_read_as_it_was_written_but_for_its_secrets() {
        let secret = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKL";
        let said = |text: &str| Spoken {
            role: Role::Assistant,
            name: Some("Ann".to_owned()),
            pieces: vec![
                Piece::Text(format!("The key is {text}.")),
                Piece::Refusal("No.".to_owned()),
                Piece::Call {
                    id: "call_1".to_owned(),
                    name: "read".to_owned(),
                    arguments: "{\"path\":\"a\"}".to_owned(),
                },
                Piece::Result {
                    id: "call_0".to_owned(),
                },
                Piece::Attachment {
                    kind: Attachment::File,
                    label: "map.pdf".to_owned(),
                    media: Media::default(),
                },
                Piece::Unknown("{}".to_owned()),
            ],
        };
        let redactor = Redactor::default();
        let written = write(&said(secret), &redactor);
        assert!(!written.contains(secret));
        let again = read(&written);
        assert_eq!(again, Some(said(&redactor.clean(secret))));
        assert!(kept_words(&written).is_some_and(|words| words.contains("[map.pdf]")));
        assert_eq!(read("half a row"), None);
    }
}
