//! The beginning of a body that was read before.
//!
//! Clients send the whole history each time, so most of a body is the body before it. [`super::parse_grown`] reads
//! only the rest.

use std::sync::Arc;

use super::body::{Messages, TopLevel};
use crate::history::{History, KnownChain, Message};

/// What was read of the beginning of a body, up to the end of one of its messages. It shares the messages with the
/// request that they were read of.
#[derive(Clone, Debug)]
pub struct ParsedPrefix {
    /// What stands in front of the messages.
    before_messages: Arc<TopLevel>,
    messages: Messages,
    /// How many of the messages belong to it.
    count: usize,
    chain: KnownChain,
}

impl ParsedPrefix {
    pub(super) fn new(before_messages: Arc<TopLevel>, messages: Messages, count: usize) -> Self {
        Self {
            before_messages,
            messages,
            count,
            chain: KnownChain::default(),
        }
    }

    /// The same with the links of its messages. `history` is that of the whole request.
    #[must_use]
    pub fn with_chain_of(mut self, history: &History) -> Self {
        self.chain = history.known_chain(self.count - self.messages.leading_count);
        self
    }

    /// What of it lies in the first `most` bytes of the body. `None` if no message ends there, or only leading ones do.
    #[must_use]
    pub fn first(&self, most: usize) -> Option<Self> {
        let count = self
            .own_messages()
            .partition_point(|message| message.span.end <= most);
        let behind_leading = count
            .checked_sub(self.messages.leading_count)
            .filter(|count| *count > 0)?;
        Some(Self {
            count,
            chain: self.chain.first(behind_leading),
            ..self.clone()
        })
    }

    /// The links of its messages behind the leading ones, as far as they are known.
    pub fn chain(&self) -> &KnownChain {
        &self.chain
    }

    fn own_messages(&self) -> &[Message] {
        &self.messages.all[..self.count]
    }

    /// How many bytes of the body it is.
    pub fn bytes(&self) -> usize {
        self.own_messages().last().map_or(0, |last| last.span.end)
    }

    /// How many messages it has.
    pub fn message_count(&self) -> usize {
        self.count
    }

    /// The memory that it holds, in bytes, also where it shares it.
    pub fn held_bytes(&self) -> usize {
        let ids = self.messages.all.iter().map(|message| {
            let calls = message
                .calls
                .iter()
                .map(|id| id.len() + size_of::<Box<str>>());
            calls.sum::<usize>() + message.answers.as_ref().map_or(0, |id| id.len())
        });
        size_of::<Self>()
            + self.before_messages.held_bytes()
            + size_of_val(self.messages.all.as_slice())
            + ids.sum::<usize>()
            + self.chain.held_bytes()
    }

    /// The members in front of the messages, for a text that begins behind this prefix.
    pub(super) fn top_level(&self) -> TopLevel {
        TopLevel::clone(&self.before_messages).at(self.bytes())
    }

    pub(super) fn messages(&self) -> &Messages {
        &self.messages
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;
    use crate::history::Scope;
    use crate::wire::chat::{ChatRequest, ParseError, parse, parse_grown};

    fn owners() -> [Scope; 2] {
        [b"a", b"b"].map(|credential: &[u8; 1]| Scope::new(credential, None))
    }

    /// All that a request was read as.
    fn read(result: &Result<ChatRequest, ParseError>) -> Result<String, ParseError> {
        let request = result.as_ref().map_err(|error| *error)?;
        let messages = request.messages.iter().map(|message| {
            let whole = message.fingerprint.as_bytes();
            format!("{message:?} {whole:?}")
        });
        let messages: Vec<_> = messages.collect();
        Ok(format!(
            "{messages:?} {} {} {:?} {:?} {} {:?} {:?} {:?} {}",
            request.leading_count,
            request.leading_role,
            request.marked,
            request.model,
            request.stream,
            request.options,
            request.cache_retention,
            request.other_fields,
            request.close,
        ))
    }

    /// Compares the history of `grown` with the one that is chained behind `prefix`, which is of `earlier`.
    fn compare_chains(
        earlier: &ChatRequest,
        prefix: ParsedPrefix,
        grown: &ChatRequest,
    ) -> Result<(), TestCaseError> {
        let [owner, other] = owners();
        let prefix = prefix.with_chain_of(&earlier.history(&owner));
        for scope in [owner, other] {
            let messages = grown.messages().to_vec();
            let chained = History::chain_behind(prefix.chain(), &scope, messages);
            let whole = grown.history(&scope);
            prop_assert_eq!(chained.messages(), whole.messages());
        }
        Ok(())
    }

    /// Compares what is read of `body`, at once and behind what `earlier` has of the same beginning.
    fn compare(earlier: &Bytes, body: &Bytes) -> Result<usize, TestCaseError> {
        let same = earlier
            .iter()
            .zip(body)
            .take_while(|(one, other)| one == other);
        let same = same.count();
        let mut compared = 0;
        let Ok(request) = parse(earlier) else {
            return Ok(0);
        };
        let [owner, _] = owners();
        let whole = request.prefix(earlier.len());
        let whole = whole.map(|whole| whole.with_chain_of(&request.history(&owner)));
        for most in 0..=same {
            let shortened = whole.as_ref().and_then(|whole| whole.first(most));
            let Some(prefix) = request.prefix(most) else {
                prop_assert!(shortened.is_none());
                continue;
            };
            prop_assert!(prefix.bytes() <= most);
            let shortened = shortened.expect("the same messages");
            prop_assert_eq!(shortened.bytes(), prefix.bytes());
            prop_assert_eq!(
                read(&parse_grown(body, &shortened)),
                read(&parse_grown(body, &prefix))
            );
            if let Ok(grown) = parse_grown(body, &shortened) {
                let chain = shortened.chain();
                let chained = History::chain_behind(chain, &owner, grown.messages().to_vec());
                let anew = grown.history(&owner);
                prop_assert_eq!(chained.messages(), anew.messages());
            }
            let grown = parse_grown(body, &prefix);
            prop_assert_eq!(read(&grown), read(&parse(body)));
            if let Ok(grown) = &grown {
                compare_chains(&request, prefix, grown)?;
            }
            // What was read behind a prefix can be a prefix again.
            if let Ok(grown) = grown
                && let Some(longer) = grown.prefix(body.len())
            {
                prop_assert_eq!(read(&parse_grown(body, &longer)), read(&parse(body)));
            }
            compared += 1;
        }
        Ok(compared)
    }

    fn message() -> impl Strategy<Value = String> {
        prop_oneof![
            "[ä😀a-c \\\\n]{0,9}".prop_map(|text| {
                let text = serde_json::Value::from(text);
                format!(r#"{{"role":"user","content":{text}}}"#)
            }),
            Just(r#"{"role":"system","content":"s"}"#.to_owned()),
            Just(r#"{"role":"developer","content":"d","cache_control":{"type":"ephemeral"}}"#.to_owned()),
            Just(r#"{"role" : "assistant", "content":null,"tool_calls":[{"id":"a","function":{"name":"f","arguments":"{}"}},{"id":"b","function":{"name":"g"}},{"id":"a","function":{"name":"h"}}]}"#.to_owned()),
            Just(r#"{"role":"assistant","function_call":{"name":"f"}}"#.to_owned()),
            Just(r#"{"role":"tool","tool_call_id":"a","content":"r"}"#.to_owned()),
            Just(r#"{"role":"tool","tool_call_id":"b","content":[{"type":"text","text":"r"}]}"#.to_owned()),
            Just(r#"{"role":"function","name":"f","content":"r"}"#.to_owned()),
        ]
    }

    fn fields() -> impl Strategy<Value = String> {
        let field = prop_oneof![
            Just(r#""model":"m""#),
            Just(r#""stream":true"#),
            Just(r#""stream_options":{"include_usage":false}"#),
            Just(r#""prompt_cache_retention":"24h""#),
            Just(r#""metadata":{"id":"ü"}"#),
            Just(r#""messages":[]"#),
        ];
        prop::collection::vec(field, 0..3).prop_map(|fields| {
            let fields = fields.iter().map(|field| format!("{field} ,"));
            fields.collect::<String>()
        })
    }

    fn body(before: &str, messages: &[String], space: &str, after: &str) -> Bytes {
        let messages = messages.join(&format!("{space},{space}"));
        let after = after.trim_end_matches(',');
        let comma = if after.is_empty() { "" } else { "," };
        format!("{{{before}\"messages\":[{messages}{space}]{comma}{after}}}").into()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_grown_body_is_read_as_if_it_were_new(
            before in fields(),
            messages in prop::collection::vec(message(), 1..8),
            more in prop::collection::vec(message(), 0..4),
            space in prop_oneof![Just(""), Just(" \n")],
            after in fields(),
            broken in prop::option::of((0.0..1.0, any::<u8>())),
        ) {
            let earlier = body(&before, &messages, space, &after);
            let all: Vec<String> = messages.iter().chain(&more).cloned().collect();
            let mut later = body(&before, &all, space, &after).to_vec();
            if let Some((at, byte)) = broken {
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a place in a short text")]
                let at = (at * later.len() as f64) as usize;
                later[at] = byte;
            }
            let compared = compare(&earlier, &later.into())?;
            let has_prefix = parse(&earlier).is_ok_and(|request| request.messages.len() > request.leading_count);
            // A broken byte may stand in front of all messages.
            prop_assert!(compared > 0 || !has_prefix || broken.is_some());
        }
    }

    /// What is kept of bodies is bounded by this, so nothing of any length may be missing in it.
    #[test]
    fn long_field_values_are_counted_refused_or_dropped() {
        let held = |fields: &str| {
            let user = r#"{"role":"user","content":"x"}"#.to_owned();
            let body = body(fields, &[user], "", "");
            let request = parse(&body)?;
            let prefix = request.prefix(body.len()).unwrap();
            Ok::<usize, ParseError>(prefix.held_bytes())
        };
        let model = |bytes: usize| held(&format!("\"model\":\"{}\",", "m".repeat(bytes)));
        assert_eq!(model(4096), Ok(model(96).unwrap() + 4000));
        assert_eq!(model(4097), Err(ParseError::WrongType));
        let retention = |bytes: usize| {
            held(&format!(
                "\"prompt_cache_retention\":\"{}\",",
                "m".repeat(bytes)
            ))
        };
        assert_eq!(retention(1000), Ok(retention(0).unwrap() + 1000));
        assert_eq!(retention(1_000_000), retention(0));
    }

    #[test]
    fn the_compare_helper_compares_a_prefix() {
        let user = r#"{"role":"user","content":"x"}"#.to_owned();
        let short = body("", std::slice::from_ref(&user), "", "");
        let long = body("", &[user.clone(), user], "", "\"model\":\"m\"");
        assert_eq!(compare(&short, &long).unwrap(), 1);
    }
}
