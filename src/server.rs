//! Listeners, connections and the drain.
