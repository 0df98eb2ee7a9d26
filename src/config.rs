//! Configuration in two steps: what was written, then what is valid; every error at once.
