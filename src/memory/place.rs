//! Which chain a request belongs to: its own, or one that it is a view of.
//!
//! Decides by evidence alone: the links of the request, a run of messages that cannot be chance, or
//! an answer of the model that the client put in the place of what it answered. A key, a system
//! prompt or a first message is none. Pure: the same evidence gives the same place on every replica.
//! Called by `store::recall` with what this process or the store knows.

use std::sync::Arc;

use crate::history::align::{Run, align};
use crate::history::{History, Item, Link, Mark, Stand, View};

/// A message of a path that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Its link and who speaks.
    pub stand: Stand,
    /// The link before it.
    pub parent: Link,
    /// What it is known by; `None` where it was recorded before there was such a thing.
    pub item: Option<Item>,
    /// What it is found by.
    pub anchor: Option<Mark>,
    /// Whether a range that is observed, or waits for it with its words, ends here.
    pub taken: bool,
    /// The lineage that recorded it.
    pub lineage: i64,
}

/// A request that was a view of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredView {
    /// How many messages the client sent.
    pub count: usize,
    /// The last link of the chain.
    pub base: Link,
    /// Which message stands where.
    pub view: View,
}

/// What is known that a request may stand on. Paths begin with their first message.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// How many of the request's messages are recorded as they are.
    pub depth: usize,
    /// The longest beginning of the request that is a view, and the chain it is a view of.
    pub view: Option<(StoredView, Vec<Step>)>,
    /// The path up to the latest message of the request that is known anywhere.
    pub path: Vec<Step>,
    /// How many messages of the request an answer of the model stands in, and the chain it answered.
    pub answered: Option<(usize, Vec<Step>)>,
}

/// By what evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// It continues a request that had its place.
    Continued,
    /// A run of messages cannot be chance.
    Aligned,
    /// An answer of the model stands in the place of what it summarises.
    Compacted,
}

/// A request that is a view of another chain.
#[derive(Clone, Debug)]
pub struct Sighting {
    /// The chain of what the client sent.
    pub client: Arc<History>,
    /// The chain it is a view of, gone on with what is new in it.
    pub history: Arc<History>,
    /// Which message stands where.
    pub view: View,
    /// Messages of the request that were said before, on whatever chain.
    pub agreed: Vec<Run>,
    /// By what evidence.
    pub how: How,
    /// Whose conversation it continues.
    pub lineage: Option<i64>,
}

impl Sighting {
    fn of(
        client: &Arc<History>,
        path: &[Step],
        view: View,
        agreed: Vec<Run>,
        how: How,
    ) -> Option<Self> {
        let messages: Vec<_> = client.turns().iter().map(|t| t.message.clone()).collect();
        if !view.parts_no_round(&messages) {
            return None;
        }
        let stands: Vec<Stand> = path.iter().map(|step| step.stand).collect();
        let history = History::seen_through(&view, &stands, client)?;
        // Seen whole it is no view.
        let own = history.tip() == client.tip();
        (!own && !history.is_empty()).then(|| Self {
            client: Arc::clone(client),
            history: Arc::new(history),
            view,
            agreed,
            how,
            lineage: path.last().map(|step| step.lineage),
        })
    }

    /// Whether the message at `place` of the chain was said before, in another request.
    pub fn said_before(&self, place: usize) -> bool {
        let sent = self.view.sent(place);
        sent.is_some_and(|sent| {
            self.agreed
                .iter()
                .any(|run| (run.client..run.client + run.len).contains(&sent))
        })
    }
}

/// The place of `client`; `None` where it is its own chain.
pub fn decide(client: &Arc<History>, evidence: &Evidence) -> Option<Sighting> {
    let known = evidence.view.as_ref().map_or(0, |(view, _)| view.count);
    aligned(client, &evidence.path, known.max(evidence.depth))
        .or_else(|| continued(client, evidence))
        .or_else(|| compacted(client, evidence))
}

/// How many messages from the beginning of `path` need not be sent to be remembered.
fn observed(path: &[Step]) -> usize {
    path.iter()
        .rposition(|step| step.taken)
        .map_or(0, |at| at + 1)
}

fn aligned(client: &Arc<History>, path: &[Step], known: usize) -> Option<Sighting> {
    let items: Vec<Item> = path.iter().map(|step| step.item).collect::<Option<_>>()?;
    if items.is_empty() {
        return None;
    }
    let root = client.root();
    let sent: Vec<Item> = client
        .turns()
        .iter()
        .map(|turn| Item::of(&root, &turn.message))
        .collect();
    let runs = align(&items, &sent)?;
    // What is known for certain is not given up for less.
    if runs.iter().map(|run| run.len).sum::<usize>() <= known {
        return None;
    }
    let end = runs.last().map_or(0, |run| run.path + run.len);
    let (view, kept) = View::of(&runs, observed(&path[..end]))?;
    Sighting::of(client, &path[..kept], view, runs, How::Aligned)
}

fn continued(client: &Arc<History>, evidence: &Evidence) -> Option<Sighting> {
    let (stored, base) = evidence.view.as_ref()?;
    let (from, path) = stored.view.open();
    let whole = stored.count >= from && base.len() == path + (stored.count - from);
    if stored.count <= evidence.depth || !whole {
        return None;
    }
    Sighting::of(
        client,
        base,
        stored.view.clone(),
        Vec::new(),
        How::Continued,
    )
}

/// The log goes on behind the answer. What stood before it and was not observed is in the client's
/// own summary, which stays raw where the client put it.
fn compacted(client: &Arc<History>, evidence: &Evidence) -> Option<Sighting> {
    let (place, path) = evidence.answered.as_ref()?;
    // The last message of the chain that was answered asked for the summary.
    let before = path.get(..path.len().checked_sub(1)?)?;
    let observed = observed(before);
    if *place < evidence.depth || observed == 0 {
        return None;
    }
    Sighting::of(
        client,
        &before[..observed],
        View::from(*place, observed),
        Vec::new(),
        How::Compacted,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Encoder, Message, Role, Scope, anchor};

    fn message(role: Role, text: &str, calls: &[&str], answers: Option<&str>) -> Message {
        let mut encoder = Encoder::new();
        encoder.text("role", role.name());
        encoder.text("content", text);
        for id in calls {
            encoder.text("call", id);
        }
        Message {
            fingerprint: encoder.finish(),
            role,
            calls: calls.iter().map(|id| (*id).into()).collect(),
            answers: answers.map(Into::into),
            weight: u32::try_from(text.len()).unwrap(),
            span: 0..0,
        }
    }

    fn path(history: &History, taken: usize) -> Vec<Step> {
        let root = history.root();
        let item = |at: usize| Item::of(&root, &history.turns()[at].message);
        (0..history.len())
            .map(|at| Step {
                stand: Stand {
                    link: history.turns()[at].link,
                    role: history.turns()[at].message.role,
                },
                parent: match at {
                    0 => root,
                    _ => history.turns()[at - 1].link,
                },
                item: Some(item(at)),
                anchor: at
                    .checked_sub(1)
                    .and_then(|b| anchor(&root, &item(b), &item(at))),
                taken: at + 1 == taken,
                lineage: 1,
            })
            .collect()
    }

    /// A client dropped one of two parallel calls together with its result, and everything before. The
    /// call that is left is another message and would stay raw in front of the block for ever; its
    /// result is known, and would be covered one day.
    #[test]
    fn a_call_in_front_is_never_parted_from_its_result_in_the_open_run() {
        let said = "a long answer of the model that nobody else would ever give by chance";
        let mut known: Vec<Message> = (0..6)
            .map(|at| match at % 2 {
                0 => message(Role::User, &format!("question {at}, {said}"), &[], None),
                _ => message(Role::Assistant, &format!("answer {at}, {said}"), &[], None),
            })
            .collect();
        known.push(message(Role::User, "read both", &[], None));
        known.push(message(
            Role::Assistant,
            "",
            &["call_aaaaaaaa", "call_bbbbbbbb"],
            None,
        ));
        known.push(message(Role::Tool, "text of a", &[], Some("call_aaaaaaaa")));
        known.push(message(Role::Tool, "text of b", &[], Some("call_bbbbbbbb")));
        known.push(message(
            Role::Assistant,
            &format!("both read, {said}"),
            &[],
            None,
        ));
        let scope = Scope::of(b"key", None);
        let chain = History::chain(&scope, known.clone());

        let mut sent = vec![message(Role::Assistant, "", &["call_bbbbbbbb"], None)];
        sent.extend_from_slice(&known[9..]);
        sent.push(message(Role::User, "and now", &[], None));
        let client = Arc::new(History::chain(&scope, sent));
        let evidence = Evidence {
            path: path(&chain, 4),
            ..Evidence::default()
        };
        assert!(decide(&client, &evidence).is_none());
        // Whole, the round is no obstacle.
        let mut sent = known[7..].to_vec();
        sent.push(message(Role::User, "and now", &[], None));
        let client = Arc::new(History::chain(&scope, sent));
        assert!(decide(&client, &evidence).is_some());
    }
}
