//! What a conversation cost with and without Diarist, request by request: the numbers, and a chart of them.
//!
//! Pure: takes the token counts of a provider and returns text for a terminal. A count that the provider did not
//! report stays absent; it is never taken as 0, and the text says so. Used by `diarist demo` and `diarist
//! replay`, which collect the counts.

mod chart;
mod columns;
mod excerpt;
mod price;
mod story;
mod table;

pub use chart::{Size, chart};
pub use columns::{ColumnAlign, align_columns};
pub use excerpt::excerpt;
pub use price::{BadPrice, Price, Prices};
pub use story::{MemoryChange, ReportStep, Story, Tokens, grouped};
pub use table::{conversations, notes, table};
