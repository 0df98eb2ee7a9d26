//! Memory through the whole proxy: real sockets, the strict scripted provider as judge, SQLite in a
//! file. What is asserted is read from the provider's record, not from the proxy's opinion.

#[path = "memory/rig.rs"]
mod rig;
#[path = "memory/story.rs"]
mod story;
