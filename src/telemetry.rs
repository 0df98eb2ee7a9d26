//! Logs and metrics: names, set-up, rendering.
