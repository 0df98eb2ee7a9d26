//! Sums lines in groups.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::conversation_models::ConversationModels;
use super::cost::{call_cost, request_cost};
use super::estimate::{Estimator, billed};
use super::filter::Filter;
use super::holdout::Holdout;
use super::line::{Line, LineKind, SkippedLine};
use super::totals::{RequestEstimates, Totals};
use crate::model_prices::PriceTable;

/// What lines have in common in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupBy {
    /// The model that the client asked. A call of memory counts under the model of its conversation.
    Model,
    /// The name of a conversation, of one tenant: two tenants may use the same name.
    Thread,
    Tenant,
    /// In UTC.
    Day,
    /// Why the provider's cache gave less than expected. Memory's calls have a row of their own.
    Cause,
}

/// The row of memory's calls, by cause; by model, the row of those whose conversation has no request before.
const MEMORY: &str = "memory";

impl GroupBy {
    /// The fields that make a group.
    pub fn fields(self) -> &'static [&'static str] {
        match self {
            Self::Model => &["model"],
            Self::Thread => &["tenant", "thread"],
            Self::Tenant => &["tenant"],
            Self::Day => &["day"],
            Self::Cause => &["verdict_cause"],
        }
    }

    /// Writes the name of the line's group. `model` is the one that the line is charged to.
    fn write_key(self, kind: LineKind, line: &Line<'_>, model: &str, key: &mut String) {
        key.clear();
        match self {
            Self::Model => key.push_str(model),
            Self::Thread => {
                key.push_str(line.tenant.as_str());
                key.push(SEPARATOR);
                key.push_str(line.thread_name());
            }
            Self::Tenant => key.push_str(line.tenant.as_str()),
            Self::Day => key.push_str(line.day()),
            Self::Cause if kind != LineKind::Request => key.push_str(MEMORY),
            Self::Cause => {
                let text = line.verdict_cause.as_ref().or(line.verdict.as_ref());
                key.push_str(text.map_or("", |text| text.as_str()));
            }
        }
    }
}

/// In which order groups stand. What is not known stands last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SortBy {
    /// Days in order, others as with [`SortBy::Prompt`].
    #[default]
    Usual,
    /// Most tokens of prompts first.
    Prompt,
    /// Most tokens of prompts first that the cache did not give.
    Uncached,
    /// The dearest first, memory's calls included.
    Cost,
    /// The smallest net first: where Diarist costs more than it saves.
    Net,
}

impl SortBy {
    /// Groups with a larger number come first; `None` is not known.
    fn rank(self, by: GroupBy, totals: &Totals) -> Option<f64> {
        let tokens = |tokens: u64| tokens as f64;
        match self {
            Self::Usual if by == GroupBy::Day => None,
            Self::Usual | Self::Prompt => totals.prompt_tokens().map(tokens),
            Self::Uncached => totals.uncached_tokens().map(tokens),
            Self::Cost => {
                let memory = totals.memory_cost().unwrap_or(0.0);
                totals.cost().map(|cost| cost + memory)
            }
            Self::Net => totals.net().map(|net| -net),
        }
    }

    fn compare(self, by: GroupBy, left: &Totals, right: &Totals) -> Ordering {
        let rank = |totals: &Totals| self.rank(by, totals);
        let by_rank = match (rank(left), rank(right)) {
            (Some(left), Some(right)) => right.total_cmp(&left),
            (left, right) => right.is_some().cmp(&left.is_some()),
        };
        if self == Self::Usual && by == GroupBy::Day {
            return by_rank;
        }
        by_rank.then_with(|| right.requests.cmp(&left.requests))
    }
}

/// Between the parts of a group's name.
const SEPARATOR: char = '\0';

/// Models that notes name, at most so many: a client can invent any number.
const MOST_MODELS: usize = 20;

/// The groups of one kind.
#[derive(Clone, Debug)]
pub struct Grouping {
    pub by: GroupBy,
    sort: SortBy,
    groups: HashMap<String, Totals>,
}

impl Grouping {
    /// The groups in their order. The values of its fields name a group.
    pub fn sorted(&self) -> Vec<(Vec<&str>, &Totals)> {
        let mut groups: Vec<(&String, &Totals)> = self.groups.iter().collect();
        groups.sort_by(|(a, left), (b, right)| {
            let order = self.sort.compare(self.by, left, right);
            order.then_with(|| a.cmp(b))
        });
        groups
            .into_iter()
            .map(|(key, totals)| (key.split(SEPARATOR).collect(), totals))
            .collect()
    }
}

/// Takes lines, and keeps their sums.
#[derive(Clone, Debug)]
pub struct Ledger {
    pub totals: Totals,
    pub groupings: Vec<Grouping>,
    /// The time of the first and of the last line that counted.
    pub period: Option<(String, String)>,
    /// Lines that are no JSON, and lines of something else.
    pub torn: u64,
    pub foreign: u64,
    /// Models with tokens and without a price.
    pub unpriced_models: BTreeSet<String>,
    /// For each model, the tokens that its provider counts where Diarist counts one: the newest figure.
    pub token_ratios: BTreeMap<String, f64>,
    pub prices: PriceTable,
    /// Conversations with memory beside those that went without it.
    pub holdout: Holdout,
    filter: Filter,
    estimator: Estimator,
    conversation_models: ConversationModels,
    key: String,
}

impl Ledger {
    pub fn new(by: &[GroupBy], filter: Filter, prices: PriceTable) -> Self {
        let grouping = |by: &GroupBy| Grouping {
            by: *by,
            sort: SortBy::default(),
            groups: HashMap::new(),
        };
        Self {
            totals: Totals::default(),
            groupings: by.iter().map(grouping).collect(),
            period: None,
            torn: 0,
            foreign: 0,
            unpriced_models: BTreeSet::new(),
            token_ratios: BTreeMap::new(),
            prices,
            holdout: Holdout::default(),
            filter,
            estimator: Estimator::default(),
            conversation_models: ConversationModels::default(),
            key: String::new(),
        }
    }

    /// In which order groups stand.
    pub fn set_sort(&mut self, sort: SortBy) {
        for grouping in &mut self.groupings {
            grouping.sort = sort;
        }
    }

    /// Whether the cache without Diarist forgets where the provider's cache was seen to forget.
    pub fn set_repeat_forgetting(&mut self, repeat: bool) {
        self.estimator.repeats_forgetting = repeat;
    }

    /// As [`Ledger::set_repeat_forgetting`].
    pub fn repeats_forgetting(&self) -> bool {
        self.estimator.repeats_forgetting
    }

    /// The only conversation that counts, if the filter names one.
    pub(super) fn only_thread(&self) -> Option<&str> {
        self.filter.thread.as_deref()
    }

    /// Takes one line of a file, without its line break. Blank lines are nothing.
    pub fn add(&mut self, bytes: &[u8]) {
        if bytes.trim_ascii().is_empty() {
            return;
        }
        match Line::parse(bytes) {
            Ok((kind, line)) => self.add_line(kind, &line),
            Err(SkippedLine::Torn) => self.torn += 1,
            Err(SkippedLine::Foreign) => self.foreign += 1,
        }
    }

    fn add_line(&mut self, kind: LineKind, line: &Line<'_>) {
        // Also of lines that the filter leaves out: what came before a request says what the cache held, and what came
        // before a call of memory which model its conversation asks.
        if kind == LineKind::Request {
            self.conversation_models.note(line);
        }
        let model = match kind {
            LineKind::Part | LineKind::Call => {
                let model = self.conversation_models.model_of(line);
                Cow::Owned(model.unwrap_or(MEMORY).to_owned())
            }
            LineKind::Request | LineKind::Deletion | LineKind::Pass => {
                Cow::Borrowed(line.model_name())
            }
        };
        let (without, unreported) = match kind {
            LineKind::Request => (
                self.estimator.without(line),
                self.estimator.unreported(line),
            ),
            LineKind::Part | LineKind::Call | LineKind::Deletion | LineKind::Pass => (None, None),
        };
        if !self.filter.matches(line, &model) {
            return;
        }
        let add: Box<dyn Fn(&mut Totals)> = match kind {
            LineKind::Request => {
                let cost = request_cost(&self.prices, line, without);
                match cost {
                    Some(cost) => self.holdout.add_request(line, cost.cost),
                    None => self.note_unpriced(line),
                }
                let estimates = RequestEstimates {
                    cost,
                    without,
                    unreported,
                };
                Box::new(move |totals| totals.add_request(line, estimates))
            }
            LineKind::Call => {
                let cost = call_cost(&self.prices, line);
                match cost {
                    Some(cost) => self.holdout.add_call(line, cost),
                    None => self.note_unpriced(line),
                }
                Box::new(move |totals| totals.add_call(line, cost))
            }
            LineKind::Part => Box::new(|totals| totals.add_part(line)),
            LineKind::Deletion | LineKind::Pass => return,
        };
        self.extend_period(line.time.as_str());
        if kind == LineKind::Request {
            self.keep_token_ratio(line);
        }
        add(&mut self.totals);
        let key = &mut self.key;
        for grouping in &mut self.groupings {
            grouping.by.write_key(kind, line, &model, key);
            if let Some(totals) = grouping.groups.get_mut(key.as_str()) {
                add(totals);
            } else {
                add(grouping.groups.entry(key.clone()).or_default());
            }
        }
    }

    fn note_unpriced(&mut self, line: &Line<'_>) {
        let model = line.model_name();
        if billed(line).is_some()
            && self.prices.find(model).is_none()
            && self.unpriced_models.len() < MOST_MODELS
            && !self.unpriced_models.contains(model)
        {
            self.unpriced_models.insert(model.to_owned());
        }
    }

    fn keep_token_ratio(&mut self, line: &Line<'_>) {
        let Some(ratio) = line.token_ratio else {
            return;
        };
        let model = line.model_name();
        if let Some(known) = self.token_ratios.get_mut(model) {
            *known = ratio;
        } else if self.token_ratios.len() < MOST_MODELS {
            self.token_ratios.insert(model.to_owned(), ratio);
        }
    }

    fn extend_period(&mut self, time: &str) {
        let Some((first, last)) = &mut self.period else {
            self.period = Some((time.to_owned(), time.to_owned()));
            return;
        };
        if time < first.as_str() {
            time.clone_into(first);
        } else if time > last.as_str() {
            time.clone_into(last);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(tenant: &str, thread: &str, day: u8, prompt: u64) -> String {
        format!(
            r#"{{"time":"2026-11-{day:02}T00:00:00.000Z","request_id":"a","tenant":"{tenant}","thread":"{thread}","model":"m","memory":"watching","prompt_tokens":{prompt},"cached_tokens":0,"completion_tokens":10}}"#
        )
    }

    fn names(ledger: &Ledger, at: usize) -> Vec<(String, u64)> {
        let groups = ledger.groupings[at].sorted().into_iter();
        groups
            .map(|(key, totals)| (key.join("/"), totals.requests))
            .collect()
    }

    fn ledger(by: &[GroupBy], filter: Filter) -> Ledger {
        Ledger::new(by, filter, PriceTable::new(["m=1,1,1".parse().unwrap()]))
    }

    #[test]
    fn conversations_of_two_tenants_with_one_name_are_two_groups() {
        let mut ledger = ledger(&[GroupBy::Thread, GroupBy::Day], Filter::default());
        for (tenant, day, prompt) in [("b", 2, 10), ("c", 1, 50), ("b", 1, 10)] {
            ledger.add(request(tenant, "main", day, prompt).as_bytes());
        }
        let pair = |name: &str, requests| (name.to_owned(), requests);
        assert_eq!(names(&ledger, 0), [pair("c/main", 1), pair("b/main", 2)]);
        assert_eq!(
            names(&ledger, 1),
            [pair("2026-11-01", 2), pair("2026-11-02", 1)]
        );
        let (first, last) = ledger.period.unwrap();
        assert!(first < last && last.starts_with("2026-11-02"));
    }

    #[test]
    fn invalid_lines_are_counted_and_blank_lines_are_not() {
        let mut ledger = ledger(&[], Filter::default());
        for line in ["", "  ", "{\"time\"", "{}", "[]", "x"] {
            ledger.add(line.as_bytes());
        }
        assert_eq!((ledger.torn, ledger.foreign), (2, 2));
        assert_eq!(ledger.totals.requests, 0);
    }

    #[test]
    fn a_model_without_price_is_named_and_costs_are_unknown() {
        let mut ledger = Ledger::new(&[], Filter::default(), PriceTable::new([]));
        ledger.add(request("a", "b", 1, 7).as_bytes());
        assert!(ledger.unpriced_models.contains("m"));
        assert_eq!(ledger.totals.cost(), None);
        assert_eq!(ledger.totals.unpriced_requests, 1);
    }

    #[test]
    fn each_model_keeps_its_newest_token_ratio_up_to_a_bound() {
        let mut ledger = ledger(&[], Filter::default());
        let add = |ledger: &mut Ledger, model: &str, ratio: f64| {
            let line = format!(
                r#"{{"time":"2026-11-23T00:00:00.000Z","request_id":"a","model":"{model}","token_ratio":{ratio}}}"#
            );
            ledger.add(line.as_bytes());
        };
        for ratio in [1.5, 1.25] {
            add(&mut ledger, "m", ratio);
        }
        assert_eq!(ledger.token_ratios.get("m"), Some(&1.25));
        for number in 0..100 {
            add(&mut ledger, &number.to_string(), 1.0);
        }
        assert_eq!(ledger.token_ratios.len(), MOST_MODELS);
    }

    #[test]
    fn model_calls_of_memory_have_their_own_row_among_the_causes() {
        let mut ledger = ledger(&[GroupBy::Cause], Filter::default());
        let call = r#"{"time":"2026-11-23T11:20:14.295Z","call":"observe","model":"m","prompt_tokens":900000,"completion_tokens":100000}"#;
        ledger.add(call.as_bytes());
        assert_eq!(names(&ledger, 0), [("memory".to_owned(), 0)]);
        assert_eq!(ledger.totals.memory_cost(), Some(1.0));
        assert_eq!(ledger.totals.net(), Some(-1.0));
    }
}
