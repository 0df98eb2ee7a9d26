//! What proves that a request belongs to the conversation of a path.
//!
//! A request that lacks messages of the path is told of what it does not hold. So another conversation
//! of the same owner must not be able to hold what proves: templates, few-shot examples, canned and
//! cached answers are no proof. Only an answer counts that the upstream gave in this very conversation,
//! together with what stands next to it, and only as long as no other conversation is known to hold it.

use super::{Run, Sides, Told};
use crate::history::item::{LONG, TELLING};
use crate::history::{Item, Role};

/// What is known of a message of a path, beside what it says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// The upstream gave it as its answer in this conversation.
    pub given: bool,
    /// No other conversation of the owner is known to hold it.
    pub alone: bool,
}

/// Messages of one run that can prove something: each tells something, stands once on each side, and is
/// known in no other conversation.
#[derive(Default)]
struct Witnesses {
    places: Vec<usize>,
    /// The first of them that the upstream gave.
    given: Option<usize>,
    /// The first of them that is a long answer or bears the ids of a tool call.
    strong: Option<usize>,
    /// The first that bears the ids of a tool call that the upstream gave.
    given_call: Option<usize>,
}

/// Messages in one run that prove without a long one or a tool call among them, and with one.
const THREE: usize = 3;
const TWO: usize = 2;

impl Witnesses {
    /// Enough of them to prove; empty where they are not enough.
    fn prove(&self, same_name: bool) -> Vec<usize> {
        let Some(given) = self.given else {
            return Vec::new();
        };
        let needed = match self.strong {
            _ if same_name => 1,
            Some(_) => TWO,
            None => THREE,
        };
        if self.places.len() < needed {
            return Vec::new();
        }
        let first = [Some(given), self.strong].into_iter().flatten();
        let mut proof: Vec<usize> = first.chain(self.places.iter().copied()).collect();
        proof.truncate(THREE + 2);
        proof.sort_unstable();
        proof.dedup();
        proof
    }
}

impl Sides<'_> {
    /// The places on the path that prove that the conversation is the same; empty where nothing does.
    ///
    /// Where the client has messages of its own in front of, or between, what agrees, it may as well be
    /// another conversation that holds the same passage. Then only a tool call counts: its id is drawn
    /// anew with each answer.
    pub(super) fn proof<S, P>(&self, runs: &[Run], told: &Told<S, P>) -> Vec<usize>
    where
        S: Fn(usize) -> Standing,
        P: Fn(usize) -> bool,
    {
        let has_own = self.has_own_before_end(runs, &told.puts_there);
        for run in runs.iter().rev() {
            let witnesses = self.witnesses(*run, &told.standing);
            let proof = match witnesses.given_call {
                Some(call) if has_own => vec![call],
                None if has_own => Vec::new(),
                _ => witnesses.prove(told.same_name),
            };
            if !proof.is_empty() {
                return proof;
            }
        }
        Vec::new()
    }

    /// Whether the request holds a message before the end of `runs` that the path does not know.
    fn has_own_before_end(&self, runs: &[Run], puts_there: impl Fn(usize) -> bool) -> bool {
        let mut from = 0;
        for run in runs {
            if (from..run.client).any(|at| self.is_own(at) && !puts_there(at)) {
                return true;
            }
            from = run.client_end();
        }
        false
    }

    /// Whether the message at `at` of the request stands nowhere on the path.
    pub(super) fn is_own(&self, at: usize) -> bool {
        let item = &self.client.items[at];
        !self.path.contents.contains_key(&item.content)
    }

    fn witnesses(&self, run: Run, standing: impl Fn(usize) -> Standing) -> Witnesses {
        let mut witnesses = Witnesses::default();
        for (path, client) in run.pairs() {
            let standing = standing(path);
            let (known, sent) = (&self.path.items[path], &self.client.items[client]);
            let call = self.has_same_own_ids(known, sent);
            if !standing.alone || !(call || self.is_telling_once(known, sent)) {
                continue;
            }
            witnesses.places.push(path);
            if call || (known.role == Role::Assistant && known.weight >= LONG) {
                witnesses.strong.get_or_insert(path);
            }
            if standing.given && known.role == Role::Assistant {
                witnesses.given.get_or_insert(path);
                if call {
                    witnesses.given_call.get_or_insert(path);
                }
            }
        }
        witnesses
    }

    fn is_telling_once(&self, known: &Item, sent: &Item) -> bool {
        known.ids.is_none()
            && sent.ids.is_none()
            && known.content == sent.content
            && known.weight >= TELLING
            && self.is_once(known, sent)
    }
}
