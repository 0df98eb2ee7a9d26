//! Tracked tasks: nothing in the process is spawned bare.
