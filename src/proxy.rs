//! The way of one request.
pub mod decode;
pub mod sse;
pub mod tee;
pub mod usage_filter;
