//! The pooled client towards the upstream: TLS, ALPN, header rules.
