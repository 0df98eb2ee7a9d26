//! How many of something are open now.

/// One of the things that a gauge counts. It counts until it is dropped, also if its task panics or is cancelled.
#[derive(Debug)]
pub struct OpenCount(&'static str);

impl OpenCount {
    /// Counts one more in `gauge`.
    pub fn new(gauge: &'static str) -> Self {
        metrics::gauge!(gauge).increment(1.0);
        Self(gauge)
    }
}

impl Drop for OpenCount {
    fn drop(&mut self) {
        metrics::gauge!(self.0).decrement(1.0);
    }
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    #[test]
    fn the_open_count_falls_after_a_panic() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let handle = recorder.handle();
        metrics::with_local_recorder(&recorder, || {
            let _open = OpenCount::new("open_things");
            let ended = std::panic::catch_unwind(|| {
                let _second = OpenCount::new("open_things");
                panic!("while it is open");
            });
            assert!(ended.is_err());
            assert!(
                handle.render().contains("open_things 1"),
                "{}",
                handle.render()
            );
        });
        assert!(
            handle.render().contains("open_things 0"),
            "{}",
            handle.render()
        );
    }
}
