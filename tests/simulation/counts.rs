//! What runs were about, for whoever wants to know whether they met what they are to judge.

/// Numbers of one run, or of many.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Forks of them and what is beside them not counted.
    pub conversations: usize,
    pub requests: usize,
    pub chunks: usize,
    pub by_code: usize,
    pub reflections: usize,
    pub snapshots: usize,
    pub lost_leases: usize,
    pub crashes: usize,
    pub interleaved: usize,
    pub stale: usize,
    pub hints: usize,
    /// Snapshots whose hints would be of what is known to be done.
    pub finished: usize,
    pub changed: usize,
    pub again: usize,
    pub views: usize,
    /// Requests that did not fit, by what was done for them.
    pub too_long: usize,
    pub awaited: usize,
    pub adopted: usize,
    pub trimmed: usize,
    /// Deaths between the steps that such a request takes.
    pub died_shortening: usize,
    pub timers: usize,
    pub idle: usize,
}

impl Counts {
    pub fn sum(all: &[Self]) -> Self {
        all.iter().fold(Self::default(), |sum, one| Self {
            conversations: sum.conversations + one.conversations,
            requests: sum.requests + one.requests,
            chunks: sum.chunks + one.chunks,
            by_code: sum.by_code + one.by_code,
            reflections: sum.reflections + one.reflections,
            snapshots: sum.snapshots + one.snapshots,
            lost_leases: sum.lost_leases + one.lost_leases,
            crashes: sum.crashes + one.crashes,
            interleaved: sum.interleaved + one.interleaved,
            stale: sum.stale + one.stale,
            hints: sum.hints + one.hints,
            finished: sum.finished + one.finished,
            changed: sum.changed + one.changed,
            again: sum.again + one.again,
            views: sum.views + one.views,
            too_long: sum.too_long + one.too_long,
            awaited: sum.awaited + one.awaited,
            adopted: sum.adopted + one.adopted,
            trimmed: sum.trimmed + one.trimmed,
            died_shortening: sum.died_shortening + one.died_shortening,
            timers: sum.timers + one.timers,
            idle: sum.idle + one.idle,
        })
    }

    /// What was never met.
    pub fn unmet(&self) -> Vec<String> {
        let listing = format!("{self:#?}");
        let lines = listing.lines().filter_map(|line| line.strip_suffix(": 0,"));
        lines.map(|name| name.trim().to_owned()).collect()
    }
}
