//! Counts of what cases contain. They show whether the generators reach what they are to reach.

/// How often a case contained what the generators are to reach.
#[derive(Clone, Copy, Debug, Default)]
pub struct GeneratorCoverage {
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
