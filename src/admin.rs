//! The admin port: health, readiness and metrics. Never on the data port.
