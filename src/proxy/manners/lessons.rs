//! What each tenant found out of one model, and what two of them agree on.
//!
//! A lesson moves the block, or the question for usage, of the tenant alone that was refused: one oddly
//! refused request of somebody costs nobody else the prompt cache. When a second tenant has learned the
//! same of the same model, it holds for all. Used by [`super::Manners`] alone.

use std::time::Instant;

use super::{Tenant, is_young};

/// Tenants remembered for one model. The one whose lesson was looked at the longest ago goes first: what it
/// costs to learn again is one extra request.
const TENANTS: usize = 64;

/// Whoever refuses so many changed requests in a row, without a reason and taking the original each time,
/// is taken at its word: the first may be a failure over there that the second attempt no longer met.
const UNEXPLAINED: u32 = 2;

/// What was learned of a model.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lessons {
    /// How many placements were refused, and when the last of them.
    pub(super) refused: Option<(usize, Instant)>,
    /// Whether a stream may be asked for its usage. What was refused once stays refused.
    pub(super) usage: Option<bool>,
}

/// What one tenant knows.
#[derive(Debug)]
struct Known {
    tenant: Tenant,
    lessons: Lessons,
    /// Changed requests that were refused without a reason since one was taken.
    unexplained: u32,
    /// When it was last looked at, in looks.
    looked_at: u64,
}

/// What is known of one model.
#[derive(Debug, Default)]
pub(super) struct Model {
    /// What two tenants agree on.
    shared: Lessons,
    tenants: Vec<Known>,
    looks: u64,
}

impl Model {
    /// What holds for `tenant`: the more that is refused of what it learned and of what all know.
    pub(super) fn of(&mut self, tenant: &Tenant) -> Lessons {
        self.looks += 1;
        let (looks, shared) = (self.looks, self.shared);
        let known = self.tenants.iter_mut().find(|it| it.tenant == *tenant);
        let own = known.map(|known| {
            known.looked_at = looks;
            known.lessons
        });
        let own = own.unwrap_or_default();
        Lessons {
            refused: own.refused.max(shared.refused),
            // What was refused to two is refused to whoever had it taken before, too.
            usage: match shared.usage {
                Some(false) => Some(false),
                shared => own.usage.or(shared),
            },
        }
    }

    /// So many placements were refused to `tenant`.
    pub(super) fn refused(&mut self, tenant: &Tenant, steps: usize, now: Instant) {
        let known = self.known(tenant);
        known.lessons.refused = known.lessons.refused.max(Some((steps, now)));
        known.unexplained = 0;
        let mut steps: Vec<usize> = self.refusals().map(|(steps, _)| steps).collect();
        steps.sort_unstable_by(|a, b| b.cmp(a));
        // The second highest is what two of them have learned.
        if let Some(agreed) = steps.get(1) {
            self.shared.refused = self.shared.refused.max(Some((*agreed, now)));
        }
    }

    /// A question for usage was refused to `tenant`, or answered.
    pub(super) fn usage(&mut self, tenant: &Tenant, taken: bool) {
        if taken && self.shared.usage.is_some() {
            // Nothing new, and no reason to forget another tenant for it.
            return;
        }
        let known = self.known(tenant);
        if taken {
            known.lessons.usage.get_or_insert(true);
        } else {
            known.lessons.usage = Some(false);
            known.unexplained = 0;
        }
        let alike = |it: &&Known| it.lessons.usage == Some(taken);
        if self.tenants.iter().filter(alike).count() > 1 && self.shared.usage != Some(false) {
            self.shared.usage = Some(taken);
        }
    }

    /// A changed request of `tenant` was refused without a reason, and the original taken. Whether that is
    /// enough to learn from it.
    pub(super) fn unexplained(&mut self, tenant: &Tenant) -> bool {
        let known = self.known(tenant);
        known.unexplained += 1;
        known.unexplained >= UNEXPLAINED
    }

    /// A changed request of `tenant` was taken.
    pub(super) fn taken(&mut self, tenant: &Tenant) {
        if let Some(known) = self.tenants.iter_mut().find(|it| it.tenant == *tenant) {
            known.unexplained = 0;
        }
    }

    /// Forgets refused placements that are old enough to be tried again.
    pub(super) fn forgive(&mut self, now: Instant) {
        let young = |it: &(usize, Instant)| is_young(it.1, now);
        self.shared.refused = self.shared.refused.filter(young);
        for known in &mut self.tenants {
            known.lessons.refused = known.lessons.refused.filter(young);
        }
    }

    fn refusals(&self) -> impl Iterator<Item = (usize, Instant)> {
        self.tenants.iter().filter_map(|it| it.lessons.refused)
    }

    /// What `tenant` knows, with room made for what it learns.
    fn known(&mut self, tenant: &Tenant) -> &mut Known {
        self.looks += 1;
        let found = self.tenants.iter().position(|it| it.tenant == *tenant);
        let at = found.unwrap_or_else(|| {
            if self.tenants.len() >= TENANTS {
                let ages = self.tenants.iter().enumerate();
                let oldest = ages.min_by_key(|(_, it)| it.looked_at).map(|(at, _)| at);
                self.tenants.swap_remove(oldest.unwrap_or_default());
            }
            self.tenants.push(Known {
                tenant: *tenant,
                lessons: Lessons::default(),
                unexplained: 0,
                looked_at: 0,
            });
            self.tenants.len() - 1
        });
        let known = &mut self.tenants[at];
        known.looked_at = self.looks;
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Tenant = [1; 32];
    const B: Tenant = [2; 32];
    const C: Tenant = [3; 32];

    fn steps(model: &mut Model, tenant: &Tenant) -> usize {
        model.of(tenant).refused.map_or(0, |(steps, _)| steps)
    }

    #[test]
    fn a_placement_holds_for_one_tenant_and_with_a_second_for_all() {
        let (mut model, now) = (Model::default(), Instant::now());
        model.refused(&A, 1, now);
        assert_eq!([&A, &B].map(|it| steps(&mut model, it)), [1, 0]);
        model.refused(&A, 2, now);
        assert_eq!(
            steps(&mut model, &B),
            0,
            "the same tenant again is no second one"
        );
        model.refused(&B, 1, now);
        assert_eq!([&A, &B, &C].map(|it| steps(&mut model, it)), [2, 1, 1]);
        model.refused(&C, 2, now);
        assert_eq!(steps(&mut model, &B), 2);
    }

    #[test]
    fn usage_is_agreed_on_likewise_and_a_refusal_stays() {
        let mut model = Model::default();
        model.usage(&A, true);
        assert_eq!([&A, &B].map(|it| model.of(it).usage), [Some(true), None]);
        model.usage(&B, true);
        assert_eq!(model.of(&C).usage, Some(true));
        model.usage(&A, false);
        model.usage(&A, true);
        assert_eq!(
            [&A, &C].map(|it| model.of(it).usage),
            [Some(false), Some(true)]
        );
        assert_eq!(model.of(&B).usage, Some(true));
        model.usage(&C, false);
        assert_eq!(
            [&B, &[4; 32]].map(|it| model.of(it).usage),
            [Some(false); 2],
            "also for whom it was taken before"
        );
    }

    #[test]
    fn what_was_agreed_is_forgiven_as_what_was_learned() {
        let (mut model, now) = (Model::default(), Instant::now());
        model.refused(&A, 1, now);
        model.refused(&B, 1, now);
        model.forgive(now + super::super::STEPPED_DOWN * 2);
        assert_eq!([&A, &C].map(|it| steps(&mut model, it)), [0, 0]);
    }

    #[test]
    fn only_the_second_refusal_in_a_row_without_a_reason_teaches() {
        let mut model = Model::default();
        assert!(!model.unexplained(&A));
        assert!(!model.unexplained(&B), "each tenant counts its own");
        model.taken(&A);
        assert!(!model.unexplained(&A));
        assert!(model.unexplained(&A));
        model.refused(&A, 1, Instant::now());
        assert!(!model.unexplained(&A), "the next placement has its own two");
    }

    #[test]
    fn tenants_are_bounded() {
        let (mut model, now) = (Model::default(), Instant::now());
        model.refused(&A, 2, now);
        for number in 0..=u8::try_from(TENANTS).expect("few") {
            model.of(&A);
            model.refused(&[number + 100; 32], 1, now);
        }
        assert_eq!(model.tenants.len(), TENANTS);
        assert_eq!(steps(&mut model, &A), 2, "it was looked at");
    }
}
