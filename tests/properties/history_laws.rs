//! The invariants that look at more than one request. They are checked against a history of each owner:
//! what it sent, what went upstream for it, what the Observer was shown of it.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use diarist::memory::{Policy, render};
use diarist_provider::{Prompt, PromptCache, Rules, cache, estimate_tokens, judge};

use super::aligned_chain::AlignedChain;
use super::carried::{Carried, Chains};
use super::conversation::{Digest, Request, Run};
use super::exchange::{Exchange, Shown, Used};
use super::kept::Prompts;
use super::laws::{Broken, Check, Law, breaks, inv_cover, inv_open, inv_own, inv_pair, inv_tail};
use super::measure::GeneratorCoverage;
use super::reading::Reading;
use super::scripted_observer::{END, Mark, Script};

mod prefix;
use prefix::{allowed, inv_prefix, inv_prefix_of_observations};

/// Requests in a row that may be too large (INV-BOUND).
const PATIENCE: usize = 3;

/// An accepted request.
#[derive(Debug)]
struct Past {
    /// The client's leading system messages.
    head: Vec<u8>,
    /// The request it continues, if any.
    before: Option<usize>,
    prefixes: Vec<Run>,
    /// The digest of all that its client sent. The chain of a view has another one.
    client_run: Run,
    /// The forwarded body, without the usage option that we add.
    sent: Vec<u8>,
    used: Used,
    marks: Vec<Mark>,
    cut: usize,
    /// How many messages its notes cover.
    covered: usize,
    /// What stands raw in front of the block.
    front: Vec<Digest>,
    /// Only one process knew what it was sent with.
    held: bool,
    /// How often everybody had fallen idle before it.
    idle: usize,
    /// How many requests in a row were larger than they should be.
    over: usize,
    /// Where the last observation ends in the prompt.
    observations: usize,
}

impl Past {
    /// The whole of its chain.
    fn tip(&self) -> &Run {
        self.prefixes.last().unwrap()
    }
}

/// Everything that one owner sent and was sent for.
#[derive(Debug, Default)]
struct OwnerHistory {
    past: Vec<Past>,
    by_tip: HashMap<Run, usize>,
    by_body: HashMap<Bytes, usize>,
    received: Prompts,
    received_with: HashMap<Used, Prompts>,
    sent: Prompts,
    /// Every chain an accepted request carried.
    carried: Chains,
    /// The last messages of requests that went out while memory had to do without its store.
    doubtful: HashSet<Run>,
    /// How many requests there were when memory was withheld for the last time: what comes then may go on
    /// from another chain, and be told of it in other words.
    withheld: usize,
    shown: usize,
    /// Something did not fit its model: what was applied for it may be used by others.
    shortened: bool,
}

/// The laws that look at more than one request.
#[derive(Debug)]
pub struct Laws {
    policy: Policy,
    script: Script,
    rules: Rules,
    histories: HashMap<String, OwnerHistory>,
    with: PromptCache,
    without: PromptCache,
    /// How often everybody fell idle.
    idle: usize,
    /// Whether memory looks for the conversation that a request belongs to.
    pub views: bool,
    pub broken: Vec<Broken>,
    pub coverage: GeneratorCoverage,
}

impl Laws {
    pub fn new(policy: Policy, script: Script, rules: Rules) -> Self {
        Self {
            policy,
            script,
            rules,
            histories: HashMap::new(),
            with: PromptCache::new(estimate_tokens()),
            without: PromptCache::new(estimate_tokens()),
            idle: 0,
            views: false,
            broken: Vec::new(),
            coverage: GeneratorCoverage::default(),
        }
    }

    /// Everybody fell idle for longer than the provider keeps a prompt.
    pub fn fell_idle(&mut self) {
        self.idle += 1;
    }

    fn note(&mut self, check: Check) {
        self.broken.extend(check.err());
    }

    /// Judges one exchange. `with` says what the request would have been with another snapshot.
    pub fn exchange(
        &mut self,
        request: &Request,
        exchange: &Exchange,
        with: &dyn Fn(Used) -> Bytes,
        aligned_chain: Option<AlignedChain>,
    ) {
        let aligned_chain = aligned_chain.unwrap_or_else(|| AlignedChain::own(request));
        self.coverage.requests += 1;
        self.coverage.stepped += usize::from(exchange.stepped_down);
        self.coverage.too_long += usize::from(exchange.too_long);
        for (sent, _) in &exchange.sent {
            let read = Reading::with_chain(request, sent, aligned_chain.clone());
            for law in [inv_own, inv_cover, inv_tail, inv_pair] {
                self.note(law(&read));
            }
        }
        let open = inv_open(request, exchange, &self.rules);
        self.note(open);
        if exchange.accepted.is_some() && exchange.doubtful {
            let history = self.histories.entry(request.owner.label()).or_default();
            let prefixes = request.prefixes();
            history.carried.carry(request, &prefixes, self.views);
            history.carried.carry_elsewhere(request, &aligned_chain);
            history.doubtful.extend(aligned_chain.prefixes().last());
            if exchange.withheld {
                history.withheld = history.past.len();
            }
        } else if exchange.accepted.is_some() {
            self.accepted(request, exchange, with, aligned_chain);
        }
        for shown in &exchange.shown {
            self.shown(shown);
        }
    }

    fn accepted(
        &mut self,
        request: &Request,
        exchange: &Exchange,
        with: &dyn Fn(Used) -> Bytes,
        aligned_chain: AlignedChain,
    ) {
        let (Some((sent, used)), Some(accepted)) = (exchange.sent.last(), &exchange.accepted)
        else {
            return;
        };
        let read = Reading::with_chain(request, sent, aligned_chain);
        let prefixes = read.aligned_chain.prefixes();
        let prompt = accepted.prompt.segments();
        let mut history = self
            .histories
            .remove(&request.owner.label())
            .unwrap_or_default();
        let before = (0..prefixes.len())
            .rev()
            .find_map(|length| history.by_tip.get(&prefixes[length]).copied());
        self.measure(&history, &read, &prefixes, before);
        let waiting = exchange.waiting || exchange.unplaced;
        let over = self.over(&history, &read, before, waiting);
        let number = history.past.len();
        let head = match request.leading.checked_sub(1) {
            Some(last) => request.body[read.raw_items[0].start..read.raw_items[last].end].to_vec(),
            None => Vec::new(),
        };
        let past = Past {
            head,
            before,
            sent: read.sent.clone(),
            used: *used,
            marks: read.marks.clone(),
            cut: read.reach(),
            covered: read.covered,
            held: exchange.held,
            idle: self.idle,
            front: read
                .front
                .iter()
                .map(|turn| request.turns[*turn].digest)
                .collect(),
            over,
            observations: observations_end(prompt),
            client_run: *request.prefixes().last().unwrap(),
            prefixes,
        };
        let mut checks = vec![inv_bound(over)];
        let raw = judge(&request.body, &Rules::default())
            .ok()
            .map(|raw| raw.prompt);
        if !exchange.elsewhere {
            checks.push(inv_same(
                &history,
                request,
                &read.sent,
                "when it came again",
            ));
        }
        let in_doubt = |run: &Run| history.doubtful.contains(run);
        let doubt = past.prefixes.iter().rposition(in_doubt).unwrap_or(0);
        let before = before.filter(|at| *at >= history.withheld);
        if let Some(before) = before.map(|at| &history.past[at]) {
            let changed = before.used.map(|(id, _)| id) != used.map(|(id, _)| id);
            if changed
                && past.prefixes.len() > before.prefixes.len()
                // What was sent in doubt since is what it goes on from. If it is that very request, it decides
                // nothing: it goes out as it did, whatever that was (INV-SAME).
                && doubt < before.prefixes.len()
                && !exchange.too_long
                && !exchange.stepped_down
                // What was made for one request goes with its process where that dies before it is
                // recorded: nobody knows any more what is to be gone on from.
                && (!before.held || !exchange.lost.contains(&before.client_run))
                // Where a model takes the block nowhere, nobody decided that it is to be sent everything.
                && !exchange.unplaced
            {
                checks.push(self.not_early(&history, before, &past, &read));
                checks.push(inv_worth(
                    &history,
                    &past.prefixes,
                    &read,
                    &with(before.used),
                ));
                checks.push(inv_prefix_of_observations(before, &past, prompt, &history));
            }
        }
        // A client that moves what stands in front of the block moves everything behind it.
        if let Some(raw_prompt) = raw.as_ref().filter(|_| read.front.is_empty()) {
            let raw = raw_prompt.segments();
            checks.push(self.inv_uncached(&read, &accepted.prompt, raw_prompt, &history, *used));
            checks.push(inv_prefix(&history, &read, *used, raw, prompt));
            history.received.add(raw, number);
            history
                .received_with
                .entry(*used)
                .or_default()
                .add_sent(raw, prompt, number);
        }
        history.sent.add(prompt, number);
        history.by_tip.entry(*past.tip()).or_insert(number);
        history
            .by_body
            .entry(request.body.clone())
            .or_insert(number);
        history.shortened |= exchange.too_long;
        history
            .carried
            .carry(request, &request.prefixes(), self.views);
        history
            .carried
            .carry_elsewhere(request, &read.aligned_chain);
        history.past.push(past);
        self.histories.insert(request.owner.label(), history);
        for check in checks {
            self.note(check);
        }
    }

    fn measure(
        &mut self,
        history: &OwnerHistory,
        read: &Reading<'_>,
        prefixes: &[Run],
        before: Option<usize>,
    ) {
        let coverage = &mut self.coverage;
        coverage.changed += usize::from(read.has_block());
        coverage.pinned += usize::from(read.pin().is_some());
        coverage.parallel += usize::from(read.request.turns.iter().any(|turn| turn.calls() > 1));
        if let Some(before) = before.map(|at| &history.past[at])
            && before.prefixes.len() < prefixes.len()
        {
            let news = read
                .marks
                .iter()
                .any(|mark| mark.reflection && !before.marks.contains(mark));
            coverage.reflections += usize::from(news);
            coverage.activations += usize::from(read.reach() > before.cut);
        }
        coverage.forks += usize::from(history.past.iter().any(|past| {
            past.cut > 1
                && prefixes.get(1) == past.prefixes.get(1)
                && prefixes.get(past.cut) != past.prefixes.get(past.cut)
        }));
    }

    /// How many requests in a row were larger than they may be.
    fn over(
        &self,
        history: &OwnerHistory,
        read: &Reading<'_>,
        before: Option<usize>,
        waiting: bool,
    ) -> usize {
        let before = before.map(|at| &history.past[at]);
        let over = before.map_or(0, |before| before.over);
        // What the request before brought is confirmed by this one, and observed after it.
        let earlier = before
            .and_then(|before| before.before)
            .map(|at| &history.past[at]);
        let known = earlier.map_or(0, |earlier| earlier.prefixes.len() - 1);
        // A branch that is not longer yet than the request that brought its messages confirms none.
        let unconfirmed = earlier.is_some_and(|earlier| {
            earlier.prefixes[1..]
                .iter()
                .any(|run| !history.carried.get(run).is_some_and(Carried::confirmed))
        });
        if waiting || unconfirmed || !self.script.works() {
            return 0;
        }
        let head = read.raw_items[..read.request.leading].iter();
        let head = head.map(|item| item.len() / 4).sum::<usize>();
        let pin = read.pin().map_or(0, |pin| read.request.turns[pin].tokens);
        // What the client keeps in front of the block is its own, as its head is.
        let front = read.front.iter().copied();
        let news = read
            .aligned_chain
            .sent
            .iter()
            .skip(known)
            .flatten()
            .copied();
        let news = news
            .chain(front)
            .map(|turn| read.request.turns[turn].tokens);
        let policy = &self.policy;
        let message_tokens = policy
            .costs
            .map_or(policy.message_tokens, |costs| costs.history_limit);
        let budgets = 6 * (message_tokens + policy.observation_tokens) as usize / 5;
        let overhead = policy.block_overhead as usize + render::reminder_tokens() as usize;
        let bound = head + budgets + overhead + pin + news.sum::<usize>();
        let size = read.tokens();
        if size <= bound { 0 } else { over + 1 }
    }

    /// Before its threshold nothing is activated where nobody was idle. Where costs decide, there is no threshold.
    fn not_early(
        &self,
        history: &OwnerHistory,
        before: &Past,
        now: &Past,
        read: &Reading<'_>,
    ) -> Check {
        if self.policy.costs.is_some() {
            return Ok(());
        }
        let condensed = now.marks.iter().any(|mark| mark.reflection);
        if now.cut <= before.cut || condensed || history.shortened || !read.aligned_chain.own {
            return Ok(());
        }
        // Requests that say what is covered now: one of them has reached the threshold, or was idle.
        let covered = now.prefixes[now.cut];
        let shared = history
            .past
            .iter()
            .filter(|past| past.prefixes.get(now.cut) == Some(&covered));
        let mut longest = 0;
        for past in shared {
            if past.idle < self.idle {
                return Ok(());
            }
            let raw = past.prefixes[before.cut + 1..].iter();
            let raw = raw
                .filter_map(|run| history.carried.get(run))
                .map(|it| it.tokens);
            longest = longest.max(raw.sum::<usize>());
        }
        // None of them is in the history where memory had to decide without its store.
        if longest == 0 || longest >= self.policy.message_tokens as usize {
            return Ok(());
        }
        let how = format!("activated at {longest} tokens, and nobody was idle");
        breaks(Law::Early, how)
    }

    /// Uncached tokens where nothing is activated: at most one cache step more than without Diarist.
    fn inv_uncached(
        &mut self,
        read: &Reading<'_>,
        sent: &Prompt,
        raw: &Prompt,
        history: &OwnerHistory,
        used: Used,
    ) -> Check {
        let owner = read.request.owner.label();
        let steady = history.steady(read, used, raw.segments());
        let best = steady
            && history.received.kept(raw.segments()).bytes
                == history.received_with[&used].kept(raw.segments()).bytes;
        let with = self.with.read_and_write(&owner, "m", sent);
        let without = self.without.read_and_write(&owner, "m", raw);
        // Less than this is never cached, however alike.
        let alike = with.prompt_tokens.saturating_sub(without.uncached_tokens());
        if !best || alike < cache::MINIMUM_TOKENS + cache::STEP_TOKENS {
            return Ok(());
        }
        // The simulated cache compares in pieces of 80 tokens at most.
        let most = without.uncached_tokens()
            + cache::STEP_TOKENS
            + 80
            + allowed(read, history, used, raw.segments());
        if with.uncached_tokens() <= most {
            return Ok(());
        }
        breaks(
            Law::Uncached,
            format!(
                "uncached {} tokens, without Diarist {}",
                with.uncached_tokens(),
                without.uncached_tokens()
            ),
        )
    }

    /// Confirmed history only: what the Observer is shown was carried by an accepted request and by
    /// a longer one.
    fn shown(&mut self, shown: &Shown) {
        let history = self.histories.entry(shown.owner.clone()).or_default();
        let mut run = Run::from_digests(&shown.chain[..shown.from]);
        for digest in &shown.chain[shown.from..] {
            run = run.with(*digest);
            let carried = history.carried.get(&run);
            history.shown += carried.map_or(0, |carried| carried.tokens);
            if !carried.is_some_and(Carried::confirmed) {
                let broken = breaks(
                    Law::Confirmed,
                    format!("message {} was shown unconfirmed", run.count),
                );
                return self.note(broken);
            }
        }
    }

    /// At the end: what the Observer was shown in all is at most 1.5 times what was confirmed, where
    /// a message counts once however many chains carry it. Some room is left for how the two sides
    /// round.
    pub fn ended(&mut self) {
        for history in self.histories.values() {
            let confirmed = history.carried.values().filter(|it| it.confirmed());
            let contents: HashMap<(Digest, usize), usize> = confirmed
                .map(|carried| (carried.content, carried.tokens))
                .collect();
            let confirmed: usize = contents.values().sum();
            if history.shown * 100 > confirmed * 155 {
                let how = format!(
                    "{} tokens were shown of {confirmed} confirmed",
                    history.shown
                );
                self.broken.extend(breaks(Law::Confirmed, how).err());
            }
        }
    }

    /// INV-SAME, at the end: what an accepted request goes out as `when` it comes again.
    pub fn again(&mut self, request: &Request, now: &Bytes, when: &str) {
        let Some(history) = self.histories.get(&request.owner.label()) else {
            return;
        };
        let check = inv_same(
            history,
            request,
            &Reading::with_own_chain(request, now).sent,
            when,
        );
        self.note(check);
    }
}

impl OwnerHistory {
    /// Whether of the requests that share the most with this one, one was sent with `used`.
    fn steady(&self, read: &Reading<'_>, used: Used, raw: &[String]) -> bool {
        let all = self.received.kept(raw);
        let alike = self.received_with.get(&used).map(|with| with.kept(raw));
        // Behind a changed head the block is new as well, beside what a client no longer sends.
        (read.aligned_chain.own || all.segments >= read.request.leading)
            && alike.is_some_and(|alike| alike.segments == all.segments)
    }
}

/// Where the last observation ends in `prompt`, in bytes.
fn observations_end(prompt: &[String]) -> usize {
    let mut before = 0;
    for segment in prompt {
        if let Some(at) = segment.rfind(END) {
            return before + at + END.len();
        }
        before += segment.len();
    }
    0
}

/// INV-SAME: the same request goes out as the same bytes.
fn inv_same(history: &OwnerHistory, request: &Request, sent: &[u8], when: &str) -> Check {
    match history.by_body.get(&request.body) {
        Some(at) if history.past[*at].sent != *sent => {
            let how = format!(
                "a request of {} messages went out as other bytes {when}",
                request.turns.len()
            );
            breaks(Law::Same, how)
        }
        _ => Ok(()),
    }
}

/// INV-BOUND: a long history is not long for longer than a few requests.
fn inv_bound(over: usize) -> Check {
    if over > PATIENCE {
        return breaks(
            Law::Bound,
            format!("{over} requests in a row were too large"),
        );
    }
    Ok(())
}

/// INV-WORTH: an activation makes the request smaller. What it stands for counts as it was first said,
/// also where the client had dropped it already, or left a placeholder of it.
fn inv_worth(history: &OwnerHistory, chain: &[Run], now: &Reading<'_>, before: &[u8]) -> Check {
    let before = Reading::with_chain(now.request, before, now.aligned_chain.clone());
    let weight = |place: usize| {
        // A block that covers more than there is breaks another law.
        let first = chain
            .get(place + 1)
            .and_then(|run| history.carried.get(run));
        let sent = now.aligned_chain.sent.get(place).copied().flatten();
        let now = sent.map(|turn| now.request.turns[turn].tokens);
        first.map_or(0, |first| first.tokens.saturating_sub(now.unwrap_or(0)))
    };
    let dropped = (before.covered..now.covered).map(weight).sum::<usize>();
    let (small, large) = (now.tokens(), before.tokens() + dropped);
    // What code counts part by part and message by message is rounded here once for the whole block.
    let slack = now.marks.len() + 2;
    // It was decided on a chain that may have gone on with the user, where none is needed.
    let reminder = if now.reminded() {
        render::reminder_tokens() as usize
    } else {
        0
    };
    if small <= large + slack + reminder {
        return Ok(());
    }
    let how = format!(
        "{small} tokens instead of {large}, covers {} instead of {}",
        now.covered, before.covered
    );
    breaks(Law::Worth, how)
}
