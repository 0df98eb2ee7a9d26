//! What an upstream was found to accept: where the block may stand, whether usage may be asked, and which
//! blocks its content filter refuses.
//!
//! Learned from answers, kept in memory, forgotten with the process: what it costs to learn again is
//! one extra request. One process has one upstream, so the model is the key.

mod filtered;

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use self::filtered::Filtered;
use crate::memory::SnapshotId;
use crate::wire::Placement;

/// How long a refused placement, or block, is not tried again. Long enough that the extra request does not
/// matter, short enough that an upgraded upstream is found out the same day.
const STEPPED_DOWN: Duration = Duration::from_hours(1);

/// Models remembered; clients choose the names, so there must be a bound. The one that was not asked
/// for the longest goes first.
const MODELS: usize = 1_024;

/// Hosts that document `stream_options.include_usage` for chat completions.
const REPORT_USAGE: [&str; 9] = [
    "api.openai.com",
    "openrouter.ai",
    "api.deepseek.com",
    "api.groq.com",
    "api.x.ai",
    "api.together.xyz",
    "api.fireworks.ai",
    "api.mistral.ai",
    "generativelanguage.googleapis.com",
];

/// From the first that may be configured to the one that every upstream takes.
const LADDER: [Placement; 3] = [
    Placement::Segments,
    Placement::SystemMessage,
    Placement::AppendToSystem,
];

/// Where a block stands that was to stand at `first`, once `refused` and what comes before it are
/// refused; `None` where nothing is left.
pub(super) fn below(first: Placement, refused: Placement) -> Option<Placement> {
    step(first, place(refused)? + 1)
}

/// `first`, or what is left of the ladder after so many steps.
fn step(first: Placement, steps: usize) -> Option<Placement> {
    LADDER.get(place(first)?.max(steps)).copied()
}

fn place(placement: Placement) -> Option<usize> {
    LADDER.iter().position(|known| *known == placement)
}

/// What is known of one model.
#[derive(Debug, Default)]
struct Model {
    /// Placements that it refused, and when the last of them.
    refused: Option<(usize, Instant)>,
    /// It answered a stream that was asked for its usage on the client's behalf.
    reports_usage: bool,
    /// When it was last looked at, in looks.
    looked_at: u64,
}

#[derive(Debug, Default)]
struct Learned {
    /// What is configured now; `None` is `off`.
    first: Option<Placement>,
    models: HashMap<String, Model>,
    looks: u64,
    usage: Option<bool>,
    filtered: Filtered,
}

impl Learned {
    /// What is known of `model`, if anything.
    fn known(&mut self, model: &str) -> Option<&mut Model> {
        self.looks += 1;
        let known = self.models.get_mut(model)?;
        known.looked_at = self.looks;
        Some(known)
    }

    /// The same, with room made for what is to be learned.
    fn model(&mut self, model: &str) -> &mut Model {
        if self.models.len() >= MODELS && !self.models.contains_key(model) {
            let oldest = self.models.iter().min_by_key(|(_, known)| known.looked_at);
            if let Some(oldest) = oldest.map(|(name, _)| name.clone()) {
                self.models.remove(&oldest);
            }
        }
        self.looks += 1;
        let known = self.models.entry(model.to_owned()).or_default();
        known.looked_at = self.looks;
        known
    }
}

/// What is known of the upstream.
#[derive(Debug)]
pub struct Manners {
    learned: Mutex<Learned>,
}

impl Manners {
    /// Starts from the configured placement (`None` is `off`) and the upstream's host.
    pub fn new(first: Option<Placement>, host: &str) -> Self {
        let usage = REPORT_USAGE.contains(&host).then_some(true);
        Self {
            learned: Mutex::new(Learned {
                first,
                usage,
                ..Learned::default()
            }),
        }
    }

    fn learned(&self) -> MutexGuard<'_, Learned> {
        self.learned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another placement is configured now.
    pub fn prefer(&self, first: Option<Placement>) {
        self.learned().first = first;
    }

    /// Where a block that is made now stands for `model`; `None` where no placement is left.
    pub fn placement(&self, model: &str) -> Option<Placement> {
        let first = self.learned().first?;
        self.stepped_down(model, first)
    }

    /// Where the block of a snapshot stands for `model`, which was made when `own` was configured
    /// ([`crate::memory::SnapshotMeta::placement`]).
    pub fn placement_of(&self, model: &str, own: &str) -> Option<Placement> {
        match own {
            "" => self.placement(model),
            own => self.stepped_down(model, Placement::from_name(own)?),
        }
    }

    fn stepped_down(&self, model: &str, first: Placement) -> Option<Placement> {
        let mut learned = self.learned();
        let refused = learned.known(model).and_then(|known| known.refused);
        step(first, refused.map_or(0, |(steps, _)| steps))
    }

    /// `model` refused a request with the block at `placement` and accepted it without, or with the
    /// block elsewhere.
    pub fn refused(&self, model: &str, placement: Placement) {
        let Some(at) = place(placement) else {
            return;
        };
        self.learned().model(model).refused = Some((at + 1, Instant::now()));
    }

    /// A content filter of `model` refused a request with the words of `snapshot`, and the client's own
    /// were accepted.
    pub fn filtered(&self, model: &str, snapshot: SnapshotId) {
        let now = Instant::now();
        self.learned().filtered.refused(model, snapshot, now);
    }

    /// `model` accepted a request with the words of `snapshot`.
    pub fn taken(&self, model: &str, snapshot: SnapshotId) {
        self.learned().filtered.taken(model, snapshot);
    }

    /// Whether requests for `model` go out without `snapshot`, since its words were refused twice in a row.
    pub fn passes_over(&self, model: &str, snapshot: SnapshotId) -> bool {
        self.learned().filtered.passes_over(model, snapshot)
    }

    /// Forgets refusals that are old enough at `now` to be tried again. Called from time to time by
    /// a task of `app`, since no request may decide by the clock (INV-FREE).
    pub fn forgive(&self, now: Instant) {
        let mut learned = self.learned();
        learned.filtered.forgive(now);
        for known in learned.models.values_mut() {
            let young =
                |(_, at): &(usize, Instant)| now.saturating_duration_since(*at) < STEPPED_DOWN;
            known.refused = known.refused.filter(young);
        }
    }

    /// Whether a stream may be asked for its usage on the client's behalf.
    pub fn may_ask_usage(&self) -> bool {
        self.learned().usage == Some(true)
    }

    /// Whether our own question was refused.
    pub fn refuses_usage(&self) -> bool {
        self.learned().usage == Some(false)
    }

    /// `model` answered a stream that was asked for its usage on the client's behalf.
    pub fn reported_usage(&self, model: &str) {
        self.learned().model(model).reports_usage = true;
    }

    /// Whether it did: then a refusal that names no reason is not about that question.
    pub fn reports_usage(&self, model: &str) -> bool {
        let mut learned = self.learned();
        learned
            .known(model)
            .is_some_and(|known| known.reports_usage)
    }

    /// A client asked for usage itself and was answered.
    pub fn usage_accepted(&self) {
        self.learned().usage.get_or_insert(true);
    }

    /// Our own question was refused: never again.
    pub fn usage_refused(&self) {
        self.learned().usage = Some(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_down_one_placement_at_a_time_for_one_model() {
        let manners = Manners::new(Some(Placement::SystemMessage), "localhost");
        assert_eq!(manners.placement("a"), Some(Placement::SystemMessage));
        manners.refused("a", Placement::SystemMessage);
        assert_eq!(manners.placement("a"), Some(Placement::AppendToSystem));
        assert_eq!(manners.placement("b"), Some(Placement::SystemMessage));
        manners.refused("a", Placement::AppendToSystem);
        assert_eq!(manners.placement("a"), None);
    }

    #[test]
    fn a_refusal_is_forgiven_after_an_hour() {
        let manners = Manners::new(Some(Placement::SystemMessage), "localhost");
        manners.refused("a", Placement::SystemMessage);
        manners.forgive(Instant::now() + STEPPED_DOWN / 2);
        assert_eq!(manners.placement("a"), Some(Placement::AppendToSystem));
        manners.forgive(Instant::now() + STEPPED_DOWN * 2);
        assert_eq!(manners.placement("a"), Some(Placement::SystemMessage));
    }

    #[test]
    fn a_snapshot_stands_where_it_was_made_to_stand_unless_that_is_refused() {
        let manners = Manners::new(Some(Placement::SystemMessage), "localhost");
        manners.prefer(Some(Placement::Segments));
        assert_eq!(manners.placement("a"), Some(Placement::Segments));
        let of = |own| manners.placement_of("a", own);
        assert_eq!(of("system_message"), Some(Placement::SystemMessage));
        assert_eq!(of("append_to_system"), Some(Placement::AppendToSystem));
        assert_eq!(of("off"), None);
        assert_eq!(of(""), Some(Placement::Segments));
        manners.refused("a", Placement::SystemMessage);
        for own in ["segments", "system_message", "append_to_system", ""] {
            assert_eq!(
                manners.placement_of("a", own),
                Some(Placement::AppendToSystem)
            );
            assert_ne!(
                manners.placement_of("a", own),
                manners.placement_of("b", "segments")
            );
        }
    }

    #[test]
    fn the_model_that_was_not_asked_for_the_longest_is_forgotten() {
        let manners = Manners::new(Some(Placement::SystemMessage), "localhost");
        for number in 0..MODELS {
            manners.refused(&format!("m{number}"), Placement::SystemMessage);
        }
        // Looked at again, so the second is the oldest now.
        manners.placement("m0");
        manners.refused("one more", Placement::SystemMessage);
        let stepped_down = |name: &str| manners.placement(name) == Some(Placement::AppendToSystem);
        assert!(stepped_down("m0") && stepped_down("one more") && stepped_down("m2"));
        assert!(!stepped_down("m1"));
        assert_eq!(manners.learned().models.len(), MODELS);
    }

    #[test]
    fn off_stays_off() {
        assert_eq!(Manners::new(None, "localhost").placement("a"), None);
    }

    #[test]
    fn usage_is_asked_where_known_or_seen_accepted_and_never_after_a_refusal() {
        assert!(Manners::new(None, "api.openai.com").may_ask_usage());
        let manners = Manners::new(None, "localhost");
        assert!(!manners.may_ask_usage());
        manners.usage_accepted();
        assert!(manners.may_ask_usage());
        manners.usage_refused();
        manners.usage_accepted();
        assert!(!manners.may_ask_usage());
    }
}
