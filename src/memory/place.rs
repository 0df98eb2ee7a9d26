//! Which chain a request belongs to: its own, or one that it is a view of.
//!
//! Decides by evidence alone: the links of the request, a run of messages that cannot be chance, or
//! an answer of the model that the client put in the place of what it answered. A key, a system
//! prompt or a first message is none. Pure: the same evidence gives the same place on every replica.
//! Called by `store::recall` with what this process or the store knows.

use std::sync::Arc;

use crate::history::align::{Aligned, Run, align};
use crate::history::{History, Item, Link, Mark, Stand, View};

/// How many of a request's first messages may hold an answer of the model in the place of what it
/// summarises.
pub const OPENING: usize = 3;

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
    /// Whether it was said while somebody watched; what a first request brings along was not, but for
    /// its newest message.
    pub live: bool,
    /// Whether its words are kept: it can be observed though nobody sends it any more.
    pub kept: bool,
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
    /// The lineage that recorded the last of those.
    pub own: Option<i64>,
    /// The longest beginning of the request that is a view, and the chain it is a view of.
    pub view: Option<(StoredView, Vec<Step>)>,
    /// The path up to the latest message of the request that is known anywhere.
    pub path: Vec<Step>,
    /// How many messages of the request an answer of the model stands in, and the chain it answered.
    pub answered: Option<(usize, Vec<Step>)>,
}

impl Evidence {
    /// Whether `client` goes on from what was recorded of another conversation than `path` is of. What
    /// that one was told in the same words, as a model greets and asks everybody, is no reason to
    /// leave it.
    fn belongs_elsewhere(&self, client: &History) -> bool {
        let Some(end) = self.path.last() else {
            return false;
        };
        let elsewhere = |lineage: i64, tip: Option<Link>| {
            lineage != end.lineage && self.path.iter().all(|step| Some(step.stand.link) != tip)
        };
        let depth = self.depth.checked_sub(1);
        let own = depth.and_then(|last| client.turns().get(last));
        let viewed = self.view.as_ref().and_then(|(_, base)| base.last());
        let leaves_own = self
            .own
            .is_some_and(|lineage| elsewhere(lineage, own.map(|turn| turn.link)));
        let leaves_view = viewed.is_some_and(|step| elsewhere(step.lineage, Some(step.stand.link)));
        leaves_own || leaves_view
    }
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
    /// Where it says again what was said before.
    pub agreed: Agreed,
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
        agreed: Agreed,
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
}

/// Where a request and a path agree.
#[derive(Clone, Debug, Default)]
pub struct Agreed {
    /// Messages of the request that were said before, on whatever chain.
    pub runs: Vec<Run>,
    /// Those of them (indices in the request) that were said while somebody watched.
    live: Vec<usize>,
}

impl Agreed {
    fn of(runs: Vec<Run>, path: &[Step]) -> Self {
        let said_live = |run: &Run| {
            let (client, path_at) = (run.client, run.path);
            (0..run.len)
                .filter(move |at| path[path_at + at].live)
                .map(move |at| client + at)
        };
        let live = runs.iter().flat_map(said_live).collect();
        Self { runs, live }
    }

    /// Whether the message `sent` of the request was said while somebody watched; `None` where it was
    /// not said before.
    pub fn said_live(&self, sent: usize) -> Option<bool> {
        let mut runs = self.runs.iter();
        runs.any(|run| (run.client..run.client + run.len).contains(&sent))
            .then(|| self.live.binary_search(&sent).is_ok())
    }
}

/// The place of `client`; `None` where it is its own chain.
pub fn decide(client: &Arc<History>, evidence: &Evidence) -> Option<Sighting> {
    let known = evidence.view.as_ref().map_or(0, |(view, _)| view.count);
    if known == client.len() {
        // This very request went out as a view (INV-SAME). Its own chain may be recorded as well since, by
        // a process that could not read the view when the conversation went on.
        let again = continued(client, evidence);
        if again.is_some() {
            return again;
        }
    }
    aligned(client, evidence, known.max(evidence.depth))
        .or_else(|| continued(client, evidence))
        .or_else(|| compacted(client, evidence))
}

/// How many messages from the beginning of `path` are observed, or wait for it with their words.
fn observed(path: &[Step]) -> usize {
    path.iter()
        .rposition(|step| step.taken)
        .map_or(0, |at| at + 1)
}

/// A path and a request as they are compared.
struct Sides<'a> {
    path: &'a [Step],
    known: Vec<Item>,
    sent: Vec<Item>,
}

impl<'a> Sides<'a> {
    fn of(client: &History, path: &'a [Step]) -> Option<Self> {
        let known: Vec<Item> = path.iter().map(|step| step.item).collect::<Option<_>>()?;
        let root = client.root();
        let turns = client.turns().iter();
        let sent = turns.map(|turn| Item::of(&root, &turn.message)).collect();
        (!known.is_empty()).then_some(Self { path, known, sent })
    }

    fn align(&self) -> Option<Aligned> {
        align(&self.known, |place| self.path[place].live, &self.sent)
    }

    /// Of the path's first `reach` messages, how many from the beginning need not be sent to be
    /// remembered: what is observed, and where words are kept what the client dropped behind it.
    fn remembered(&self, runs: &[Run], reach: usize) -> usize {
        let is_there = |place: usize| {
            let kept = self.path[place].kept;
            match sent_at(runs, place) {
                Some(client) => kept || self.sent[client].content == self.known[place].content,
                None => kept && is_dropped(runs, place),
            }
        };
        let observed = observed(&self.path[..reach]);
        (observed..reach)
            .find(|place| !is_there(*place))
            .unwrap_or(reach)
    }
}

/// The message of the request that stands at `place` of the path.
fn sent_at(runs: &[Run], place: usize) -> Option<usize> {
    let mut runs = runs.iter();
    let run = runs.find(|run| (run.path..run.path + run.len).contains(&place))?;
    Some(run.client + (place - run.path))
}

/// Whether the client has put less in the place of a gap than it left out: else it said the same in
/// other words, and the last words count.
fn is_dropped(runs: &[Run], place: usize) -> bool {
    let before = runs.iter().rfind(|run| run.path + run.len <= place);
    let Some(behind) = runs.iter().find(|run| run.path > place) else {
        return false;
    };
    let (client, path) = before.map_or((0, 0), |run| (run.client + run.len, run.path + run.len));
    behind.client - client < behind.path - path
}

/// Where `client`, which is a chain of its own, says again what `path` holds, and whether that is the
/// same conversation.
pub fn agreed(client: &History, path: &[Step]) -> Option<(Agreed, bool)> {
    let Aligned { runs, same } = Sides::of(client, path)?.align()?;
    Some((Agreed::of(runs, path), same))
}

fn aligned(client: &Arc<History>, evidence: &Evidence, known: usize) -> Option<Sighting> {
    let path = &evidence.path;
    let sides = Sides::of(client, path)?;
    if evidence.belongs_elsewhere(client) {
        return None;
    }
    let Aligned { runs, same } = sides.align()?;
    // What is known for certain is not given up for less.
    if runs.iter().map(|run| run.len).sum::<usize>() <= known {
        return None;
    }
    let end = runs.last().map_or(0, |run| run.path + run.len);
    let reach = if same { end } else { sent_alike(&runs) };
    let (view, kept) = View::of(&runs, sides.remembered(&runs, reach))?;
    let kept = kept.min(first_changed(&view, &sides.known[..kept], &sides.sent));
    let agreed = Agreed::of(runs, path);
    Sighting::of(client, &path[..kept], view, agreed, How::Aligned)
}

/// How much of the path's beginning the request holds without a gap. A template proves no more than
/// that the same was said: nothing that the request does not hold is told of for it.
fn sent_alike(runs: &[Run]) -> usize {
    runs.iter()
        .fold(0, |to, run| if run.path == to { to + run.len } else { to })
}

/// The first message behind what is observed that is no longer what it was: a result that was pruned
/// before anybody was shown it, a call that was repaired. From there on the chain says what the client
/// says now: a range must not count as observed without its words (INV-COVER).
fn first_changed(view: &View, known: &[Item], sent: &[Item]) -> usize {
    let (client, open) = view.open();
    (open..known.len())
        .find(|place| {
            let sent = sent.get(client + (place - open));
            sent.is_none_or(|sent| sent.content != known[*place].content)
        })
        .unwrap_or(known.len())
}

fn continued(client: &Arc<History>, evidence: &Evidence) -> Option<Sighting> {
    let (stored, base) = evidence.view.as_ref()?;
    let (from, path) = stored.view.open();
    let whole = stored.count >= from && base.len() == path + (stored.count - from);
    let again = stored.count == client.len();
    if !whole || (stored.count <= evidence.depth && !again) {
        return None;
    }
    Sighting::of(
        client,
        base,
        stored.view.clone(),
        Agreed::default(),
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
        Agreed::default(),
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
                live: at > 0,
                kept: false,
                lineage: 1,
            })
            .collect()
    }

    /// A process that could not read the view went on from it as a chain of its own: the request is still
    /// the view it went out as (INV-SAME).
    #[test]
    fn a_view_comes_again_as_a_view_though_its_own_chain_is_recorded_since() {
        let said = "a long answer of the model that nobody else would ever give by chance";
        let messages: Vec<Message> = (0..8)
            .map(|at| {
                let role = [Role::User, Role::Assistant][at % 2];
                message(role, &format!("{at}: {said}"), &[], None)
            })
            .collect();
        let scope = Scope::of(b"key", None);
        let path = path(&History::chain(&scope, messages.clone()), 4);
        let client = Arc::new(History::chain(&scope, messages[4..].to_vec()));
        let mut evidence = Evidence {
            path: path.clone(),
            ..Evidence::default()
        };
        let first = decide(&client, &evidence).unwrap();
        let stored = StoredView {
            count: client.len(),
            base: first.history.tip().unwrap(),
            view: first.view.clone(),
        };
        evidence.view = Some((stored, path));
        for depth in [0, client.len()] {
            evidence.depth = depth;
            let again = decide(&client, &evidence).unwrap();
            assert_eq!(again.view, first.view, "{depth}");
            assert_eq!(again.history.tip(), first.history.tip(), "{depth}");
        }
    }

    /// What left no more behind than went is dropped, and remembered where its words are kept without a
    /// gap; what was said again in other words is not.
    #[test]
    fn what_is_kept_is_remembered_where_it_was_dropped_and_not_where_it_was_edited() {
        let messages = |count: usize| -> Vec<Message> {
            (0..count)
                .map(|at| message(Role::User, &format!("message {at}"), &[], None))
                .collect()
        };
        let chain = History::chain(&Scope::of(b"key", None), messages(7));
        let mut path = path(&chain, 0);
        let remembered = |path: &[Step], runs: &[Run]| {
            let sides = Sides::of(&chain, path).unwrap();
            sides.remembered(runs, path.len())
        };
        let run = |client, path, len| Run { client, path, len };
        let dropped = [run(0, 0, 1), run(1, 4, 3)];
        let edited = [run(0, 0, 1), run(2, 2, 5)];
        let noticed = [run(1, 4, 3)];
        assert_eq!(remembered(&path, &dropped), 1);
        assert_eq!(remembered(&path, &noticed), 0);
        for step in &mut path {
            step.kept = true;
        }
        assert_eq!(remembered(&path, &dropped), 7);
        assert_eq!(remembered(&path, &noticed), 7);
        assert_eq!(remembered(&path, &edited), 1);
        path[2].kept = false;
        assert_eq!(remembered(&path, &dropped), 2);
        path[3].taken = true;
        assert_eq!(remembered(&path, &dropped), 7);
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

    /// Six messages, two rounds of tools behind them; what is told of them is long.
    fn task() -> Vec<Message> {
        let said = |at: usize| {
            format!("what is said in message {at} is long enough to tell it from others by")
        };
        let mut all: Vec<Message> = (0..6)
            .map(|at| match at % 2 {
                0 => message(Role::User, &said(at), &[], None),
                _ => message(Role::Assistant, &said(at), &[], None),
            })
            .collect();
        for id in ["call_aaaaaaaa", "call_bbbbbbbb"] {
            all.push(message(Role::Assistant, "", &[id], None));
            all.push(message(Role::Tool, &said(all.len()), &[], Some(id)));
        }
        all
    }

    fn seen(scope: &Scope, sent: Vec<Message>, evidence: &Evidence) -> Option<Sighting> {
        decide(&Arc::new(History::chain(scope, sent)), evidence)
    }

    /// Nobody was shown what the first result said, and nobody can be any more.
    #[test]
    fn what_was_pruned_before_it_was_observed_is_what_it_is_now() {
        let scope = Scope::of(b"key", None);
        let known = task();
        let chain = History::chain(&scope, known.clone());
        let mut sent = known[2..].to_vec();
        sent[5] = message(Role::Tool, "[cleared]", &[], Some("call_aaaaaaaa"));
        sent.push(message(Role::User, "and now", &[], None));
        let links = |taken: usize| {
            let path = path(&chain, taken);
            let evidence = Evidence {
                path,
                ..Evidence::default()
            };
            let seen = seen(&scope, sent.clone(), &evidence).unwrap();
            let turns = seen.history.turns().iter().zip(chain.turns());
            turns.take_while(|(new, old)| new.link == old.link).count()
        };
        // Observed up to there, it is what it was; else the chain goes another way from there on.
        assert_eq!(links(8), 10);
        assert_eq!(links(4), 7);
    }

    /// Another conversation was answered and asked the same; this one is known by its own chain.
    #[test]
    fn what_is_known_of_a_conversation_is_not_left_for_another() {
        let scope = Scope::of(b"key", None);
        let known = task();
        let chain = History::chain(&scope, known.clone());
        let mut sent = vec![message(Role::User, "another form", &[], None)];
        sent.extend_from_slice(&known[1..]);
        let evidence = |own: Option<i64>, depth: usize| Evidence {
            path: path(&chain, 6),
            own,
            depth,
            ..Evidence::default()
        };
        assert!(seen(&scope, sent.clone(), &evidence(Some(2), 3)).is_none());
        // The same conversation, whose first message has changed.
        assert!(seen(&scope, sent.clone(), &evidence(Some(1), 3)).is_some());
        assert!(seen(&scope, sent, &evidence(None, 0)).is_some());
    }

    /// Where nothing but a template agrees, nothing is told of that the request does not hold.
    #[test]
    fn a_template_brings_nothing_with_it() {
        let scope = Scope::of(b"key", None);
        let known = task();
        let chain = History::chain(&scope, known.clone());
        let mut sent = known;
        sent[0] = message(Role::User, "another customer", &[], None);
        let mut path = path(&chain, 6);
        for step in &mut path {
            step.live = false;
        }
        let evidence = Evidence {
            path,
            ..Evidence::default()
        };
        let seen = seen(&scope, sent, &evidence).unwrap();
        let own: Vec<Link> = chain.turns().iter().map(|turn| turn.link).collect();
        assert!(
            seen.history
                .turns()
                .iter()
                .all(|turn| !own.contains(&turn.link))
        );
        assert_eq!(seen.view.front(9), [0]);
    }
}
