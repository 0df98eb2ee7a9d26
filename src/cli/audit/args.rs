//! The arguments of `diarist audit`.

use std::path::PathBuf;

use jiff::tz::TimeZone;
use jiff::{Span, Timestamp, civil};

use crate::cli::sources::ConfigSources;
use crate::config::ConfigError;
use crate::ledger::{Filter, GroupBy, PAGE_GROUPS, SortBy};
use crate::model_prices::{NamedPrice, PriceTable};

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Audit files, also gzipped ones; "-" is standard input. Without FILE, the configured audit.path
    #[arg(value_name = "FILE")]
    pub(super) files: Vec<PathBuf>,
    /// Read the lines in the database (audit.store_retention) instead of files
    #[arg(long, conflicts_with = "files")]
    pub(super) store: bool,
    /// One line for each model, conversation of a tenant, tenant, day in UTC, or cause of a missed cache. The lines add up
    /// to the total: by model, memory's calls count under the model of their conversation
    #[arg(long, value_enum)]
    by: Option<By>,
    /// What comes first in these lines: the most prompt tokens, the most uncached ones, the highest cost with memory's calls,
    /// or the smallest net (default: prompt; days in order)
    #[arg(long, value_enum, requires = "by")]
    sort: Option<Sort>,
    /// Count lines from this time on: 2026-11-23, 2026-11-23T08:00:00Z, or 24h, 7d for so long ago. Dates are in UTC
    #[arg(long, value_name = "TIME", value_parser = audit_time)]
    since: Option<String>,
    /// Count lines before this time, in the same forms. A date is the beginning of that day
    #[arg(long, value_name = "TIME", value_parser = audit_time)]
    until: Option<String>,
    /// Count lines of this tenant only
    #[arg(long)]
    tenant: Option<String>,
    /// Count lines of conversations with this name only
    #[arg(long)]
    thread: Option<String>,
    /// Count lines of this model only. Memory's calls count under the model of their conversation
    #[arg(long)]
    model: Option<String>,
    /// Price of a model in dollars per million tokens: uncached, cached, output, and written to the cache (default:
    /// as uncached). Can be repeated. Wins over audit.prices
    #[arg(long = "price", value_name = "MODEL=IN,CACHED,OUT[,WRITE]")]
    prices: Vec<NamedPrice>,
    /// In the estimate without Diarist, let the provider's cache lose what it has lost in fact (causes idle and provider).
    /// By default it loses nothing there, so the net is rather too small
    #[arg(long, conflicts_with = "why")]
    pub(super) repeat_forgetting: bool,
    /// Form of the output
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub(super) format: Format,
    /// Exit with code 1 if a condition on the totals does not hold, such as 'hit_rate>=0.8,net>=0'; with code 2 if a condition
    /// cannot be read
    #[arg(long, value_name = "CONDITIONS")]
    pub(super) check: Option<String>,
    /// Explain one request, from its line and the one that it is compared with. With --store, also print the observations
    /// that it carried: text of users
    #[arg(long, value_name = "REQUEST_ID", conflicts_with_all = ["by", "format", "check", "since", "until", "tenant", "thread", "model"])]
    pub(super) why: Option<String>,
    /// Follow one file, or the database, and print the report again whenever new lines come
    #[arg(long, conflicts_with_all = ["why", "check"])]
    pub(super) watch: bool,
    #[command(flatten)]
    pub(super) sources: ConfigSources,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum By {
    Model,
    Thread,
    Tenant,
    Day,
    Cause,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Sort {
    Prompt,
    Uncached,
    Cost,
    Net,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Format {
    Table,
    Json,
    Csv,
    /// One page with charts by day, causes, models and conversations, that loads nothing from elsewhere
    Html,
}

impl Args {
    /// Whether the command line names groups.
    pub(super) fn has_groups(&self) -> bool {
        self.by.is_some()
    }

    pub(super) fn groups(&self) -> Vec<GroupBy> {
        if self.format == Format::Html {
            return PAGE_GROUPS.to_vec();
        }
        let group = |by| match by {
            By::Model => GroupBy::Model,
            By::Thread => GroupBy::Thread,
            By::Tenant => GroupBy::Tenant,
            By::Day => GroupBy::Day,
            By::Cause => GroupBy::Cause,
        };
        self.by.map(group).into_iter().collect()
    }

    pub(super) fn sort(&self) -> SortBy {
        match self.sort {
            None => SortBy::Usual,
            Some(Sort::Prompt) => SortBy::Prompt,
            Some(Sort::Uncached) => SortBy::Uncached,
            Some(Sort::Cost) => SortBy::Cost,
            Some(Sort::Net) => SortBy::Net,
        }
    }

    pub(super) fn filter(&self) -> Filter {
        Filter {
            since: self.since.clone(),
            until: self.until.clone(),
            tenant: self.tenant.clone(),
            thread: self.thread.clone(),
            model: self.model.clone(),
        }
    }

    /// A model that two prices name.
    pub(super) fn priced_twice(&self) -> Option<&str> {
        let (index, model) = (1.., self.prices.iter().map(|named| named.model.as_str()));
        let mut numbered = index.zip(model);
        let twice = |(next, model): &(usize, &str)| {
            let mut others = self.prices[*next..].iter();
            others.any(|other| other.model == *model)
        };
        numbered.find(twice).map(|(_, model)| model)
    }

    /// Prices of the command line win over those of the configuration, and these over those that are built in. With
    /// files and without --config there is no configuration: it may be of another machine.
    ///
    /// # Errors
    ///
    /// The configuration is not valid.
    pub(super) fn price_table(&self) -> Result<PriceTable, ConfigError> {
        let is_configured = self.files.is_empty() || self.sources.names_file();
        let configured = if is_configured {
            self.sources.load()?.audit_prices
        } else {
            Vec::new()
        };
        let own = configured.into_iter().chain(self.prices.iter().cloned());
        Ok(PriceTable::new(own))
    }
}

/// A time of the command line in the form of audit lines, which sort as text.
fn audit_time(text: &str) -> Result<String, String> {
    const FORMS: &str = "write 2026-11-23, 2026-11-23T08:00:00Z, or a time ago such as 24h or 7d";
    let time = if let Ok(time) = text.parse::<Timestamp>() {
        Some(time)
    } else if let Ok(date) = text.parse::<civil::Date>() {
        let begin = date.to_zoned(TimeZone::UTC);
        begin.ok().map(|begin| begin.timestamp())
    } else {
        let span = text.parse::<Span>().ok();
        let now = Timestamp::now().to_zoned(TimeZone::UTC);
        let time = span.and_then(|span| now.checked_sub(span).ok());
        time.map(|time| time.timestamp())
    };
    time.map(|time| format!("{time:.3}"))
        .ok_or_else(|| FORMS.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_in_three_forms() {
        let time = |text: &str| audit_time(text);
        assert_eq!(time("2026-11-23").unwrap(), "2026-11-23T00:00:00.000Z");
        assert_eq!(
            time("2026-11-23T08:00:00+01:00").unwrap(),
            "2026-11-23T07:00:00.000Z"
        );
        let ago = time("7d").unwrap();
        assert!(time("8d").unwrap() < ago && ago < time("24h").unwrap());
        for bad in ["", "yesterday", "2026-13-01", "7 moons"] {
            assert!(time(bad).unwrap_err().starts_with("write "), "{bad}");
        }
    }
}
