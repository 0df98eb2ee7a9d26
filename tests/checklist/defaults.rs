//! Options: what they are by default.

use std::time::Duration;

use diarist::llm::Models;
use diarist::memory::IdleTrigger;
use diarist::proxy::Overflow;

use super::configuration::{BUFFER, file, idle_buffering_is_off, load, plain, refused, valid};

/// An option of the original, and what it is by default.
pub type Default = (&'static str, fn());

/// In the order of the table.
pub const DEFAULTS: &[Default] = &[
    ("enabled", || assert!(plain().memory_enabled)),
    ("model", || {
        assert!(plain().memory.observation.model.is_none());
    }),
    ("scope", || {
        assert!(plain().memory.peer_memory_tokens.is_none());
    }),
    ("shareTokenBudget", || {
        assert!(!plain().memory.policy.share_token_budget);
    }),
    ("temporalMarkers, for the Observer", || {
        assert!(!plain().memory.temporal_markers);
    }),
    ("activateAfterIdle", || {
        let early = plain().memory.policy.early_activation;
        assert_eq!(early.idle, IdleTrigger::Never);
        // Milliseconds, as published, and as text where all is text.
        let five = IdleTrigger::After(Duration::from_mins(5));
        let set = valid(&[("MEMORY__OBSERVATION__ACTIVATE_AFTER_IDLE", "300000")]);
        assert_eq!(set.memory.policy.early_activation.idle, five);
    }),
    ("activateOnProviderChange", || {
        assert!(!plain().memory.policy.early_activation.model_change);
        let published = "memory.observation.activate_on_provider_change";
        let wrong = load(&[("MEMORY__OBSERVATION__ACTIVATE_ON_PROVIDER_CHANGE", "true")]);
        assert_eq!(wrong.err(), Some(vec![published.to_owned()]));
    }),
    ("observation.messageTokens", || {
        assert_eq!(plain().memory.policy.message_tokens, 30_000);
    }),
    ("observation.bufferTokens", || {
        assert_eq!(plain().memory.policy.buffer_tokens, 6_000);
        let off = refused(&[(BUFFER, "false")]);
        assert_eq!(
            off,
            ["memory.observation.buffer_tokens"],
            "it cannot be off"
        );
    }),
    ("observation.bufferActivation", || {
        assert_eq!(plain().memory.policy.retention_floor, 6_000);
    }),
    ("observation.blockAfter", || {
        assert_eq!(plain().memory.policy.block_after, 36_000);
    }),
    ("observation.bufferOnIdle", || idle_buffering_is_off()),
    ("observation.previousObserverTokens", || {
        let shown = plain().memory.observer.previous_tokens;
        assert_eq!(shown, Some(2_000));
    }),
    ("observation.instruction / reflection.instruction", || {
        let memory = plain().memory;
        assert_eq!(memory.observation.instruction, None);
        assert_eq!(memory.reflection.instruction, None);
    }),
    ("observation.threadTitle", || {
        assert!(!plain().memory.observer.title);
    }),
    (
        "observation.continuationHints, reflection.continuationHints",
        || {
            let memory = plain().memory;
            for hints in [memory.observer.hints, memory.hints] {
                assert!(hints.current_task && hints.suggested_response);
            }
        },
    ),
    ("observation.observeAttachments", || {
        use diarist::memory::observe::AttachmentFilter;
        let shown = plain().memory.observer.attachments.clone();
        assert_eq!(shown, AttachmentFilter::Auto);
        for (media_type, is_accepted) in [
            ("image/png", true),
            ("application/pdf", true),
            ("audio/wav", false),
        ] {
            assert_eq!(
                AttachmentFilter::Auto.accepts(media_type),
                is_accepted,
                "{media_type}"
            );
        }
    }),
    ("observation.modelSettings", || {
        let phase = plain().memory.observation;
        assert_eq!(
            (phase.temperature, phase.max_output_tokens),
            (Some(0.3), None)
        );
    }),
    ("observation.providerOptions / reflection", || {
        let memory = plain().memory;
        assert!(memory.observation.options.is_empty());
        assert!(memory.reflection.options.is_empty());
    }),
    ("reflection.observationTokens", || {
        assert_eq!(plain().memory.policy.observation_tokens, 40_000);
    }),
    ("reflection.bufferActivation", || {
        assert_eq!(plain().memory.policy.reflect_from, 20_000);
    }),
    ("reflection.blockAfter", || {
        assert_eq!(plain().memory.policy.observation_limit, 48_000);
    }),
    ("reflection.modelSettings", || {
        let phase = plain().memory.reflection;
        assert_eq!(
            (phase.temperature, phase.max_output_tokens),
            (Some(0.0), None)
        );
    }),
    (
        "reflection.activateAfterIdle / activateOnProviderChange",
        || {
            let early = plain().memory.policy.early_reflection;
            assert_eq!(
                (early.idle, early.model_change),
                (IdleTrigger::Never, false)
            );
        },
    ),
    ("failurePolicy, maxRetries", || {
        // No such key: memory never fails a request.
        let unknown = file("[memory.observation]\nfailure_policy = \"abort\"\n");
        assert!(unknown.is_err());
    }),
    ("observation.observeOnContextOverflow", || {
        assert_eq!(plain().requests.overflow, Overflow::Pass);
        for (word, meant) in [
            ("observe", Overflow::Observe(Duration::from_mins(1))),
            ("trim", Overflow::Trim),
        ] {
            assert_eq!(
                valid(&[("MEMORY__OVERFLOW", word)]).requests.overflow,
                meant
            );
        }
    }),
    ("tiered model", || {
        let written =
            file("[memory]\nmodel = { \"200000\" = \"large\", \"20000\" = \"small\" }\n").unwrap();
        let tiers = vec![(20_000, "small".to_owned()), (200_000, "large".to_owned())];
        let models = Some(Models::Tiers(tiers));
        assert_eq!(written.memory.observation.model, models);
    }),
    ("per-record overrides", || {
        assert!(plain().overrides.is_empty());
    }),
];
