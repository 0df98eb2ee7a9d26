//! The tracks in memory: found by the tip of their last request, and by the jobs they wait for. Bounded
//! in bytes; the track that was not used for longest goes first, and is loaded again when it is needed.

use std::collections::HashMap;

use super::track::Track;
use crate::history::{History, Link, Scope};
use crate::lookup::AgedMap;
use crate::memory::Span;

/// The most memory that tracks hold, in bytes.
const MAX_BYTES: usize = 48 * 1_024 * 1_024;

/// What the maps here hold for one track, in bytes.
const ENTRY_BYTES: usize = 512;

/// The tenant and the last link of a track.
type Tip = ([u8; 32], Link);

/// See the module.
#[derive(Debug)]
pub(super) struct Tracks {
    by_tip: AgedMap<Tip, Track>,
    /// The tips of the tracks whose chains begin with a link.
    by_first_link: HashMap<Link, Vec<Tip>>,
    /// For the end of each open job that a track waits for, the first link of its chain.
    first_links: HashMap<Link, Link>,
    max_bytes: usize,
}

impl Default for Tracks {
    fn default() -> Self {
        Self::with_room(MAX_BYTES)
    }
}

impl Tracks {
    fn with_room(max_bytes: usize) -> Self {
        Self {
            by_tip: AgedMap::default(),
            by_first_link: HashMap::new(),
            first_links: HashMap::new(),
            max_bytes,
        }
    }

    /// Takes the track whose chain `history` continues or repeats.
    pub(super) fn take(&mut self, scope: &Scope, history: &History) -> Option<Track> {
        let tip = history
            .messages()
            .iter()
            .rev()
            .map(|chained| (scope.tenant, chained.link))
            .find(|key| self.by_tip.contains_key(key))?;
        self.remove(&tip)
    }

    /// Takes the track whose last request ends in `tip`.
    pub(super) fn take_at(&mut self, scope: &Scope, tip: Link) -> Option<Track> {
        self.remove(&(scope.tenant, tip))
    }

    /// Puts a track back under its tip, unless it is stale.
    pub(super) fn put(&mut self, track: Track) {
        if track.stale {
            return;
        }
        let (Some(last), Some(first_link)) = (track.nodes.last(), track.first_link()) else {
            return;
        };
        let tip = (track.scope.tenant, last.link);
        self.remove(&tip);
        self.by_first_link.entry(first_link).or_default().push(tip);
        let ends = track.open_job_ends().into_iter();
        self.first_links.extend(ends.map(|end| (end, first_link)));
        let bytes = ENTRY_BYTES + track.bytes();
        self.by_tip.insert(tip, bytes, track);
        for (oldest, track) in self.by_tip.shrink(self.max_bytes, |other, _| *other == tip) {
            self.remove_links(&oldest, &track);
        }
    }

    /// Takes every track that contains `span`, in the order of their last requests: what one track
    /// causes is there for the next.
    pub(super) fn take_containing(&mut self, scope: &Scope, span: &Span) -> Vec<Track> {
        // Chains that contain a link begin alike. Where no track waits for the job (another process
        // queued it, or its track went), all are looked at.
        let candidates: Vec<Tip> = match self.first_links.get(&span.to) {
            Some(first) => self.by_first_link.get(first).cloned().unwrap_or_default(),
            None => self.by_tip.keys().copied().collect(),
        };
        let mut found: Vec<(u64, Tip)> = candidates
            .into_iter()
            .filter_map(|tip| Some((tip, self.by_tip.get_with_age(&tip)?)))
            .filter(|(_, (_, track))| track.contains(scope, span))
            .map(|(tip, (age, _))| (age, tip))
            .collect();
        found.sort_unstable_by_key(|(age, _)| *age);
        let taken = found.iter().filter_map(|(_, tip)| self.remove(tip));
        taken.collect()
    }

    fn remove(&mut self, tip: &Tip) -> Option<Track> {
        let track = self.by_tip.remove(tip)?;
        self.remove_links(tip, &track);
        Some(track)
    }

    /// Removes what a track is found by besides its tip.
    fn remove_links(&mut self, tip: &Tip, track: &Track) {
        for end in track.open_job_ends() {
            self.first_links.remove(&end);
        }
        if let Some(first_link) = track.first_link()
            && let Some(tips) = self.by_first_link.get_mut(&first_link)
        {
            tips.retain(|other| other != tip);
            if tips.is_empty() {
                self.by_first_link.remove(&first_link);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Encoder, Role};
    use crate::jobs::track::JobResult;
    use crate::memory::advance::JobState;
    use crate::memory::{Node, PartKind};
    use crate::store::RecordedChain;

    fn scope() -> Scope {
        Scope::new(b"key", None)
    }

    /// A chain of `length` messages; those up to `shared` are the same under every name.
    fn track(name: &str, shared: usize, length: usize) -> Track {
        let mut link = Link::root(&scope());
        let mut nodes = Vec::new();
        for number in 1..=length {
            let mut encoder = Encoder::new();
            encoder.text("content", if number <= shared { "alike" } else { name });
            encoder.count("number", number);
            link = link.next(&encoder.finish());
            nodes.push(Node {
                link,
                count: number,
                role: Role::User,
                tokens: 1,
                closed: true,
                turn_end: true,
                first_length: length,
                confirmed: true,
                received_ms: 0,
                live: true,
            });
        }
        let stored = RecordedChain {
            nodes,
            ..RecordedChain::default()
        };
        Track::new(&scope(), stored)
    }

    fn tip(track: &Track) -> Link {
        track.nodes.last().expect("a message").link
    }

    fn span(track: &Track, to_count: usize) -> Span {
        Span {
            from: Link::root(&scope()),
            from_count: 0,
            to: track.nodes[to_count - 1].link,
            to_count,
        }
    }

    #[test]
    fn the_least_recently_used_track_is_dropped_at_the_byte_limit() {
        let names: Vec<String> = (0..8).map(|number| format!("talk {number}")).collect();
        let tips: Vec<Link> = names.iter().map(|name| tip(&track(name, 0, 10))).collect();
        let one = ENTRY_BYTES + track("x", 0, 10).bytes();
        let mut tracks = Tracks::with_room(4 * one);
        for name in &names[..4] {
            tracks.put(track(name, 0, 10));
        }
        let used = tracks.take_at(&scope(), tips[0]).expect("kept");
        tracks.put(used);
        for name in &names[4..7] {
            tracks.put(track(name, 0, 10));
            assert!(tracks.by_tip.bytes() <= 4 * one);
        }
        assert!(tracks.take_at(&scope(), tips[0]).is_some(), "used since");
        assert!(tracks.take_at(&scope(), tips[1]).is_none(), "the oldest");
        // A track that is larger than all room stays until the next one comes.
        tracks.put(track("long", 0, 400));
        assert_eq!(tracks.by_tip.keys().count(), 1);
        tracks.put(track("short", 0, 10));
        assert!(
            tracks
                .take_at(&scope(), tip(&track("long", 0, 400)))
                .is_none()
        );
        assert!(
            tracks
                .take_at(&scope(), tip(&track("short", 0, 10)))
                .is_some()
        );
        let empty = (tracks.by_tip.bytes(), tracks.by_first_link.len());
        assert_eq!(empty, (0, 0), "nothing is left of what went");
    }

    #[test]
    fn a_job_result_finds_every_fork_of_its_chain() {
        let (mut waiting, fork) = (track("one", 4, 6), track("two", 4, 6));
        let (other, span) = (track("else", 0, 6), span(&fork, 4));
        let fresh = JobResult::Pending(JobState::Fresh);
        waiting.apply_result(PartKind::Chunk, &span, &fresh);
        let mut tracks = Tracks::default();
        for track in [fork, other, waiting] {
            tracks.put(track);
        }
        assert_eq!(
            tracks.first_links.len(),
            1,
            "found without a look at the others"
        );
        let taken = tracks.take_containing(&scope(), &span);
        let (one, two) = (tip(&track("one", 4, 6)), tip(&track("two", 4, 6)));
        assert_eq!(taken.iter().map(tip).collect::<Vec<_>>(), [two, one]);
        assert!(tracks.first_links.is_empty());
        // A job that no track knows of: another process queued it.
        for mut track in taken {
            track.jobs.clear();
            tracks.put(track);
        }
        assert_eq!(tracks.take_containing(&scope(), &span).len(), 2);
        assert_eq!(tracks.by_tip.keys().count(), 1);
    }
}
