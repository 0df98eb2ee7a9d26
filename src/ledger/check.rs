//! Conditions on the totals: `hit_rate>=0.8,net>=0`.

use std::fmt;
use std::str::FromStr;

use super::measures::{MEASURES, Measure};
use super::totals::Totals;

/// How a number is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    AtLeast,
    AtMost,
    Equal,
    More,
    Less,
}

/// Longer spellings stand before those that they begin with.
const COMPARISONS: [(&str, Comparison); 5] = [
    (">=", Comparison::AtLeast),
    ("<=", Comparison::AtMost),
    ("==", Comparison::Equal),
    (">", Comparison::More),
    ("<", Comparison::Less),
];

/// One condition.
#[derive(Clone, Debug)]
struct Clause {
    text: String,
    measure: fn(&Totals) -> Measure,
    name: &'static str,
    comparison: Comparison,
    limit: f64,
}

/// Conditions that must all hold.
#[derive(Clone, Debug)]
pub struct Check(Vec<Clause>);

/// A text that is no condition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadCheck {
    #[error(
        "{0:?} is no condition: write NAME>=NUMBER, with >=, <=, ==, > or <, and commas between conditions"
    )]
    Form(String),
    #[error("{0:?} has its comparison the wrong way round: write >= or <=")]
    Order(String),
    #[error("{0:?} is no number of the report: the names are {names}", names = names())]
    Name(String),
    #[error("{0:?} is no number: write digits with a point, such as 0.8")]
    Limit(String),
}

fn names() -> String {
    let names: Vec<&str> = MEASURES.iter().map(|(name, _)| *name).collect();
    names.join(", ")
}

/// A condition that does not hold, and the measured number.
#[derive(Clone, Debug, PartialEq)]
pub struct FailedClause {
    clause: String,
    name: &'static str,
    measured: Option<f64>,
}

impl fmt::Display for FailedClause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { clause, name, .. } = self;
        match self.measured {
            Some(measured) => write!(f, "{clause} does not hold: {name} is {measured}"),
            None => write!(f, "{clause} cannot be checked: {name} is not known"),
        }
    }
}

impl Check {
    /// The conditions that do not hold. What is not known does not hold.
    pub fn failures(&self, totals: &Totals) -> Vec<FailedClause> {
        let failed = |clause: &&Clause| {
            let number = (clause.measure)(totals).number();
            !number.is_some_and(|number| clause.holds(number))
        };
        let failures = self.0.iter().filter(failed);
        failures
            .map(|clause| FailedClause {
                clause: clause.text.clone(),
                name: clause.name,
                measured: (clause.measure)(totals).number(),
            })
            .collect()
    }
}

impl Clause {
    fn holds(&self, number: f64) -> bool {
        match self.comparison {
            Comparison::AtLeast => number >= self.limit,
            Comparison::AtMost => number <= self.limit,
            Comparison::Equal => (number - self.limit).abs() < 1e-9,
            Comparison::More => number > self.limit,
            Comparison::Less => number < self.limit,
        }
    }
}

impl FromStr for Check {
    type Err = BadCheck;

    fn from_str(text: &str) -> Result<Self, BadCheck> {
        text.split(',')
            .map(clause)
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

fn clause(text: &str) -> Result<Clause, BadCheck> {
    let text = text.trim();
    if text.contains("=>") || text.contains("=<") {
        return Err(BadCheck::Order(text.to_owned()));
    }
    let (spelling, comparison) = COMPARISONS
        .into_iter()
        .find(|(spelling, _)| text.contains(spelling))
        .ok_or_else(|| BadCheck::Form(text.to_owned()))?;
    let (name, limit) = text.split_once(spelling).unwrap_or((text, ""));
    let (name, limit) = (name.trim(), limit.trim());
    let (name, measure) = MEASURES
        .iter()
        .find(|(known, _)| *known == name)
        .ok_or_else(|| BadCheck::Name(name.to_owned()))?;
    let number: Option<f64> = limit.parse().ok();
    Ok(Clause {
        text: text.to_owned(),
        measure: *measure,
        name,
        comparison,
        limit: number
            .filter(|number| number.is_finite())
            .ok_or_else(|| BadCheck::Limit(limit.to_owned()))?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failures(check: &str) -> Vec<String> {
        let mut totals = Totals::default();
        totals.requests = 8;
        totals.errors = 2;
        let check: Check = check.parse().unwrap();
        let failures = check.failures(&totals);
        failures.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_failed_check_reports_the_actual_number() {
        assert_eq!(
            failures("requests >= 8, requests<=8,requests==8,requests>7,requests<9"),
            [""; 0]
        );
        assert_eq!(
            failures("error_rate<=0.1,requests>8,errors==2"),
            [
                "error_rate<=0.1 does not hold: error_rate is 0.25",
                "requests>8 does not hold: requests is 8"
            ]
        );
        assert_eq!(
            failures("hit_rate>=0"),
            ["hit_rate>=0 cannot be checked: hit_rate is not known"]
        );
    }

    #[test]
    fn the_error_of_an_invalid_condition_names_the_mistake() {
        let error = |text: &str| text.parse::<Check>().unwrap_err();
        for text in ["", "net", "net>=0,", "net=0"] {
            assert!(matches!(error(text), BadCheck::Form(_)), "{text}");
        }
        assert!(error("hitrate>=1").to_string().contains("hit_rate"));
        for text in ["errors=>2", "net=<1"] {
            assert!(matches!(error(text), BadCheck::Order(_)), "{text}");
        }
        for text in ["net>=", "net>=many", "net>=nan"] {
            assert!(matches!(error(text), BadCheck::Limit(_)), "{text}");
        }
    }
}
