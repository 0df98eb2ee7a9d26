//! What a row found, and the table of it.

use crate::output;
use crate::rounds::Round;
use crate::stand::Kind;
use crate::statistics::Summary;

/// What a value must reach, and what it should.
#[derive(Clone, Copy, Debug)]
pub struct Goal {
    pub must: f64,
    pub aim: f64,
    /// Whether more is better.
    pub at_least: bool,
}

impl Goal {
    /// The value may not be above these.
    pub fn at_most(must: f64, aim: f64) -> Self {
        Self {
            must,
            aim,
            at_least: false,
        }
    }

    /// The value may not be below these.
    pub fn at_least(must: f64, aim: f64) -> Self {
        Self {
            must,
            aim,
            at_least: true,
        }
    }

    /// Whether the goal is reached, or by what factor it is missed.
    fn distance(self, value: f64) -> String {
        let factor = |goal: f64| {
            if self.at_least {
                goal / value
            } else {
                value / goal
            }
        };
        if value.is_nan() {
            "not measured".to_owned()
        } else if value <= 0.0 && !self.at_least {
            // Less than nothing was added: what else the machine did was more than what is measured.
            "lost in noise".to_owned()
        } else if factor(self.aim) <= 1.0 {
            "aim".to_owned()
        } else if factor(self.must) <= 1.0 {
            format!("must; aim missed {:.1}×", factor(self.aim))
        } else {
            format!("missed {:.1}×", factor(self.must))
        }
    }
}

/// One number of a row, with a value for each round.
#[derive(Clone, Debug)]
pub struct Finding {
    name: String,
    values: Vec<f64>,
    /// Findings without a goal explain those that have one.
    goal: Option<Goal>,
}

impl Finding {
    /// A line of the table.
    pub fn judged(name: impl Into<String>, values: Vec<f64>, goal: Goal) -> Self {
        Self {
            name: name.into(),
            values,
            goal: Some(goal),
        }
    }

    /// A line below the table.
    pub fn plain(name: impl Into<String>, values: Vec<f64>) -> Self {
        Self {
            name: name.into(),
            values,
            goal: None,
        }
    }

    fn measured(&self) -> String {
        let summary = Summary::new(&self.values);
        if self.values.len() == 1 {
            return number(summary.median);
        }
        let (median, lower) = (number(summary.median), number(summary.lower));
        format!("{median} [{lower}–{}]", number(summary.upper))
    }
}

/// A value per round.
pub fn each(rounds: &[Round], value: impl Fn(&Round) -> f64) -> Vec<f64> {
    rounds.iter().map(value).collect()
}

/// A value of each target that ran, in every round.
pub fn per_target(
    rounds: &[Round],
    name: &str,
    value: impl Fn(&crate::load::Load) -> f64,
) -> Vec<Finding> {
    let kinds = [Kind::Direct, Kind::Nginx, Kind::Passthrough, Kind::Diarist];
    kinds
        .into_iter()
        .filter_map(|kind| {
            let loads = rounds.iter().map(|round| round.load(kind).map(&value));
            let values: Vec<f64> = loads.collect::<Option<_>>()?;
            Some(Finding::plain(format!("{name}, {}", kind.name()), values))
        })
        .collect()
}

/// Prints the table, and below it what has no goal.
pub fn print(findings: &[Finding]) {
    output("\n| row | measured: median [quartiles] | must | aim | reached |");
    output("|---|--:|--:|--:|---|");
    for finding in findings {
        if let Some(goal) = finding.goal {
            let median = Summary::new(&finding.values).median;
            output(&format!(
                "| {} | {} | {} | {} | {} |",
                finding.name,
                finding.measured(),
                number(goal.must),
                number(goal.aim),
                goal.distance(median),
            ));
        }
    }
    output("\n| what it is made from | median [quartiles] |");
    output("|---|--:|");
    for finding in findings.iter().filter(|finding| finding.goal.is_none()) {
        output(&format!("| {} | {} |", finding.name, finding.measured()));
    }
}

/// Three digits that say something.
fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
