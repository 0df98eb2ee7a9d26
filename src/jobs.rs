//! Work off the request path: recording exchanges, observing, reflecting, preparing snapshots.
