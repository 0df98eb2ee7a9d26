//! The sums of a group of lines.

use super::cost::RequestCost;
use super::estimate::Without;
use super::line::Line;

/// A sum over lines, of which some report no number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct KnownSum {
    sum: u64,
    lines: u64,
}

impl KnownSum {
    fn add(&mut self, number: Option<u64>) {
        self.sum = self.sum.saturating_add(number.unwrap_or(0));
        self.lines += u64::from(number.is_some());
    }

    /// The sum of what is known; `None` if nothing is.
    fn known(self) -> Option<u64> {
        (self.lines > 0).then_some(self.sum)
    }
}

/// What is estimated of a request; each is absent if it is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct RequestEstimates {
    pub cost: Option<RequestCost>,
    /// Its tokens without Diarist.
    pub without: Option<Without>,
    /// The tokens of its prompt, if nobody reported them.
    pub unreported: Option<u64>,
}

/// The sums of a group.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    pub requests: u64,
    pub errors: u64,
    /// Requests in which observations replaced messages.
    pub active: u64,
    /// Requests whose prompt has no count, refused ones left out.
    pub no_usage: u64,
    /// Requests whose prompt has a count, but not the part that came from the cache.
    pub no_cached: u64,
    /// Requests and calls of memory that reported more of the cache than the prompt has.
    pub impossible_usage: u64,
    pub memory_calls: u64,
    /// Calls of memory whose answer could not be used.
    pub unusable_calls: u64,
    /// Requests, and calls of memory, whose cost is not known.
    pub unpriced_requests: u64,
    pub unpriced_calls: u64,
    /// Requests whose cost the provider reported, and whose cost without Diarist is not known.
    pub one_sided_requests: u64,
    prompt: KnownSum,
    cached: KnownSum,
    /// The prompts of the requests that report both numbers.
    prompt_with_cached: u64,
    /// Of the same requests, as they would have been without Diarist: their prompts, and what came from the cache.
    without_prompt: KnownSum,
    without_cached: u64,
    /// Prompts that nobody reported, as far as they can be estimated.
    unreported: KnownSum,
    /// Items that must not be lost, in what observations and reflections stand for, and those that were.
    important: KnownSum,
    lost: u64,
    cache_write: KnownSum,
    completion: KnownSum,
    reasoning: KnownSum,
    memory_prompt: KnownSum,
    memory_cached: KnownSum,
    memory_completion: KnownSum,
    /// Observations and reflections that a model wrote.
    parts_by_model: u64,
    /// Requests with tokens and a price.
    priced_requests: u64,
    cost: f64,
    /// The part of it whose other side, the cost without Diarist, is known too.
    compared_cost: f64,
    without: f64,
    /// The ends between which `without` lies.
    without_low: f64,
    without_high: f64,
    memory_cost: f64,
}

impl Totals {
    /// Adds a request.
    pub(super) fn add_request(&mut self, line: &Line<'_>, estimates: RequestEstimates) {
        let RequestEstimates { cost, without, .. } = estimates;
        self.unreported.add(estimates.unreported);
        if let Some(Without {
            likely: without, ..
        }) = without.filter(|_| line.cached_tokens.is_some())
        {
            self.without_prompt.add(Some(without.prompt()));
            self.without_cached = self.without_cached.saturating_add(without.cached);
        }
        self.requests += 1;
        self.errors += u64::from(line.is_error());
        self.active += u64::from(line.is_active());
        self.no_usage += u64::from(line.prompt_tokens.is_none() && !line.is_refused());
        self.impossible_usage += u64::from(line.impossible_usage == Some(true));
        self.prompt.add(line.prompt_tokens);
        self.cache_write.add(line.cache_write_tokens);
        self.completion.add(line.completion_tokens);
        self.reasoning.add(line.reasoning_tokens);
        if let Some(prompt) = line.prompt_tokens {
            self.no_cached += u64::from(line.cached_tokens.is_none());
            self.cached.add(line.cached_tokens);
            if line.cached_tokens.is_some() {
                self.prompt_with_cached = self.prompt_with_cached.saturating_add(prompt);
            }
        }
        match cost {
            Some(cost) => {
                self.cost += cost.cost;
                self.priced_requests += u64::from(line.prompt_tokens.is_some());
                match cost.without {
                    Some(without) => {
                        self.compared_cost += cost.cost;
                        self.without += without.likely;
                        self.without_low += without.cheapest;
                        self.without_high += without.dearest;
                    }
                    None => self.one_sided_requests += 1,
                }
            }
            None => self.unpriced_requests += 1,
        }
    }

    /// Adds a model call of memory.
    pub(super) fn add_call(&mut self, line: &Line<'_>, cost: Option<f64>) {
        self.memory_calls += 1;
        self.unusable_calls += u64::from(line.is_unusable_call());
        self.impossible_usage += u64::from(line.impossible_usage == Some(true));
        self.memory_prompt.add(line.prompt_tokens);
        self.memory_cached.add(line.cached_tokens);
        self.memory_completion.add(line.completion_tokens);
        match cost {
            Some(cost) => self.memory_cost += cost,
            None => self.unpriced_calls += 1,
        }
    }

    /// Adds an observation or a reflection.
    pub(super) fn add_part(&mut self, line: &Line<'_>) {
        self.parts_by_model += u64::from(line.model_name() != "code");
        if let Some((kept, all)) = line.kept.and_then(|kept| kept.high) {
            self.important.add(Some(all));
            self.lost = self.lost.saturating_add(all.saturating_sub(kept));
        }
    }

    pub fn prompt_tokens(&self) -> Option<u64> {
        self.prompt.known()
    }

    /// Tokens of the prompts that report what came from the cache, as they would have been without Diarist.
    pub fn without_prompt_tokens(&self) -> Option<u64> {
        self.without_prompt.known()
    }

    /// The share of these that would have come from the cache.
    pub fn without_hit_rate(&self) -> Option<f64> {
        share(self.without_cached, self.without_prompt.sum)
    }

    /// How many of the prompts that nobody reported have an estimate.
    pub fn unreported_requests(&self) -> u64 {
        self.unreported.lines
    }

    /// Tokens of the prompts that nobody reported, by their bytes.
    pub fn unreported_tokens(&self) -> Option<u64> {
        self.unreported.known()
    }

    /// Items that must not be lost, in what observations and reflections stand for.
    pub fn important_items(&self) -> Option<u64> {
        self.important.known()
    }

    /// Those of them that are in no observation any more.
    pub fn lost_items(&self) -> Option<u64> {
        self.important_items().map(|_| self.lost)
    }

    pub fn cached_tokens(&self) -> Option<u64> {
        self.cached.known()
    }

    /// Tokens that the cache did not give, over the requests that report both numbers.
    pub fn uncached_tokens(&self) -> Option<u64> {
        self.cached
            .known()
            .map(|cached| self.prompt_with_cached.saturating_sub(cached))
    }

    pub fn cache_write_tokens(&self) -> Option<u64> {
        self.cache_write.known()
    }

    pub fn completion_tokens(&self) -> Option<u64> {
        self.completion.known()
    }

    pub fn reasoning_tokens(&self) -> Option<u64> {
        self.reasoning.known()
    }

    pub fn memory_prompt_tokens(&self) -> Option<u64> {
        self.memory_prompt.known()
    }

    pub fn memory_cached_tokens(&self) -> Option<u64> {
        self.memory_cached.known()
    }

    pub fn memory_completion_tokens(&self) -> Option<u64> {
        self.memory_completion.known()
    }

    /// The part of the prompts that came from the cache, over the requests that report both numbers.
    pub fn hit_rate(&self) -> Option<f64> {
        share(self.cached.sum, self.prompt_with_cached)
    }

    pub fn active_share(&self) -> Option<f64> {
        share(self.active, self.requests)
    }

    pub fn error_rate(&self) -> Option<f64> {
        share(self.errors, self.requests)
    }

    /// Dollars for the requests whose cost is known.
    pub fn cost(&self) -> Option<f64> {
        self.has_costs().then_some(self.cost)
    }

    /// Dollars that the same requests would have cost without Diarist, as far as that is known: an estimate.
    pub fn without(&self) -> Option<f64> {
        self.has_both_costs().then_some(self.without)
    }

    /// The ends between which these dollars lie.
    pub fn without_range(&self) -> Option<(f64, f64)> {
        self.has_both_costs()
            .then_some((self.without_low, self.without_high))
    }

    /// Dollars for memory's own calls. Not known as long as the cost of one call is not.
    pub fn memory_cost(&self) -> Option<f64> {
        (self.unpriced_calls == 0 && !self.lacks_calls()).then_some(self.memory_cost)
    }

    /// What Diarist saves, memory's calls paid; negative if it costs more.
    pub fn net(&self) -> Option<f64> {
        Some(self.without()? - self.compared_cost - self.memory_cost()?)
    }

    /// The ends between which the net lies.
    pub fn net_range(&self) -> Option<(f64, f64)> {
        let (low, high) = self.without_range()?;
        let paid = self.compared_cost + self.memory_cost()?;
        Some((low - paid, high - paid))
    }

    /// The share of the cost that Diarist saves by the estimate, and the ends between which it lies.
    pub fn saving(&self) -> Option<(f64, (f64, f64))> {
        let share = |net: f64, without: f64| (without > 0.0).then(|| net / without);
        let ((net_low, net_high), (low, high)) = (self.net_range()?, self.without_range()?);
        let ends = (share(net_low, low)?, share(net_high, high)?);
        Some((share(self.net()?, self.without()?)?, ends))
    }

    /// A model wrote memory, but no line tells of its calls: the lines come from an older version.
    pub fn lacks_calls(&self) -> bool {
        self.parts_by_model > 0 && self.memory_calls == 0
    }

    /// Some request or call has tokens and a price.
    pub(super) fn has_prices(&self) -> bool {
        self.priced_requests > 0 || self.unpriced_calls < self.memory_calls
    }

    fn has_costs(&self) -> bool {
        self.unpriced_requests == 0 || self.priced_requests > 0
    }

    /// Some request has a cost on both sides, or none lacks one.
    fn has_both_costs(&self) -> bool {
        self.has_costs()
            && (self.one_sided_requests == 0 || self.priced_requests > self.one_sided_requests)
    }
}

fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(fields: &str) -> String {
        format!(r#"{{"time":"2026-11-23T11:20:14.295Z","request_id":"a"{fields}}}"#)
    }

    fn totals(lines: &[&str]) -> Totals {
        let mut totals = Totals::default();
        for fields in lines {
            let text = request(fields);
            let (_, line) = Line::parse(text.as_bytes()).unwrap();
            totals.add_request(&line, RequestEstimates::default());
        }
        totals
    }

    #[test]
    fn unreported_usage_is_unknown_and_not_zero() {
        let nothing = totals(&[r#","status":200"#]);
        assert_eq!((nothing.no_usage, nothing.no_cached), (1, 0));
        assert_eq!(nothing.prompt_tokens(), None);
        assert_eq!(
            (nothing.hit_rate(), nothing.cost(), nothing.net()),
            (None, None, None)
        );
        let some = totals(&[
            r#","prompt_tokens":1000,"cached_tokens":250"#,
            r#","prompt_tokens":5000"#,
            r#","status":200"#,
        ]);
        assert_eq!(some.prompt_tokens(), Some(6_000));
        assert_eq!(some.hit_rate(), Some(0.25));
        assert_eq!((some.no_usage, some.no_cached), (1, 1));
    }

    /// A gateway that reports 99,999 cached tokens of 10 would give a hit rate far above 1.
    #[test]
    fn impossible_usage_is_counted_and_left_out_of_rates() {
        let some = totals(&[
            r#","prompt_tokens":1000,"cached_tokens":250"#,
            r#","prompt_tokens":10,"cached_tokens":99999"#,
            r#","prompt_tokens":10,"impossible_usage":true"#,
        ]);
        assert_eq!((some.impossible_usage, some.no_cached), (2, 2));
        assert_eq!(some.hit_rate(), Some(0.25));
        assert_eq!(some.uncached_tokens(), Some(750));
    }

    #[test]
    fn a_refused_request_counts_as_an_error_and_not_as_missing_usage() {
        let refused = totals(&[r#","status":429"#]);
        assert_eq!((refused.errors, refused.no_usage), (1, 0));
        let others = totals(&[
            r#","status":200,"error":"too_long""#,
            r#","status":200,"ended":"upstream_error""#,
            r#","ended":"hung_up""#,
        ]);
        assert_eq!((others.errors, others.no_usage), (2, 3));
    }

    #[test]
    fn an_observation_without_a_call_line_makes_the_memory_cost_unknown() {
        let mut totals = Totals::default();
        assert_eq!(totals.memory_cost(), Some(0.0));
        let part = |model: &str| {
            format!(
                r#"{{"time":"2026-11-23T11:20:14.295Z","wrote":"observation","model":"{model}"}}"#
            )
        };
        for (model, known) in [("code", Some(0.0)), ("nano", None)] {
            let text = part(model);
            totals.add_part(&Line::parse(text.as_bytes()).unwrap().1);
            assert_eq!(totals.memory_cost(), known, "{model}");
        }
    }
}
