//! One JSON line per memory request: what was received, what was sent, what the provider said of its cache.
