//! What a store would know of the requests that were recorded, and what it may truthfully claim: which
//! saying each message of a path is, and which of them somebody was shown. No SQL, no process; the
//! evidence is gathered by the rules that `store` documents, the decisions are made by others.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use diarist::history::align::MessageOrigin;
use diarist::history::{History, Link, MessageKey, PathMessage, Scope, ScopedHash, anchor};
use diarist::memory::alignment::{
    self, Alignment, KnownChains, PathEntry, SharedMessages, StoredAlignment, SummaryCandidate,
    Witness, shared_messages, summary_positions,
};
use diarist::memory::{Node, record};
use diarist::wire::{self, chat};
use serde_json::json;

use crate::alignment::compose::{Ask, Origin};

/// Messages that are observed together at least.
const RANGE: usize = 5;

/// A message of a path.
#[derive(Clone, Debug)]
pub struct StoredNode {
    pub step: PathEntry,
    pub node: Node,
    /// What was said here, in whatever conversation that begins in the same words.
    pub origins: HashSet<Origin>,
    pub tenant: usize,
    /// Somebody was shown what it said, or its words are kept.
    pub shown: bool,
}

/// A request as memory reads it.
#[derive(Clone, Debug)]
pub struct Read {
    pub parsed: wire::Request,
    pub client: std::sync::Arc<History>,
    /// What its first system message is known by.
    pub system: ScopedHash,
}

impl Read {
    pub fn from_ask(ask: &Ask) -> Self {
        let mut messages = vec![json!({"role": "system", "content": ask.system})];
        messages.extend(ask.messages());
        let body = json!({"model": "gpt-test", "messages": messages}).to_string();
        let parsed = wire::Request::parse_chat(&body.into()).unwrap();
        let scope = Scope::new(format!("key {}", ask.tenant).as_bytes(), None);
        let client: std::sync::Arc<History> = parsed.history(&scope).into();
        let system =
            MessageKey::from_message(&client.root(), &parsed.leading_messages().messages()[0])
                .content;
        Self {
            parsed,
            client,
            system,
        }
    }

    fn item(&self, at: usize) -> MessageKey {
        MessageKey::from_message(&self.client.root(), &self.client.messages()[at].message)
    }

    pub fn items(&self) -> Vec<MessageKey> {
        (0..self.client.len()).map(|at| self.item(at)).collect()
    }

    /// What an answer would be known by that stands in the place of what it summarises.
    fn answers(&self) -> Vec<(ScopedHash, usize)> {
        let root = self.client.root();
        let texts = self.parsed.first_texts(summary_positions(&self.client), 0);
        let lines = texts.iter().flat_map(|(place, text)| {
            let breaks = text.match_indices('\n').map(|(at, _)| at + 1);
            let from = std::iter::once(0).chain(breaks).take(6);
            from.map(|from| (&text[from..], *place))
        });
        let whole = lines.filter(|(text, _)| (256..256 * 1024).contains(&text.len()));
        whole
            .map(|(text, place)| {
                (
                    ScopedHash::from_text(&diarist::history::Pepper::NONE, &root, text),
                    place,
                )
            })
            .collect()
    }
}

#[derive(Debug, Default)]
pub struct ModelStore {
    pub nodes: HashMap<Link, StoredNode>,
    anchors: HashMap<ScopedHash, Link>,
    views: HashMap<Link, StoredAlignment>,
    answers: HashMap<ScopedHash, Option<(Link, i64)>>,
    parents: HashSet<Link>,
    /// What programs put in, by conversation.
    pub inserted: HashSet<(usize, String, ScopedHash)>,
    /// Whether words are kept.
    keeps: bool,
    lineages: i64,
    /// Where each message was first said, whoever says it.
    first_origins: HashMap<ScopedHash, HashSet<alignment::Origin>>,
    /// Where answers were said that the upstream gave.
    answer_origins: HashSet<alignment::Origin>,
    /// The same by the composer's word: what each key was answered.
    pub answers_given: HashSet<(usize, Origin)>,
    /// And which sayings of a key say the same.
    pub sayings: HashMap<(usize, ScopedHash), HashSet<Option<Origin>>>,
    /// What the first system message of each request was known by.
    systems: HashMap<Link, ScopedHash>,
}

impl ModelStore {
    pub fn new(keeps: bool) -> Self {
        Self {
            keeps,
            ..Self::default()
        }
    }

    /// The path up to `link`, from its first message on.
    pub fn path(&self, link: Link) -> Vec<PathEntry> {
        let mut path = Vec::new();
        let mut at = link;
        while let Some(known) = self.nodes.get(&at) {
            let mut step = known.step;
            let others = step
                .witness()
                .and_then(|mark| self.first_origins.get(&mark));
            step.message_origin.unshared = others.is_some_and(|origins| origins.len() == 1);
            path.push(step);
            at = known.step.parent;
        }
        path.reverse();
        path
    }

    pub fn known_chains(&self, read: &Read) -> KnownChains {
        let messages = read.client.messages();
        let mut known_chains = KnownChains::default();
        for (at, chained) in messages.iter().enumerate() {
            if let Some(known) = self.nodes.get(&chained.link) {
                (known_chains.recorded_count, known_chains.recorded_lineage) =
                    (at + 1, Some(known.step.lineage));
                known_chains.recorded_origin = known.step.origin;
            }
            if let Some(view) = self.views.get(&chained.link) {
                known_chains.stored_holds = view.proof.iter().all(|witness| self.holds(*witness));
                let base = self.path(view.base).iter().collect();
                known_chains.stored = Some((view.clone(), Arc::new(base)));
            }
        }
        let root = read.client.root();
        let viewed = known_chains
            .stored
            .as_ref()
            .map_or(0, |(view, _)| view.count);
        let hit = (1..messages.len()).rev().take(96).find_map(|at| {
            let mark = anchor(&root, &read.item(at - 1), &read.item(at))?;
            Some((at, *self.anchors.get(&mark)?))
        });
        if let Some((at, link)) = hit
            && at >= known_chains.recorded_count
            && at >= viewed
        {
            known_chains.path = self.path(link);
        }
        known_chains.summary = read.answers().into_iter().find_map(|(mark, place)| {
            let (tip, _) = (*self.answers.get(&mark)?)?;
            (!self.parents.contains(&tip)).then(|| {
                let path = self.path(tip);
                let system =
                    |step: &PathEntry| self.systems.get(&step.message.link) == Some(&read.system);
                SummaryCandidate {
                    count: place,
                    hash: mark,
                    start: None,
                    same_system: path.iter().any(system),
                    path,
                    is_unique: true,
                }
            })
        });
        known_chains
    }

    fn holds(&self, witness: Witness) -> bool {
        if let Some(origins) = self.first_origins.get(&witness.hash) {
            return origins.len() == 1 && origins.contains(&witness.origin);
        }
        self.answers.get(&witness.hash).is_some_and(Option::is_some)
    }

    /// Whatever becomes of the request: what it says was said, and what it is answered too.
    pub fn add_sayings(
        &mut self,
        ask: &Ask,
        read: &Read,
        known_chains: &KnownChains,
        alignment: Option<&Alignment>,
    ) {
        let origins = alignment::origins(&read.client, known_chains, alignment);
        for (at, origin) in origins.iter().enumerate().skip(known_chains.recorded_count) {
            if read.client.messages()[at].message.can_be_evidence() {
                self.add_origin(&read.item(at), *origin);
            }
        }
        for (at, line) in ask.lines.iter().enumerate() {
            let item = read.item(at);
            self.add_saying(ask.tenant, &item, line.origin);
        }
        let Some(answer) = chat::message(&ask.reply.to_string(), &diarist::history::Pepper::NONE)
        else {
            return;
        };
        let item = MessageKey::from_message(&read.client.root(), &answer);
        self.add_saying(ask.tenant, &item, ask.gives);
        if let Some(gives) = ask.gives {
            self.answers_given.insert((ask.tenant, gives));
        }
        let origin = alignment::origin_of_answer(&read.client, &origins, &answer.fingerprint);
        self.answer_origins.insert(origin);
        self.add_origin(&item, origin);
    }

    fn add_saying(&mut self, tenant: usize, item: &MessageKey, origin: Option<Origin>) {
        let mark = item.ids.unwrap_or(item.content);
        self.sayings
            .entry((tenant, mark))
            .or_default()
            .insert(origin);
    }

    fn add_origin(&mut self, item: &MessageKey, origin: alignment::Origin) {
        let mark = item.ids.unwrap_or(item.content);
        self.first_origins.entry(mark).or_default().insert(origin);
    }

    /// Writes an accepted request down, and has observed what may be.
    pub fn record(
        &mut self,
        ask: &Ask,
        read: &Read,
        alignment: Option<&Alignment>,
        known_chains: &KnownChains,
    ) {
        let history = alignment.map_or(&read.client, |alignment| &alignment.history);
        let sent = |place: usize| match alignment {
            None => Some(place),
            Some(alignment) => alignment.positions.request_index(place),
        };
        let known = history.messages().iter();
        let known = known
            .take_while(|chained| self.nodes.contains_key(&chained.link))
            .count();
        let again = match alignment {
            Some(alignment) => Some((alignment.shared.clone(), alignment.lineage)),
            None if known == 0 => {
                shared_messages(&read.client, known_chains).map(|(shared, same)| {
                    (
                        shared,
                        known_chains.path.last().filter(|_| same).map(|s| s.lineage),
                    )
                })
            }
            None => None,
        };
        let (shared, continued): (SharedMessages, Option<i64>) = again.unwrap_or_default();
        let tokens = vec![10; history.len() - known];
        let mut new = record::new_nodes(history, known, &tokens, 0, None);
        for node in &mut new {
            let before = sent(node.count - 1).and_then(|sent| shared.was_live(sent));
            node.live = before.unwrap_or(node.live || !shared.runs.is_empty());
            let more = shared
                .runs
                .last()
                .is_some_and(|run| run.client + run.len < read.client.len());
            node.confirmed = more && before.is_some() && node.count < history.len();
        }
        let origins = alignment::origins(&read.client, known_chains, alignment);
        let parent_node = known
            .checked_sub(1)
            .map(|at| &self.nodes[&history.messages()[at].link]);
        let lineage = parent_node
            .map(|own| own.step.lineage)
            .or(continued)
            .unwrap_or_else(|| {
                self.lineages += 1;
                self.lineages
            });
        for node in new {
            let place = node.count - 1;
            let Some(at) = sent(place) else { break };
            let chained = &history.messages()[place];
            let parent = place
                .checked_sub(1)
                .map_or(history.root(), |before| history.messages()[before].link);
            let item = read.item(at);
            let anchor = at
                .checked_sub(1)
                .and_then(|before| anchor(&read.client.root(), &read.item(before), &item));
            if let Some(anchor) = anchor {
                self.anchors.insert(anchor, chained.link);
            }
            self.parents.insert(parent);
            let step = PathEntry {
                message: PathMessage {
                    link: chained.link,
                    role: chained.message.role,
                },
                parent,
                message_key: Some(item),
                anchor,
                range_end: false,
                live: node.live,
                text_kept: false,
                lineage,
                origin: origins[at],
                message_origin: MessageOrigin {
                    from_upstream: self.answer_origins.contains(&origins[at]),
                    unshared: true,
                },
                summary_start: alignment
                    .and_then(|alignment| alignment.client_summary)
                    .filter(|(summary, _)| *summary == at)
                    .map(|(_, start)| start),
                pending: false,
            };
            self.nodes.insert(
                chained.link,
                StoredNode {
                    step,
                    node,
                    origins: HashSet::new(),
                    tenant: ask.tenant,
                    shown: false,
                },
            );
        }
        for (place, chained) in history.messages().iter().enumerate() {
            let origin = sent(place).and_then(|at| ask.lines[at].origin);
            if let (Some(known), true) =
                (self.nodes.get_mut(&chained.link), is_whole(history, place))
            {
                known.origins.extend(origin);
            }
        }
        self.add_inserted(ask, read);
        self.trace(ask, read, alignment, lineage);
        self.confirm(history);
        self.observe(history, &sent);
    }

    fn add_inserted(&mut self, ask: &Ask, read: &Read) {
        let inserted = ask
            .lines
            .iter()
            .enumerate()
            .filter(|(_, line)| line.origin.is_none());
        for (at, _) in inserted {
            let content = read.item(at).content;
            self.inserted
                .insert((ask.tenant, ask.conversation.clone(), content));
        }
    }

    fn trace(&mut self, ask: &Ask, read: &Read, alignment: Option<&Alignment>, lineage: i64) {
        let history = alignment.map_or(&read.client, |alignment| &alignment.history);
        let (Some(client), Some(tip)) = (read.client.tip(), history.tip()) else {
            return;
        };
        if let Some(alignment) = alignment {
            let stored = StoredAlignment {
                count: read.client.len(),
                base: tip,
                positions: alignment.positions.clone(),
                proof: alignment.proof.clone(),
                withheld: alignment.withheld,
            };
            self.views.entry(client).or_insert(stored);
        }
        self.systems.insert(tip, read.system);
        let words = ask.reply["content"]
            .as_str()
            .filter(|words| words.len() >= 256);
        if let Some(words) = words {
            let mark =
                ScopedHash::from_text(&diarist::history::Pepper::NONE, &read.client.root(), words);
            // What two conversations were answered belongs to neither.
            let answer = self.answers.entry(mark).or_insert(Some((tip, lineage)));
            *answer = answer
                .filter(|(_, known)| *known == lineage)
                .map(|_| (tip, lineage));
        }
    }

    fn confirm(&mut self, history: &History) {
        for chained in history.messages() {
            if let Some(known) = self.nodes.get_mut(&chained.link) {
                known.node.confirmed |= known.node.first_length < history.len();
            }
        }
    }

    /// Ranges end where no call is open and everything is confirmed; all their words are at hand.
    fn observe(&mut self, history: &History, sent: &dyn Fn(usize) -> Option<usize>) {
        let messages = history.messages();
        let link = |place: usize| messages[place].link;
        let whole = |place: usize| sent(place).is_some() && is_whole(history, place);
        if self.keeps {
            for place in (0..messages.len()).filter(|place| whole(*place)) {
                let known = self.nodes.get_mut(&link(place)).unwrap();
                (known.step.text_kept, known.shown) =
                    (known.node.confirmed, known.shown || known.node.confirmed);
            }
        }
        let mut from = (0..messages.len())
            .rev()
            .find(|place| self.nodes[&link(*place)].step.range_end)
            .map_or(0, |at| at + 1);
        while let Some(to) =
            (from + RANGE..messages.len()).find(|to| self.nodes[&link(to - 1)].node.closed)
        {
            let ready = |place: usize| {
                let known = &self.nodes[&link(place)];
                known.node.confirmed && (whole(place) || known.step.text_kept)
            };
            if !(from..to).all(ready) {
                return;
            }
            for place in from..to {
                self.nodes.get_mut(&link(place)).unwrap().shown = true;
            }
            self.nodes.get_mut(&link(to - 1)).unwrap().step.range_end = true;
            from = to;
        }
    }
}

/// Whether the message at `place` is sent as it first was.
pub fn is_whole(history: &History, place: usize) -> bool {
    let messages = history.messages();
    let before = place
        .checked_sub(1)
        .map_or(history.root(), |before| messages[before].link);
    messages[place].link == before.next(&messages[place].message.fingerprint)
}

/// How many of each kind, for people.
pub fn format_counts(counts: &BTreeMap<&'static str, usize>) -> String {
    let each = counts.iter().map(|(what, count)| format!("{count} {what}"));
    each.collect::<Vec<_>>().join(", ")
}
