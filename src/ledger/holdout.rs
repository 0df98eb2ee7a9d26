//! What memory saves as measured: the conversations that went without memory (`audit.holdout`) beside the others.
//!
//! Conversations of both groups differ in length, so costs are compared for a megabyte that the clients sent. The
//! interval comes from the delete-a-group jackknife (Kott 2001): conversations are dealt into [`BUCKETS`] by a hash of
//! their names, the saving is computed once without each bucket, and the spread of the results gives the error. Its
//! memory does not grow with the conversations.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use super::line::Line;
use super::recent::RecentMap;

const BUCKETS: usize = 64;

/// The 97.5th percentile of Student's t with `BUCKETS - 1` degrees of freedom.
const T_95: f64 = 1.998;

/// With fewer conversations in a group the interval would be narrower than the truth.
const FEWEST_CONVERSATIONS: u64 = 20;

/// The sums of one group in one bucket.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    dollars: f64,
    megabytes: f64,
}

/// One group of conversations.
#[derive(Clone, Debug)]
pub struct HoldoutGroup {
    /// A conversation that comes back after very many others counts again.
    pub conversations: u64,
    /// Requests whose cost is known.
    pub requests: u64,
    buckets: [Bucket; BUCKETS],
}

impl Default for HoldoutGroup {
    fn default() -> Self {
        Self {
            conversations: 0,
            requests: 0,
            buckets: [Bucket::default(); BUCKETS],
        }
    }
}

impl HoldoutGroup {
    /// Dollars for a megabyte that the clients sent, without the bucket `omitted`.
    fn rate_without(&self, omitted: Option<usize>) -> Option<f64> {
        let counted = self.buckets.iter().enumerate();
        let counted = counted.filter(|(at, _)| Some(*at) != omitted);
        let (dollars, megabytes) = counted.fold((0.0, 0.0), |sums, (_, bucket)| {
            (sums.0 + bucket.dollars, sums.1 + bucket.megabytes)
        });
        (megabytes > 0.0).then(|| dollars / megabytes)
    }

    /// Dollars for a megabyte that the clients sent, memory's calls included.
    pub fn dollars_per_megabyte(&self) -> Option<f64> {
        self.rate_without(None)
    }
}

/// The share of the cost that memory saves; negative if it costs more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Saving {
    pub share: f64,
    /// The ends of the 95 % interval; `None` if there are too few conversations for one.
    pub interval: Option<(f64, f64)>,
}

/// Compares both groups.
#[derive(Clone, Debug, Default)]
pub struct Holdout {
    pub with_memory: HoldoutGroup,
    pub without_memory: HoldoutGroup,
    /// Whether each conversation goes without memory.
    groups: RecentMap<bool>,
}

fn conversation(line: &Line<'_>) -> String {
    [line.tenant.as_str(), line.thread_name()].join("\0")
}

fn bucket(conversation: &str) -> usize {
    let mut hasher = DefaultHasher::new();
    conversation.hash(&mut hasher);
    // The remainder is below BUCKETS.
    usize::try_from(hasher.finish() % BUCKETS as u64).unwrap_or(0)
}

impl Holdout {
    /// Adds a request that cost so much.
    pub(super) fn add_request(&mut self, line: &Line<'_>, dollars: f64) {
        let Some(held_out) = line.holdout else { return };
        let key = conversation(line);
        let bucket = bucket(&key);
        let is_new = self.groups.get(&key).is_none();
        self.groups.set(key, held_out);
        let group = if held_out {
            &mut self.without_memory
        } else {
            &mut self.with_memory
        };
        group.conversations += u64::from(is_new);
        group.requests += 1;
        let bucket = &mut group.buckets[bucket];
        bucket.dollars += dollars;
        bucket.megabytes += line.bytes_received.unwrap_or(0) as f64 / 1e6;
    }

    /// Adds a model call of memory. It counts if its conversation has memory and had a request before.
    pub(super) fn add_call(&mut self, line: &Line<'_>, dollars: f64) {
        let key = conversation(line);
        if self.groups.get(&key) == Some(&false) {
            self.with_memory.buckets[bucket(&key)].dollars += dollars;
        }
    }

    /// `None` if a group has no request with a known cost.
    pub fn saving(&self) -> Option<Saving> {
        let share = self.share_without(None)?;
        let groups = [&self.with_memory, &self.without_memory];
        let enough = groups.map(|group| group.conversations >= FEWEST_CONVERSATIONS);
        let interval = enough.iter().all(|enough| *enough).then(|| {
            let replicates = (0..BUCKETS).filter_map(|omitted| self.share_without(Some(omitted)));
            let squares: f64 = replicates.map(|it| (it - share).powi(2)).sum();
            let count = BUCKETS as f64;
            let error = ((count - 1.0) / count * squares).sqrt();
            (share - T_95 * error, share + T_95 * error)
        });
        Some(Saving { share, interval })
    }

    fn share_without(&self, omitted: Option<usize>) -> Option<f64> {
        let without_memory = self.without_memory.rate_without(omitted)?;
        let with_memory = self.with_memory.rate_without(omitted)?;
        (without_memory > 0.0).then(|| 1.0 - with_memory / without_memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(thread: u64, held_out: bool, bytes: u64) -> String {
        format!(
            r#"{{"time":"2026-11-23T11:20:14.295Z","request_id":"a","tenant":"t","thread":"{thread}","bytes_received":{bytes},"holdout":{held_out}}}"#
        )
    }

    fn add(holdout: &mut Holdout, text: &str, dollars: f64) {
        let (_, line) = Line::parse(text.as_bytes()).unwrap();
        holdout.add_request(&line, dollars);
    }

    /// A number from 0 to 1 that looks random.
    fn noise(number: u64) -> f64 {
        let mut hasher = DefaultHasher::new();
        ("noise", number).hash(&mut hasher);
        (hasher.finish() % 1_000) as f64 / 1_000.0
    }

    /// Conversations of which memory saves 40 %, each with noise of its own.
    fn sample(seed: u64) -> Holdout {
        let mut holdout = Holdout::default();
        for thread in seed * 1_000..seed * 1_000 + 400 {
            let held_out = thread % 4 == 0;
            let dollars = (0.5 + noise(thread)) * if held_out { 1.0 } else { 0.6 };
            add(&mut holdout, &request(thread, held_out, 1_000_000), dollars);
        }
        holdout
    }

    #[test]
    fn the_interval_contains_the_true_saving_in_about_95_percent_of_samples() {
        let samples = 200;
        let holds = |seed: &u64| {
            let saving = sample(*seed).saving().unwrap();
            let (low, high) = saving.interval.unwrap();
            assert!(low < saving.share && saving.share < high && high - low < 0.3);
            low <= 0.4 && 0.4 <= high
        };
        let held = (0..samples).filter(holds).count();
        assert!((180..200).contains(&held), "{held} of {samples}");
    }

    #[test]
    fn conversations_in_neither_group_do_not_count() {
        let mut holdout = Holdout::default();
        let neither = r#"{"time":"2026-11-23T11:20:14.295Z","request_id":"a","thread":"x","bytes_received":5}"#;
        add(&mut holdout, neither, 9.0);
        assert_eq!(holdout.saving(), None);
        add(&mut holdout, &request(1, true, 1_000_000), 1.0);
        add(&mut holdout, &request(2, false, 1_000_000), 0.25);
        for (tenant, thread) in [("t", "2"), ("t", "x"), ("other", "2")] {
            let call = format!(
                r#"{{"time":"2026-11-23T11:20:14.295Z","call":"observe","tenant":"{tenant}","thread":"{thread}"}}"#
            );
            let (_, line) = Line::parse(call.as_bytes()).unwrap();
            holdout.add_call(&line, 0.25);
        }
        let saving = Saving {
            share: 0.5,
            interval: None,
        };
        assert_eq!(holdout.saving(), Some(saving));
    }

    #[test]
    fn requests_of_one_conversation_count_as_one_conversation() {
        let mut holdout = Holdout::default();
        for _ in 0..5 {
            add(&mut holdout, &request(1, true, 10), 1.0);
        }
        let group = &holdout.without_memory;
        assert_eq!((group.conversations, group.requests), (1, 5));
    }
}
