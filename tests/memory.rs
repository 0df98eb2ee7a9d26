//! Memory through the whole proxy: real sockets, the strict scripted provider as judge, SQLite in a
//! file. What is asserted is read from the provider's record, not from the proxy's opinion.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "what was measured is worth reading")]

#[path = "memory/rig.rs"]
mod rig;
#[path = "memory/story.rs"]
mod story;
#[path = "memory/tools.rs"]
mod tools;

#[path = "memory/bad_input.rs"]
mod bad_input;
#[path = "memory/borrowed.rs"]
mod borrowed;
#[path = "memory/branches.rs"]
mod branches;
#[path = "memory/budget.rs"]
mod budget;
#[path = "memory/by_hand.rs"]
mod by_hand;
#[path = "memory/calls.rs"]
mod calls;
#[path = "memory/changed.rs"]
mod changed;
#[path = "memory/controls.rs"]
mod controls;
#[path = "memory/cut.rs"]
mod cut;
#[path = "memory/database.rs"]
mod database;
#[path = "memory/days.rs"]
mod days;
#[path = "memory/declined.rs"]
mod declined;
#[path = "memory/dropping.rs"]
mod dropping;
#[path = "memory/filtered.rs"]
mod filtered;
#[path = "memory/fixed.rs"]
mod fixed;
#[path = "memory/hangups.rs"]
mod hangups;
#[path = "memory/hints.rs"]
mod hints;
#[path = "memory/identity.rs"]
mod identity;
#[path = "memory/idle.rs"]
mod idle;
#[path = "memory/important.rs"]
mod important;
#[path = "memory/kept.rs"]
mod kept;
#[path = "memory/ladder.rs"]
mod ladder;
#[path = "memory/late.rs"]
mod late;
#[path = "memory/lowered.rs"]
mod lowered;
#[path = "memory/modes.rs"]
mod modes;
#[path = "memory/no_trace.rs"]
mod no_trace;
#[path = "memory/observing.rs"]
mod observing;
#[path = "memory/overflow.rs"]
mod overflow;
#[path = "memory/overrides.rs"]
mod overrides;
#[path = "memory/pieces.rs"]
mod pieces;
#[path = "memory/placement.rs"]
mod placement;
#[path = "memory/process.rs"]
mod process;
#[path = "memory/reflecting.rs"]
mod reflecting;
#[path = "memory/refusals.rs"]
mod refusals;
#[path = "memory/reproduced.rs"]
mod reproduced;
#[path = "memory/resource.rs"]
mod resource;
#[path = "memory/rotated.rs"]
mod rotated;
#[path = "memory/same.rs"]
mod same;
#[path = "memory/shown.rs"]
mod shown;
#[path = "memory/stopgap.rs"]
mod stopgap;
#[path = "memory/streams.rs"]
mod streams;
#[path = "memory/timeline.rs"]
mod timeline;
#[path = "memory/told.rs"]
mod told;
#[path = "memory/trimmed.rs"]
mod trimmed;
#[path = "memory/turns.rs"]
mod turns;
#[path = "memory/unwritten.rs"]
mod unwritten;
#[path = "memory/users.rs"]
mod users;
#[path = "memory/wishes.rs"]
mod wishes;
