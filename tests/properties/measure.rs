//! What cases were about, for whoever wants to know whether the generators reach what they are to.

/// What a case was about, for the measure of the generators.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    pub requests: usize,
    pub activations: usize,
    pub reflections: usize,
    pub forks: usize,
    pub parallel: usize,
    pub changed: usize,
    pub pinned: usize,
    pub stepped: usize,
    pub too_long: usize,
}
