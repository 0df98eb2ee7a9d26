//! What happened to the store, and the laws about it: leases, commits, coverage, what was shown.
//!
//! Written down by [`super::watched::Watched`] as it happens, for all processes of a run together.
//! Knows the conversations from their clients, and asks the code under test nothing.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use diarist::history::{History, Link, Scope};
use diarist::llm::Prompt;
use diarist::memory::{
    NewPart, PartId, PartKind, Snapshot, SnapshotCause, SnapshotId, Span, Trim, render,
};
use diarist::store::{
    Job, NewJob, NewOverflowObservation, NewSnapshot, Release, RequestRecord, SentWith,
    StoredOverflowObservation,
};
use diarist::tokens::TokenCounter as _;

use super::clockwork::Clockwork;
use super::counts::Counts;
use super::finished::EndedJobs;
use super::model::CUT_HERE;
use super::range::Range;
use super::registered_routes::Routes;
use super::rules::{Breach, Rule};
use crate::properties::conversation::{Digest, MessageContent, Msg, Request, Run};
use crate::properties::exchange::{Quarters, Shown};
use crate::properties::scripted_observer::Mark;

/// A message at its place in a chain, as its client meant it.
#[derive(Clone, Debug)]
struct Place {
    parent: Option<Link>,
    digest: Digest,
    /// How its words begin; empty where it says nothing.
    words: String,
}

type PartKey = (Scope, PartKind, Link, Link);

fn key(scope: &Scope, kind: PartKind, span: &Span) -> PartKey {
    (scope.clone(), kind, span.from, span.to)
}

#[derive(Debug)]
struct Lease {
    fence: i64,
    until_ms: i64,
    holder: usize,
}

/// What happened in one run.
#[derive(Debug, Default)]
pub struct Ledger {
    places: HashMap<Link, Place>,
    owners: HashMap<Scope, String>,
    parts: HashMap<PartId, (Scope, NewPart)>,
    committed: HashMap<PartKey, PartId>,
    /// Logs that code shortened.
    stopgaps: HashSet<PartKey>,
    /// Tokens of a log that are too many.
    pub limit: u32,
    leases: HashMap<i64, Lease>,
    snapshots: HashMap<SnapshotId, (Scope, Snapshot)>,
    /// Tips of recorded requests: their length, and what the first of them went out with.
    pub recorded: HashMap<(Scope, Link), (usize, SentWith)>,
    /// What each process is about to record.
    /// What each process has taken to record, by the newest message: a first request waits for a second.
    recording: HashMap<(usize, Link), (Request, Vec<u8>)>,
    /// What every recorded request went out as.
    pub canon: HashMap<(String, Bytes), (Request, Vec<u8>)>,
    /// What the Observer was shown of each range.
    observer_prompts: HashMap<(String, Run), String>,
    /// Requests that the upstream took, by owner and body.
    pub accepted: HashSet<(String, Bytes)>,
    /// Ends of ranges that were offered with their words.
    offers: HashSet<(Scope, Link)>,
    /// Messages whose words are kept beside them.
    archived: HashSet<(Scope, Link)>,
    pub clockwork: Clockwork,
    /// Chunks that processes have heard of.
    pub finished: EndedJobs,
    /// Where memory has no endpoint of its own.
    pub routes: Option<Routes>,
    /// What requests went out with that is no stored snapshot, by their numbers from [`UNSTORED`] on.
    unstored: Vec<Unstored>,
    pub shown: Vec<Shown>,
    pub breaches: Vec<Breach>,
    pub counts: Counts,
}

/// From here on numbers mean something else than a stored snapshot: one that is not stored yet, or one
/// behind which messages are left out.
pub const UNSTORED: i64 = 1_000_000;

/// What a request went out with: the process and its number for a snapshot that is not stored, or a
/// stored snapshot; and where it was trimmed.
pub type Unstored = (Option<(usize, SnapshotId)>, Option<Trim>);

impl Ledger {
    pub fn breach(&mut self, rule: Rule, how: impl Into<String>) {
        let how = how.into();
        self.breaches.push(Breach { rule, how });
    }

    /// A client says this: what each link of its chain stands for.
    pub fn add_request(
        &mut self,
        scope: &Scope,
        history: &History,
        request: &Request,
        view: Option<&[Option<usize>]>,
    ) {
        self.owners
            .entry(scope.clone())
            .or_insert_with(|| request.owner.label());
        if view.is_none() {
            assert_eq!(history.len(), request.turns.len(), "messages were lost");
        }
        let mut parent = None;
        for (place, chained) in history.messages().iter().enumerate() {
            let sent = view.map_or(Some(place), |view| view[place]);
            let is_known = self.places.contains_key(&chained.link);
            if !is_known {
                let Some(msg) = sent.map(|sent| &request.turns[sent]) else {
                    return self.breach(Rule::Contiguous, "a message nobody ever sent has a place");
                };
                let new = Place {
                    parent,
                    digest: msg.digest,
                    words: beginning(msg),
                };
                self.places.insert(chained.link, new);
            }
            let digest = sent.map(|sent| request.turns[sent].digest);
            if let Some(place) = self.places.get_mut(&chained.link)
                && digest != Some(place.digest)
            {
                // A client that sends it no more, or a placeholder of it, may leave nothing to be shown.
                place.words.clear();
            }
            parent = Some(chained.link);
        }
    }

    /// How many messages of the chain up to `tip` stand in chunks.
    pub fn observed(&self, scope: &Scope, tip: Link) -> usize {
        let chain: HashSet<Link> = self.chain(tip).into_iter().collect();
        let chunks = self.parts.values().filter(|(owner, part)| {
            owner == scope && part.kind == PartKind::Chunk && chain.contains(&part.span.to)
        });
        let ends = chunks.map(|(_, part)| part.span.to_count);
        ends.max().unwrap_or(0)
    }

    /// How many messages of the chain up to `tip` stand in chunks, or in jobs that carry their words.
    pub fn offered_to(&self, scope: &Scope, tip: Link) -> usize {
        let chain = self.chain(tip);
        let offered = |link: &Link| self.offers.contains(&(scope.clone(), *link));
        let waits = chain.iter().position(offered);
        let waits = waits.map_or(0, |newest| chain.len() - newest);
        waits.max(self.observed(scope, tip))
    }

    /// Whether the words of the message at `place` of the chain up to `tip` are kept.
    pub fn is_archived(&self, scope: &Scope, tip: Link, place: usize) -> bool {
        let link = self.chain(tip).into_iter().rev().nth(place);
        link.is_some_and(|link| self.archived.contains(&(scope.clone(), link)))
    }

    /// What the chain up to `tip` says.
    pub fn digests(&self, tip: Link) -> Vec<Digest> {
        let chain = self.chain(tip);
        let digests = chain.iter().rev().map(|link| self.places[link].digest);
        digests.collect()
    }

    /// What `span` means to its client.
    pub fn range(&self, scope: &Scope, kind: PartKind, span: &Span) -> Range {
        let (mut chain, mut words) = (Vec::new(), Vec::new());
        let mut at = Some(span.to);
        while let Some(link) = at {
            let place = &self.places[&link];
            chain.push(place.digest);
            words.push(place.words.clone());
            at = place.parent;
        }
        chain.reverse();
        words.reverse();
        Range {
            owner: self.owners.get(scope).cloned().unwrap_or_default(),
            kind,
            to_count: span.to_count,
            from: span.from_count,
            words: words.split_off(span.from_count.min(words.len())),
            chain,
        }
    }

    /// The number under which the laws know what a request went out with.
    pub fn number(&mut self, what: Unstored, scope: &Scope, text: Option<&Snapshot>) -> SnapshotId {
        let known = self.unstored.iter().position(|known| *known == what);
        let at = known.unwrap_or_else(|| {
            self.unstored.push(what);
            self.unstored.len() - 1
        });
        let id = SnapshotId(UNSTORED + i64::try_from(at).unwrap());
        if let Some(text) = text {
            self.snapshots.insert(id, (scope.clone(), text.clone()));
        }
        id
    }

    pub fn snapshot(&self, id: SnapshotId) -> Option<&Snapshot> {
        self.snapshots.get(&id).map(|(_, snapshot)| snapshot)
    }

    /// The Observer was asked `prompt` about `range`, or about a piece of it.
    pub fn record_prompt(&mut self, range: &Range, prompt: &Prompt) {
        let shown = prompt.user.rsplit_once("<history-").map_or("", |it| it.1);
        let before = self
            .observer_prompts
            .entry((range.owner.clone(), range.whole()))
            .or_default();
        before.push_str(shown);
    }

    /// What was observed while a client waited is stored, and the request with it.
    pub fn adopted(
        &mut self,
        process: usize,
        scope: &Scope,
        record: &RequestRecord,
        (adoption, adopted): (&NewOverflowObservation, &StoredOverflowObservation),
    ) {
        self.counts.adopted += 1;
        let used = SentWith {
            snapshot: Some(adopted.snapshot.meta.id),
            ..record.sent_with.clone()
        };
        let record = RequestRecord {
            sent_with: used,
            ..record.clone()
        };
        self.recorded(process, scope, &record);
        for (part, id) in adoption.parts.iter().zip(&adopted.parts) {
            // A worker may have brought one of the same range meanwhile.
            if !self.parts.contains_key(id) {
                self.part_written(scope, part, *id);
            }
        }
        self.snapshot_prepared(scope, &adoption.snapshot, &adopted.snapshot);
    }

    /// Whatever was said in the range was shown, or stands in what code wrote of it.
    fn check_words(&mut self, range: &Range, text: &str) {
        let shown = self
            .observer_prompts
            .get(&(range.owner.clone(), range.whole()));
        let shown = shown.map_or("", String::as_str);
        let missing = |words: &&String| !shown.contains(&***words) && !text.contains(&***words);
        if let Some(words) = range.words.iter().find(missing) {
            let how = format!("{range:?}: {words:?} was not shown");
            self.breach(Rule::Words, how);
        }
    }

    pub fn offered(&mut self, scope: &Scope, job: &NewJob) {
        if job.kind == PartKind::Chunk {
            self.offers.insert((scope.clone(), job.span.to));
            let range = self.range(scope, job.kind, &job.span);
            self.shown.push(Shown {
                owner: range.owner.clone(),
                from: range.from,
                chain: range.chain,
            });
        }
    }

    /// `process` is about to record `request`, which went out as `sent`.
    pub fn recording(&mut self, process: usize, tip: Link, request: Request, sent: Vec<u8>) {
        self.recording.insert((process, tip), (request, sent));
    }

    /// What `process` had taken to record and did not.
    pub fn unrecorded(&mut self, process: usize) -> Vec<Request> {
        let all = self
            .recording
            .extract_if(|(taken_by, _), _| *taken_by == process);
        all.map(|(_, (request, _))| request).collect()
    }

    /// It is recorded. The first of two that end in the same message says what both go out with.
    pub fn recorded(&mut self, process: usize, scope: &Scope, record: &RequestRecord) {
        let words = record.lookup_entries.kept_messages.iter();
        self.archived
            .extend(words.map(|(link, _)| (scope.clone(), *link)));
        let known = |(request, _): &(Request, Vec<u8>)| {
            let key = (request.owner.label(), request.body.clone());
            self.accepted.contains(&key)
        };
        if !self.recording.get(&(process, record.tip)).is_none_or(known) {
            self.breach(Rule::Accepted, "a request is recorded that was refused");
        }
        let (_, first) = self
            .recorded
            .entry((scope.clone(), record.tip))
            .or_insert_with(|| (record.count, record.sent_with.clone()));
        if let Some((request, sent)) = self.recording.remove(&(process, record.tip))
            && *first == record.sent_with
        {
            let key = (request.owner.label(), request.body.clone());
            self.canon.entry(key).or_insert((request, sent));
        }
    }

    /// What `request` went out as when it was recorded.
    pub fn canon(&self, request: &Request) -> Option<&[u8]> {
        let key = (request.owner.label(), request.body.clone());
        self.canon.get(&key).map(|(_, sent)| &**sent)
    }

    pub fn claimed(&mut self, holder: usize, job: &Job, now_ms: i64, until_ms: i64) {
        let (kind, span) = (job.spec.kind, job.spec.span);
        if self.committed.contains_key(&key(&job.scope, kind, &span)) {
            let range = self.range(&job.scope, kind, &span);
            self.breach(
                Rule::Once,
                format!("{range:?} is written and claimed again"),
            );
        }
        let before = key(&job.scope, PartKind::Chunk, &span).2;
        let first = kind == PartKind::Reflection || span.from_count == 0;
        let follows = first || self.committed.keys().any(|(_, _, _, to)| *to == before);
        if !follows {
            let how = "a chunk is claimed before the one it follows is written";
            self.breach(Rule::Contiguous, how);
        }
        if let Some(held) = self.leases.get(&job.id) {
            if held.until_ms > now_ms {
                let how = format!(
                    "job {} is held by {} and claimed again",
                    job.id, held.holder
                );
                self.breach(Rule::Lease, how);
            } else {
                self.counts.lost_leases += 1;
            }
        }
        self.leases.insert(
            job.id,
            Lease {
                fence: job.fence,
                until_ms,
                holder,
            },
        );
    }

    pub fn renewed(&mut self, job: &Job, until_ms: i64, renewed: bool) {
        match self.leases.get_mut(&job.id) {
            Some(lease) if lease.fence == job.fence && renewed => {
                lease.until_ms = until_ms;
            }
            _ if renewed => self.breach(Rule::Lease, "a lost lease was renewed"),
            _ => {}
        }
    }

    pub fn released(&mut self, job: &Job, _how: Release) {
        if self
            .leases
            .get(&job.id)
            .is_some_and(|lease| lease.fence == job.fence)
        {
            self.leases.remove(&job.id);
        }
    }

    pub fn committed(&mut self, job: &Job, part: &NewPart, id: PartId) {
        let range = self.range(&job.scope, part.kind, &part.span);
        match self.leases.remove(&job.id) {
            Some(lease) if lease.fence == job.fence => {}
            _ => self.breach(
                Rule::Lease,
                format!("{range:?} was committed without a lease"),
            ),
        }
        self.part_written(&job.scope, part, id);
    }

    /// A part was stored, by a worker or by code that needs no model.
    pub fn part_written(&mut self, scope: &Scope, part: &NewPart, id: PartId) {
        let range = self.range(scope, part.kind, &part.span);
        let key = key(scope, part.kind, &part.span);
        let twice = if part.code_reflection {
            !self.stopgaps.insert(key)
        } else {
            self.committed.insert(key, id).is_some()
        };
        if twice {
            self.breach(Rule::Once, format!("{range:?} was committed twice"));
        }
        if part.text.trim().is_empty() {
            self.breach(Rule::Empty, format!("{range:?} was committed without text"));
        }
        if part.text.contains(CUT_HERE) {
            let how = format!("{range:?} was committed with half an answer");
            self.breach(Rule::Whole, how);
        }
        let own = part.model != "code";
        match part.kind {
            PartKind::Chunk => {
                self.check_words(&range, &part.text);
                self.counts.chunks += 1;
            }
            PartKind::Reflection => self.counts.reflections += 1,
        }
        self.counts.by_code += usize::from(!own);
        self.parts.insert(id, (scope.clone(), part.clone()));
    }

    /// A snapshot is to be committed that no client waited for the observations of: that one is stored as it
    /// went out.
    pub fn check_limit(&mut self, scope: &Scope, new: &NewSnapshot) {
        if new.tokens >= self.limit {
            let mut stopgaps = self.stopgaps.iter();
            let shortened = stopgaps.any(|key| key.0 == *scope && key.3 == new.to);
            if !shortened {
                let how = format!("a log of {} tokens is sent as it is", new.tokens);
                self.breach(Rule::Limit, how);
            }
        }
    }

    /// Whether nobody has prepared what sends the same as `snapshot`.
    pub fn is_new(&self, snapshot: &Snapshot) -> bool {
        !self.snapshots.contains_key(&snapshot.meta.id)
    }

    /// A snapshot was committed for the chain that ends at `new.tip`.
    pub fn snapshot_prepared(&mut self, scope: &Scope, new: &NewSnapshot, snapshot: &Snapshot) {
        let kept = (scope.clone(), snapshot.clone());
        if self.snapshots.insert(snapshot.meta.id, kept).is_some() {
            // One that sends the same was there already.
            return;
        }
        self.counts.snapshots += 1;
        self.counts.idle += usize::from(new.cause == SnapshotCause::Idle);
        let chain: HashSet<Link> = self.chain(new.to).into_iter().collect();
        let mut at = 0;
        for id in &snapshot.meta.parts {
            let Some((owner, part)) = self.parts.get(id) else {
                return self.breach(Rule::Contiguous, format!("{id:?} was never committed"));
            };
            if owner != scope || part.span.from_count != at || !chain.contains(&part.span.to) {
                let how = format!("{id:?} does not follow message {at} of its chain");
                return self.breach(Rule::Contiguous, how);
            }
            at = part.span.to_count;
        }
        if new.cause == SnapshotCause::Idle && !self.rang_for(scope, new.tip) {
            let how = format!("activated as idle at {}, and no timer rang", new.tip_count);
            self.breach(Rule::Idle, how);
        }
        if at != new.to_count {
            let how = format!("parts end at {at}, not at {}", new.to_count);
            self.breach(Rule::Contiguous, how);
        }
        let sent = snapshot.segments.iter().skip(1).take(new.parts.len());
        let sent: u32 = sent.map(|segment| Quarters.count(segment)).sum();
        let parts = snapshot.meta.parts.iter();
        let known = parts.filter_map(|id| self.parts.get(id));
        let at_most: u32 = known.map(|(_, part)| part.tokens).sum();
        if sent > at_most || sent != new.tokens {
            let how = format!(
                "{sent} tokens of observations are sent, {at_most} at most, as {}",
                new.tokens
            );
            self.breach(Rule::Counted, how);
        }
        let sent_without = self
            .recorded
            .iter()
            .filter(|((owner, tip), _)| owner == scope && self.chain(*tip).contains(&new.tip))
            .map(|(_, (count, _))| *count)
            .max()
            .unwrap_or(0);
        if !new.eligible_now && snapshot.meta.eligible_from <= sent_without {
            let how = format!(
                "a request of {sent_without} messages went out without a snapshot eligible from {}",
                snapshot.meta.eligible_from
            );
            self.breach(Rule::Eligible, how);
        }
    }

    /// The links up to `tip`, the newest first.
    pub fn chain(&self, tip: Link) -> Vec<Link> {
        let mut chain = Vec::new();
        let mut at = Some(tip);
        while let Some(link) = at {
            chain.push(link);
            at = self.places.get(&link).and_then(|place| place.parent);
        }
        chain
    }

    /// What code wrote carries no mark, and what was observed in pieces one for each piece: the one that
    /// its range asks for is put in their place. A mark that says something else stays and is noticed.
    pub fn marked(&self, scope: &Scope, part: &NewPart) -> NewPart {
        let range = self.range(scope, part.kind, &part.span);
        let (own, marks) = (range.mark(), Mark::read(&part.text));
        let left_out = part.text.contains("observations left out");
        let code = part.model == "code" || left_out;
        let pieces = part.kind == PartKind::Chunk && marks.iter().all(|mark| *mark == own);
        // A reflection may leave the newest days as they were: it is a reflection all the same.
        let marked_run = marks
            .iter()
            .fold(Run::default(), |run, mark| run.then(mark.run));
        let partly = part.kind == PartKind::Reflection
            && marked_run == own.run
            && marks.iter().all(|mark| mark.owner == own.owner);
        if (!code && !pieces && !partly) || (pieces && marks.len() == 1) {
            return part.clone();
        }
        let lines = part.text.lines().filter(|line| Mark::read(line).is_empty());
        let lines: Vec<&str> = lines.collect();
        let text = format!("{}\n* {}", lines.join("\n"), own.write(0));
        NewPart {
            tokens: render::max_tokens(&text, |text| Quarters.count(text)),
            text,
            ..part.clone()
        }
    }

    /// A part that is not `not`, and its text.
    pub fn other_part(&self, not: PartId, dice: usize) -> Option<(PartId, String)> {
        let mut other_parts: Vec<_> = self.parts.iter().filter(|(id, _)| **id != not).collect();
        other_parts.sort_by_key(|(id, _)| **id);
        let (id, (_, body)) = other_parts.get(dice % other_parts.len().max(1))?;
        Some((**id, body.text.clone()))
    }

    /// Every part of `scope`.
    pub fn scope_parts(&self, scope: &Scope) -> impl Iterator<Item = &NewPart> {
        let own = self.parts.values().filter(move |(owner, _)| owner == scope);
        own.map(|(_, part)| part)
    }

    pub fn current_task(&self, id: PartId) -> Option<String> {
        self.parts.get(&id)?.1.current_task.clone()
    }

    pub fn fence(&self, job: &Job) -> Option<i64> {
        self.leases.get(&job.id).map(|lease| lease.fence)
    }
}

/// The first word of a message, which names it.
fn beginning(msg: &Msg) -> String {
    let text = match &*msg.content {
        MessageContent::System(_) => "",
        MessageContent::User { text, .. }
        | MessageContent::Answer(text)
        | MessageContent::Calls { text, .. }
        | MessageContent::Result { text, .. } => text,
    };
    text.split([' ', '\n', '.', ','])
        .next()
        .unwrap_or_default()
        .to_owned()
}
