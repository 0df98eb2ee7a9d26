//! What audit files say about cache and cost: the lines read, summed in groups, priced, and shown.
//!
//! Pure: takes bytes of lines and returns numbers and text. A count that no line reports stays unknown; it is never taken
//! as 0. Groups are the only thing that grows with the files. Used by `diarist audit`, which opens the files and prints, and by
//! `app`, which counts dollars while lines are written ([`CostMeter`]).

mod branches;
mod cache_seen;
mod check;
mod conversation_models;
mod cost;
mod cost_meter;
mod data;
mod density;
mod estimate;
mod filter;
mod groups;
mod holdout;
mod line;
mod measures;
mod page;
mod page_chart;
mod reasons;
mod recent;
mod reported;
mod segments;
mod table;
mod text;
mod token_range;
mod totals;
mod why;

pub use check::{BadCheck, Check, FailedClause};
pub use cost_meter::{CostMeter, RequestDollars};
pub use data::{csv_report, json_report};
pub use filter::Filter;
pub use groups::{GroupBy, Grouping, Ledger, SortBy};
pub use holdout::{Holdout, HoldoutGroup, Saving};
pub use line::{Line, LineKind, SkippedLine, Text};
pub use measures::{MEASURES, Measure};
pub use page::{PAGE_GROUPS, html_report};
pub use reported::ReportedUsage;
pub use table::{changes_screen, text_report};
pub use totals::Totals;
pub use why::explain;
