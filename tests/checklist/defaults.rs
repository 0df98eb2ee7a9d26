//! Options: what they are by default.

use std::time::Duration;

use diarist::config;

use super::configuration::{BUFFER, file, idle_buffering_is_off, load, plain, refused, valid};

/// An option of the original, and what it is by default.
pub type Default = (&'static str, fn());

/// In the order of the table.
pub const DEFAULTS: &[Default] = &[
    ("enabled", || assert!(plain().memory.enabled)),
    ("model", || {
        assert!(plain().memory.observation.phase.model.is_none());
    }),
    ("scope", || {
        assert!(plain().memory.other_conversations.is_none());
    }),
    ("shareTokenBudget", || {
        assert!(!plain().memory.thresholds.share_token_budget);
    }),
    ("temporalMarkers, for the Observer", || {
        assert!(!plain().memory.temporal_markers);
    }),
    ("activateAfterIdle", || {
        let early = plain().memory.thresholds.early_activation;
        assert_eq!(early.idle, config::ActivateAfterIdle::Never);
        // Milliseconds, as published, and as text where all is text.
        let five = config::ActivateAfterIdle::After(Duration::from_mins(5));
        let set = valid(&[("MEMORY__OBSERVATION__ACTIVATE_AFTER_IDLE", "300000")]);
        assert_eq!(set.memory.thresholds.early_activation.idle, five);
    }),
    ("activateOnProviderChange", || {
        assert!(!plain().memory.thresholds.early_activation.model_change);
        let published = "memory.observation.activate_on_provider_change";
        let wrong = load(&[("MEMORY__OBSERVATION__ACTIVATE_ON_PROVIDER_CHANGE", "true")]);
        assert_eq!(wrong.err(), Some(vec![published.to_owned()]));
    }),
    ("observation.messageTokens", || {
        assert_eq!(plain().memory.thresholds.message_tokens, 30_000);
    }),
    ("observation.bufferTokens", || {
        assert_eq!(plain().memory.thresholds.buffer_tokens, 6_000);
        let off = refused(&[(BUFFER, "false")]);
        assert_eq!(
            off,
            ["memory.observation.buffer_tokens"],
            "it cannot be off"
        );
    }),
    ("observation.bufferActivation", || {
        assert_eq!(plain().memory.thresholds.retention_floor, 6_000);
    }),
    ("observation.blockAfter", || {
        assert_eq!(plain().memory.thresholds.message_limit, 36_000);
    }),
    ("observation.bufferOnIdle", || idle_buffering_is_off()),
    ("observation.previousObserverTokens", || {
        let shown = plain().memory.observation.previous_observer_tokens;
        assert_eq!(shown, Some(2_000));
    }),
    ("observation.instruction / reflection.instruction", || {
        let memory = plain().memory;
        assert_eq!(memory.observation.instruction, None);
        assert_eq!(memory.reflection.instruction, None);
    }),
    ("observation.threadTitle", || {
        assert!(!plain().memory.observation.thread_title);
    }),
    (
        "observation.continuationHints, reflection.continuationHints",
        || {
            let memory = plain().memory;
            for hints in [
                memory.observation.continuation_hints,
                memory.reflection.continuation_hints,
            ] {
                assert!(hints.current_task && hints.suggested_response);
            }
        },
    ),
    ("observation.observeAttachments", || {
        use diarist::memory::observe::AttachmentFilter;
        let shown = plain().memory.observation.observe_attachments;
        assert_eq!(shown, config::Attachments::Auto);
        for (media_type, seen) in [
            ("image/png", true),
            ("application/pdf", true),
            ("audio/wav", false),
        ] {
            assert_eq!(
                AttachmentFilter::Auto.accepts(media_type),
                seen,
                "{media_type}"
            );
        }
    }),
    ("observation.modelSettings", || {
        let phase = plain().memory.observation.phase;
        assert_eq!((phase.temperature, phase.max_output_tokens), (0.3, None));
    }),
    ("observation.providerOptions / reflection", || {
        let memory = plain().memory;
        assert!(memory.observation.phase.options.is_empty());
        assert!(memory.reflection.phase.options.is_empty());
    }),
    ("reflection.observationTokens", || {
        assert_eq!(plain().memory.thresholds.observation_tokens, 40_000);
    }),
    ("reflection.bufferActivation", || {
        assert_eq!(plain().memory.thresholds.reflect_from, 20_000);
    }),
    ("reflection.blockAfter", || {
        assert_eq!(plain().memory.thresholds.observation_limit, 48_000);
    }),
    ("reflection.modelSettings", || {
        let phase = plain().memory.reflection.phase;
        assert_eq!((phase.temperature, phase.max_output_tokens), (0.0, None));
    }),
    (
        "reflection.activateAfterIdle / activateOnProviderChange",
        || {
            let early = plain().memory.thresholds.early_reflection;
            assert_eq!(
                (early.idle, early.model_change),
                (config::ActivateAfterIdle::Never, false)
            );
        },
    ),
    ("failurePolicy, maxRetries", || {
        // No such key: memory never fails a request.
        let unknown = file("[memory.observation]\nfailure_policy = \"abort\"\n");
        assert!(unknown.is_err());
    }),
    ("observation.observeOnContextOverflow", || {
        assert_eq!(plain().memory.overflow, config::Overflow::Pass);
        for (word, meant) in [
            ("observe", config::Overflow::Observe),
            ("trim", config::Overflow::Trim),
        ] {
            assert_eq!(valid(&[("MEMORY__OVERFLOW", word)]).memory.overflow, meant);
        }
    }),
    ("tiered model", || {
        let written =
            file("[memory]\nmodel = { \"200000\" = \"large\", \"20000\" = \"small\" }\n").unwrap();
        let tiers = vec![(20_000, "small".to_owned()), (200_000, "large".to_owned())];
        let models = Some(config::Models::Tiers(tiers));
        assert_eq!(written.memory.observation.phase.model, models);
    }),
    ("per-record overrides", || {
        assert!(plain().memory.overrides.is_empty());
    }),
];
