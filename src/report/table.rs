//! The totals, with and without Diarist.

use super::columns::{ColumnAlign, align_columns};
use super::{MemoryChange, Price, Prices, Story, Tokens, grouped};

/// A sum over requests, of which some may have reported no number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    total: u64,
    reported: usize,
    count: usize,
}

impl Sum {
    fn from_numbers(numbers: impl Iterator<Item = Option<u64>>) -> Self {
        numbers.fold(Self::default(), |sum, number| Self {
            total: sum.total + number.unwrap_or(0),
            reported: sum.reported + usize::from(number.is_some()),
            count: sum.count + 1,
        })
    }

    /// The total, if every request reported it.
    fn complete_total(&self) -> Option<u64> {
        (self.reported == self.count).then_some(self.total)
    }

    fn to_text(self) -> String {
        match self.reported {
            0 if self.count > 0 => "not reported".to_owned(),
            reported if reported < self.count => {
                format!("({reported} of {}) {}", self.count, grouped(self.total))
            }
            _ => grouped(self.total),
        }
    }
}

/// The sums of a conversation that was played with, or without, Diarist.
struct Totals {
    requests: usize,
    prompt: Sum,
    cached: Sum,
    uncached: Sum,
    completion: Sum,
    cost: Option<f64>,
}

impl Totals {
    fn new(requests: &[Tokens], price: &Price) -> Self {
        let sum =
            |number: fn(&Tokens) -> Option<u64>| Sum::from_numbers(requests.iter().map(number));
        let costs: Option<Vec<f64>> = requests.iter().map(|tokens| price.cost(tokens)).collect();
        Self {
            requests: requests.len(),
            prompt: sum(|tokens| tokens.prompt),
            cached: sum(|tokens| tokens.cached),
            uncached: sum(Tokens::uncached),
            completion: sum(|tokens| tokens.completion),
            cost: costs.map(|costs| costs.iter().fold(0.0, |sum, cost| sum + cost)),
        }
    }
}

/// One number of the totals.
type Pick = fn(&Totals) -> Sum;

/// All rows; `baseline` is there if the conversation was also played without Diarist.
struct Comparison {
    baseline: Option<Totals>,
    forwarded: Totals,
    observer: Totals,
    reflector: Totals,
}

impl Comparison {
    fn new(story: &Story, prices: &Prices) -> Self {
        let direct: Vec<Tokens> = story.steps.iter().filter_map(|step| step.direct).collect();
        let forwarded: Vec<Tokens> = story.steps.iter().map(|step| step.forwarded).collect();
        Self {
            baseline: story
                .has_baseline()
                .then(|| Totals::new(&direct, &prices.conversation)),
            forwarded: Totals::new(&forwarded, &prices.conversation),
            observer: Totals::new(&story.observer, &prices.memory),
            reflector: Totals::new(&story.reflector, &prices.memory),
        }
    }

    /// The cost of the conversation with Diarist, memory's own calls included.
    fn net(&self) -> Option<f64> {
        Some(self.forwarded.cost? + self.observer.cost? + self.reflector.cost?)
    }
}

/// One line: its name, the number without Diarist, the number with it, the difference.
fn row(name: &str, without: Option<String>, with: String, change: Option<String>) -> Vec<String> {
    vec![
        name.to_owned(),
        without.unwrap_or_default(),
        with,
        change.unwrap_or_default(),
    ]
}

/// The totals as a table of text. Columns without a baseline are left out.
pub fn table(story: &Story, prices: &Prices) -> String {
    let totals = Comparison::new(story, prices);
    let baseline = totals.baseline.as_ref();
    let mut rows = vec![row(
        "",
        baseline.map(|_| "without Diarist".to_owned()),
        "with Diarist".to_owned(),
        None,
    )];
    rows.push(row(
        "requests",
        baseline.map(|without| grouped(without.requests as u64)),
        grouped(totals.forwarded.requests as u64),
        None,
    ));
    let prompts: [(&str, Pick); 3] = [
        ("prompt tokens", |totals| totals.prompt),
        ("  read from the cache", |totals| totals.cached),
        ("  UNCACHED", |totals| totals.uncached),
    ];
    for (name, pick) in prompts {
        let (without, with) = (baseline.map(pick), pick(&totals.forwarded));
        let change = without.and_then(|without| {
            change(
                without.complete_total()? as f64,
                with.complete_total()? as f64,
            )
        });
        rows.push(row(name, without.map(Sum::to_text), with.to_text(), change));
    }
    rows.push(row(
        "tokens answered",
        baseline.map(|without| without.completion.to_text()),
        totals.forwarded.completion.to_text(),
        None,
    ));
    let cost = |totals: &Totals| dollars(totals.cost);
    rows.push(row(
        "cost of the conversation",
        baseline.map(cost),
        cost(&totals.forwarded),
        None,
    ));
    for (name, calls) in [
        ("Observer", &totals.observer),
        ("Reflector", &totals.reflector),
    ] {
        rows.push(row(
            &format!("{name}, {}", pluralized(calls.requests, "call")),
            None,
            cost(calls),
            None,
        ));
    }
    rows.push(row(
        "COST, all told",
        baseline.map(cost),
        dollars(totals.net()),
        baseline.and_then(|without| change(without.cost?, totals.net()?)),
    ));
    align_columns(
        &rows,
        &[
            ColumnAlign::Left,
            ColumnAlign::Right,
            ColumnAlign::Right,
            ColumnAlign::Right,
        ],
    )
}

/// One line for each conversation: its id, and the size of its largest request.
pub fn conversations(stories: &[(&str, &Story)]) -> String {
    let header = |name: &str| name.to_owned();
    let with_baseline = stories.iter().any(|(_, story)| story.has_baseline());
    let mut rows = vec![vec![
        header("conversation"),
        header("requests"),
        header(if with_baseline { "longest without" } else { "" }),
        header(if with_baseline {
            "with Diarist"
        } else {
            "longest prompt"
        }),
        header("activations"),
        header("reflections"),
    ]];
    let number = |number: Option<u64>| number.map_or_else(String::new, grouped);
    rows.extend(stories.iter().map(|(id, story)| {
        let (direct, forwarded) = story.peaks();
        vec![
            shortened(id),
            story.steps.len().to_string(),
            number(direct),
            number(forwarded),
            story.count(MemoryChange::Activation).to_string(),
            story.count(MemoryChange::Reflection).to_string(),
        ]
    }));
    let mut sides = [ColumnAlign::Right; 6];
    sides[0] = ColumnAlign::Left;
    align_columns(&rows, &sides)
}

/// An id of at most 32 characters. The middle of a longer one is left out, since long ids differ at their ends.
fn shortened(id: &str) -> String {
    let all: Vec<char> = id.chars().collect();
    if all.len() <= 32 {
        return id.to_owned();
    }
    let (head, tail) = (&all[..16], &all[all.len() - 15..]);
    head.iter().chain(&['…']).chain(tail).collect()
}

/// Notes under the table: the prices, memory's own tokens, and missing numbers.
pub fn notes(story: &Story, prices: &Prices) -> String {
    let totals = Comparison::new(story, prices);
    let mut notes = format!(
        "Prices per million tokens: {}; of Observer and\nReflector {}.\n",
        prices.conversation, prices.memory
    );
    for (name, calls) in [
        ("Observer", &totals.observer),
        ("Reflector", &totals.reflector),
    ] {
        if calls.requests > 0 {
            notes.push_str(&format!(
                "The {name} read {} tokens ({} of them cached) and wrote {}.\n",
                calls.prompt.to_text(),
                calls.cached.to_text(),
                calls.completion.to_text()
            ));
        }
    }
    let played = [Some(&totals.forwarded), totals.baseline.as_ref()];
    let all = [&totals.observer, &totals.reflector];
    let all = || played.into_iter().flatten().chain(all);
    let (silent, uncertain) = all().fold((0, 0), |(silent, uncertain), totals| {
        (
            silent + totals.prompt.count - totals.prompt.reported,
            uncertain
                + totals
                    .prompt
                    .reported
                    .saturating_sub(totals.uncached.reported),
        )
    });
    if silent > 0 {
        notes.push_str(&format!(
            "{} came back without usage: the cost is not known.\n",
            pluralized(silent, "answer")
        ));
    }
    if uncertain > 0 {
        notes.push_str(&format!(
            "{} did not say what was cached: their prompts are priced as uncached.\n",
            pluralized(uncertain, "answer")
        ));
    }
    notes
}

fn pluralized(number: usize, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {what}{plural}", grouped(number as u64))
}

fn dollars(amount: Option<f64>) -> String {
    amount.map_or_else(|| "unknown".to_owned(), |amount| format!("${amount:.4}"))
}

/// `-73 %`; `None` if there is nothing to compare with.
fn change(before: f64, after: f64) -> Option<String> {
    (before > 0.0).then(|| format!("{:+.0} %", (after / before - 1.0) * 100.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::ReportStep;

    fn prices() -> Prices {
        Prices {
            conversation: "2.5,0.25,10".parse().unwrap(),
            memory: "0.25,0.025,2".parse().unwrap(),
        }
    }

    fn tokens(prompt: u64, cached: u64, completion: u64) -> Tokens {
        Tokens {
            prompt: Some(prompt),
            cached: Some(cached),
            completion: Some(completion),
        }
    }

    fn story() -> Story {
        let step = |direct, carried| ReportStep {
            direct: Some(direct),
            forwarded: carried,
            mark: None,
        };
        Story {
            steps: vec![
                step(tokens(600_000, 100_000, 50), tokens(600_000, 100_000, 50)),
                step(tokens(900_000, 600_000, 70), tokens(200_000, 100_000, 70)),
            ],
            observer: vec![tokens(300_000, 0, 40_000)],
            reflector: Vec::new(),
        }
    }

    #[test]
    fn the_table_shows_the_totals_side_by_side() {
        insta::assert_snapshot!(table(&story(), &prices()) + &notes(&story(), &prices()));
    }

    #[test]
    fn a_table_without_a_baseline_has_one_column() {
        let mut story = story();
        for step in &mut story.steps {
            step.direct = None;
        }
        let text = table(&story, &prices());
        assert!(!text.contains("without") && !text.contains('%'), "{text}");
        assert!(
            text.contains("prompt tokens                  800,000\n"),
            "{text}"
        );
    }

    #[test]
    fn unreported_usage_is_shown_as_unknown_and_not_as_zero() {
        let mut story = story();
        story.steps[1].forwarded.cached = None;
        let text = table(&story, &prices()) + &notes(&story, &prices());
        assert!(text.contains("(1 of 2) 500,000"), "{text}");
        assert!(
            text.contains("1 answer did not say what was cached"),
            "{text}"
        );
        story.steps[0].forwarded = Tokens::default();
        story.steps[1].forwarded = Tokens::default();
        let text = table(&story, &prices()) + &notes(&story, &prices());
        assert!(text.contains("not reported"), "{text}");
        assert!(text.contains("2 answers came back without usage"), "{text}");
        let net = text.lines().find(|line| line.starts_with("COST")).unwrap();
        assert!(net.ends_with("unknown"), "{net}");
    }
}
