//! What an upstream was found to accept: where the block may stand, whether usage may be asked, which
//! blocks its content filter refuses, and whose requests are signed.
//!
//! Learned from answers, kept in memory, forgotten with the process: what it costs to learn again is
//! one extra request. One process has one upstream, so model and tenant are the key; what two tenants
//! have learned of a model holds for all ([`lessons`]).

mod filtered;
mod lessons;

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use self::filtered::Filtered;
use self::lessons::{Lessons, Model};
use crate::memory::SnapshotId;
use crate::wire::Placement;

/// How long a refused placement or block, or a change of what is signed, is not tried again. Long enough that the extra request does not
/// matter, short enough that an upgraded upstream is found out the same day.
const STEPPED_DOWN: Duration = Duration::from_hours(1);

/// Models remembered; clients choose the names, so there must be a bound. The one that was not asked
/// for the longest goes first.
const MODELS: usize = 1_024;

/// Tenants remembered that sign their requests. The one that was learned of first goes first.
const SIGNING: usize = 1_024;

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

/// Whose credential, hashed.
pub(super) type Tenant = [u8; 32];

/// Who asks, and which model.
#[derive(Clone, Copy, Debug)]
pub struct Asker<'a> {
    pub tenant: &'a Tenant,
    pub model: &'a str,
}

/// What is known of one model.
#[derive(Debug, Default)]
struct Known {
    lessons: Model,
    /// It answered a stream that was asked for its usage on the client's behalf.
    reports_usage: bool,
    /// When it was last looked at, in looks.
    looked_at: u64,
}

#[derive(Debug, Default)]
struct Learned {
    /// What is configured now; `None` is `off`.
    first: Option<Placement>,
    models: HashMap<String, Known>,
    looks: u64,
    /// The upstream's host documents the question for usage.
    documents_usage: bool,
    filtered: Filtered,
    /// Who signs its requests, as far as refusals tell, and since when.
    signing: HashMap<Tenant, Instant>,
}

impl Learned {
    /// What is known of `model`, if anything.
    fn known(&mut self, model: &str) -> Option<&mut Known> {
        self.looks += 1;
        let known = self.models.get_mut(model)?;
        known.looked_at = self.looks;
        Some(known)
    }

    /// What was learned of `asker`'s model, as far as it holds for its tenant.
    fn lessons(&mut self, asker: Asker<'_>) -> Lessons {
        let known = self.known(asker.model);
        known.map_or_else(Lessons::default, |known| known.lessons.of(asker.tenant))
    }

    /// The same, with room made for what is to be learned.
    fn model(&mut self, model: &str) -> &mut Known {
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
        Self {
            learned: Mutex::new(Learned {
                first,
                documents_usage: REPORT_USAGE.contains(&host),
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

    /// Where a block that is made now stands for `asker`; `None` where no placement is left.
    pub fn placement(&self, asker: Asker<'_>) -> Option<Placement> {
        let first = self.learned().first?;
        self.stepped_down(asker, first)
    }

    /// Where the block of a snapshot stands for `asker`, which was made when `own` was configured
    /// ([`crate::memory::SnapshotMeta::placement`]).
    pub fn placement_of(&self, asker: Asker<'_>, own: &str) -> Option<Placement> {
        match own {
            "" => self.placement(asker),
            own => self.stepped_down(asker, Placement::from_name(own)?),
        }
    }

    fn stepped_down(&self, asker: Asker<'_>, first: Placement) -> Option<Placement> {
        let refused = self.learned().lessons(asker).refused;
        step(first, refused.map_or(0, |(steps, _)| steps))
    }

    /// A request of `asker` was refused with the block at `placement` and accepted without, or with the
    /// block elsewhere.
    pub fn refused(&self, asker: Asker<'_>, placement: Placement) {
        let Some(at) = place(placement) else {
            return;
        };
        let mut learned = self.learned();
        let lessons = &mut learned.model(asker.model).lessons;
        lessons.refused(asker.tenant, at + 1, Instant::now());
    }

    /// A changed request of `asker` was refused without a reason, and the original was accepted. Whether
    /// that is enough to learn from: it is from the second in a row on.
    pub fn unexplained(&self, asker: Asker<'_>) -> bool {
        let mut learned = self.learned();
        learned.model(asker.model).lessons.unexplained(asker.tenant)
    }

    /// A changed request of `asker` was accepted.
    pub fn took_change(&self, asker: Asker<'_>) {
        if let Some(known) = self.learned().known(asker.model) {
            known.lessons.taken(asker.tenant);
        }
    }

    /// A changed request of `tenant` was refused for its credential, and the original was accepted: the
    /// credential signs what is sent.
    pub fn signs(&self, tenant: &Tenant) {
        let mut learned = self.learned();
        if learned.signing.len() >= SIGNING && !learned.signing.contains_key(tenant) {
            let oldest = learned.signing.iter().min_by_key(|(_, at)| **at);
            if let Some(oldest) = oldest.map(|(tenant, _)| *tenant) {
                learned.signing.remove(&oldest);
            }
        }
        learned.signing.insert(*tenant, Instant::now());
    }

    /// Whether requests of `tenant` go out as they came, since they are signed.
    pub fn is_signing(&self, tenant: &Tenant) -> bool {
        self.learned().signing.contains_key(tenant)
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
        learned.signing.retain(|_, at| is_young(*at, now));
        for known in learned.models.values_mut() {
            known.lessons.forgive(now);
        }
    }

    /// Whether a stream of `asker` may be asked for its usage on its behalf: the upstream is known to
    /// take that, and has not refused it.
    pub fn may_ask_usage(&self, asker: Asker<'_>) -> bool {
        let mut learned = self.learned();
        let usage = learned.lessons(asker).usage;
        usage.unwrap_or(learned.documents_usage)
    }

    /// Whether our own question was refused.
    pub fn refuses_usage(&self, asker: Asker<'_>) -> bool {
        self.learned().lessons(asker).usage == Some(false)
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

    /// `asker`'s client asked for usage itself and was answered.
    pub fn usage_accepted(&self, asker: Asker<'_>) {
        let mut learned = self.learned();
        let lessons = &mut learned.model(asker.model).lessons;
        lessons.usage(asker.tenant, true);
    }

    /// Our own question was refused: never again.
    pub fn usage_refused(&self, asker: Asker<'_>) {
        let mut learned = self.learned();
        let lessons = &mut learned.model(asker.model).lessons;
        lessons.usage(asker.tenant, false);
    }
}

/// Whether what was learned `at` that moment still holds.
fn is_young(at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(at) < STEPPED_DOWN
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everybody here is one tenant: what two of them agree on is tested with the lessons.
    fn by(model: &str) -> Asker<'_> {
        Asker {
            tenant: &[7; 32],
            model,
        }
    }

    #[test]
    fn steps_down_one_placement_at_a_time_for_one_model() {
        let manners = Manners::new(Some(Placement::SystemMessage), "localhost");
        assert_eq!(manners.placement(by("a")), Some(Placement::SystemMessage));
        manners.refused(by("a"), Placement::SystemMessage);
        assert_eq!(manners.placement(by("a")), Some(Placement::AppendToSystem));
        assert_eq!(manners.placement(by("b")), Some(Placement::SystemMessage));
        manners.refused(by("a"), Placement::AppendToSystem);
        assert_eq!(manners.placement(by("a")), None);
    }

    #[test]
    fn a_refusal_is_forgiven_after_an_hour() {
        let manners = Manners::new(Some(Placement::SystemMessage), "localhost");
        manners.refused(by("a"), Placement::SystemMessage);
        manners.forgive(Instant::now() + STEPPED_DOWN / 2);
        assert_eq!(manners.placement(by("a")), Some(Placement::AppendToSystem));
        manners.forgive(Instant::now() + STEPPED_DOWN * 2);
        assert_eq!(manners.placement(by("a")), Some(Placement::SystemMessage));
    }

    #[test]
    fn a_snapshot_stands_where_it_was_made_to_stand_unless_that_is_refused() {
        let manners = Manners::new(Some(Placement::SystemMessage), "localhost");
        manners.prefer(Some(Placement::Segments));
        assert_eq!(manners.placement(by("a")), Some(Placement::Segments));
        let of = |own| manners.placement_of(by("a"), own);
        assert_eq!(of("system_message"), Some(Placement::SystemMessage));
        assert_eq!(of("append_to_system"), Some(Placement::AppendToSystem));
        assert_eq!(of("off"), None);
        assert_eq!(of(""), Some(Placement::Segments));
        manners.refused(by("a"), Placement::SystemMessage);
        for own in ["segments", "system_message", "append_to_system", ""] {
            assert_eq!(
                manners.placement_of(by("a"), own),
                Some(Placement::AppendToSystem)
            );
            assert_ne!(
                manners.placement_of(by("a"), own),
                manners.placement_of(by("b"), "segments")
            );
        }
    }

    #[test]
    fn the_model_that_was_not_asked_for_the_longest_is_forgotten() {
        let manners = Manners::new(Some(Placement::SystemMessage), "localhost");
        for number in 0..MODELS {
            manners.refused(by(&format!("m{number}")), Placement::SystemMessage);
        }
        // Looked at again, so the second is the oldest now.
        manners.placement(by("m0"));
        manners.refused(by("one more"), Placement::SystemMessage);
        let stepped_down =
            |name: &str| manners.placement(by(name)) == Some(Placement::AppendToSystem);
        assert!(stepped_down("m0") && stepped_down("one more") && stepped_down("m2"));
        assert!(!stepped_down("m1"));
        assert_eq!(manners.learned().models.len(), MODELS);
    }

    #[test]
    fn off_stays_off() {
        assert_eq!(Manners::new(None, "localhost").placement(by("a")), None);
    }

    #[test]
    fn usage_is_asked_where_known_or_seen_accepted_and_never_after_a_refusal() {
        assert!(Manners::new(None, "api.openai.com").may_ask_usage(by("a")));
        let manners = Manners::new(None, "localhost");
        assert!(!manners.may_ask_usage(by("a")));
        manners.usage_accepted(by("a"));
        assert!(manners.may_ask_usage(by("a")));
        manners.usage_refused(by("a"));
        manners.usage_accepted(by("a"));
        assert!(!manners.may_ask_usage(by("a")));
    }

    #[test]
    fn whoever_signs_is_known_for_an_hour_and_no_more_of_them_than_fit() {
        let manners = Manners::new(None, "localhost");
        let tenant = |number: usize| {
            let mut tenant = [0; 32];
            tenant[..8].copy_from_slice(&number.to_le_bytes());
            tenant
        };
        for number in 0..=SIGNING {
            manners.signs(&tenant(number));
        }
        assert_eq!(manners.learned().signing.len(), SIGNING);
        assert!(manners.is_signing(&tenant(SIGNING)) && !manners.is_signing(&[9; 32]));
        manners.forgive(Instant::now() + STEPPED_DOWN / 2);
        assert!(manners.is_signing(&tenant(SIGNING)));
        manners.forgive(Instant::now() + STEPPED_DOWN * 2);
        assert!(!manners.is_signing(&tenant(SIGNING)));
    }
}
