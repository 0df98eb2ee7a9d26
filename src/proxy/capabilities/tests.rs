use super::refusal_ttl::REFUSAL_TTL;
use super::*;

/// All tests here use one tenant. What two accounts agree on is tested in `model_capabilities`.
fn for_model(model: &str) -> TenantModel<'_> {
    TenantModel {
        tenant: &[7; 32],
        account: &[7; 32],
        model,
    }
}

#[test]
fn a_refused_placement_is_lowered_by_one_step_for_that_model() {
    let capabilities = UpstreamCapabilities::new(Some(Placement::SystemMessage), "localhost");
    assert_eq!(
        capabilities.placement(for_model("a")),
        Some(Placement::SystemMessage)
    );
    capabilities.record_refused_placement(for_model("a"), Placement::SystemMessage, true);
    assert_eq!(
        capabilities.placement(for_model("a")),
        Some(Placement::AppendToSystem)
    );
    assert_eq!(
        capabilities.placement(for_model("b")),
        Some(Placement::SystemMessage)
    );
    capabilities.record_refused_placement(for_model("a"), Placement::AppendToSystem, true);
    assert_eq!(capabilities.placement(for_model("a")), None);
}

#[test]
fn a_refused_placement_is_tried_again_after_an_hour() {
    let capabilities = UpstreamCapabilities::new(Some(Placement::SystemMessage), "localhost");
    capabilities.record_refused_placement(for_model("a"), Placement::SystemMessage, true);
    capabilities.expire(Instant::now() + REFUSAL_TTL / 2);
    assert_eq!(
        capabilities.placement(for_model("a")),
        Some(Placement::AppendToSystem)
    );
    capabilities.expire(Instant::now() + REFUSAL_TTL * 2);
    assert_eq!(
        capabilities.placement(for_model("a")),
        Some(Placement::SystemMessage)
    );
}

#[test]
fn a_snapshot_keeps_its_placement_unless_that_is_refused() {
    let capabilities = UpstreamCapabilities::new(Some(Placement::SystemMessage), "localhost");
    capabilities.set_placement(Some(Placement::Segments));
    assert_eq!(
        capabilities.placement(for_model("a")),
        Some(Placement::Segments)
    );
    let placement = |configured| capabilities.placement_for(for_model("a"), configured);
    assert_eq!(placement("system_message"), Some(Placement::SystemMessage));
    assert_eq!(
        placement("append_to_system"),
        Some(Placement::AppendToSystem)
    );
    assert_eq!(placement("off"), None);
    assert_eq!(placement(""), Some(Placement::Segments));
    capabilities.record_refused_placement(for_model("a"), Placement::SystemMessage, true);
    for configured in ["segments", "system_message", "append_to_system", ""] {
        assert_eq!(
            capabilities.placement_for(for_model("a"), configured),
            Some(Placement::AppendToSystem)
        );
        assert_ne!(
            capabilities.placement_for(for_model("a"), configured),
            capabilities.placement_for(for_model("b"), "segments")
        );
    }
}

#[test]
fn the_least_recently_used_model_is_forgotten() {
    let capabilities = UpstreamCapabilities::new(Some(Placement::SystemMessage), "localhost");
    for number in 0..MAX_MODELS {
        capabilities.record_refused_placement(
            for_model(&format!("m{number}")),
            Placement::SystemMessage,
            true,
        );
    }
    // Used again, so `m1` is the least recently used now.
    capabilities.placement(for_model("m0"));
    capabilities.record_refused_placement(for_model("one more"), Placement::SystemMessage, true);
    let stepped_down =
        |name: &str| capabilities.placement(for_model(name)) == Some(Placement::AppendToSystem);
    assert!(stepped_down("m0") && stepped_down("one more") && stepped_down("m2"));
    assert!(!stepped_down("m1"));
    assert_eq!(capabilities.lock().models.len(), MAX_MODELS);
}

#[test]
fn placement_off_is_never_raised() {
    assert_eq!(
        UpstreamCapabilities::new(None, "localhost").placement(for_model("a")),
        None
    );
}

#[test]
fn usage_is_requested_where_supported_and_never_after_a_refusal() {
    assert!(UpstreamCapabilities::new(None, "api.openai.com").may_ask_usage(for_model("a"), false));
    let capabilities = UpstreamCapabilities::new(None, "localhost");
    assert!(!capabilities.may_ask_usage(for_model("a"), false));
    assert!(capabilities.may_ask_usage(for_model("a"), true));
    capabilities.record_usage_accepted(for_model("a"));
    assert!(capabilities.may_ask_usage(for_model("a"), false));
    capabilities.record_usage_refused(for_model("a"));
    capabilities.record_usage_accepted(for_model("a"));
    assert!(!capabilities.may_ask_usage(for_model("a"), false));
}

#[test]
fn openrouter_reports_usage_without_being_asked() {
    let capabilities = UpstreamCapabilities::new(None, "openrouter.ai");
    capabilities.record_usage_accepted(for_model("a"));
    for always in [false, true] {
        assert!(!capabilities.may_ask_usage(for_model("a"), always));
    }
}

#[test]
fn cache_additions_are_known_for_openai_and_azure_until_refused() {
    for (host, is_known) in [
        ("api.openai.com", true),
        ("eu.api.openai.com", true),
        ("me.openai.azure.com", true),
        ("api.deepseek.com", false),
        ("openai.com.example", false),
        ("localhost", false),
    ] {
        let capabilities = UpstreamCapabilities::new(None, host);
        for addition in CacheAddition::ALL {
            let documents = |model| capabilities.documents(addition, model);
            assert_eq!(documents("gpt-5.6"), is_known, "{host} {addition:?}");
            let only_new = addition == CacheAddition::Breakpoint;
            assert_eq!(documents("gpt-5.5"), is_known && !only_new, "{host}");
        }
    }
    let capabilities = UpstreamCapabilities::new(None, "api.openai.com");
    let [key, breakpoint] = CacheAddition::ALL;
    capabilities.record_addition_refused(key, for_model("a"));
    capabilities.record_addition_accepted(key, "a");
    assert!(capabilities.refuses(key, for_model("a")) && capabilities.accepts(key, "a"));
    for (addition, model) in [(key, "b"), (breakpoint, "a")] {
        assert!(!capabilities.refuses(addition, for_model(model)));
        assert!(!capabilities.accepts(addition, model));
    }
}

#[test]
fn signing_tenants_are_remembered_for_an_hour_up_to_a_bound() {
    let capabilities = UpstreamCapabilities::new(None, "localhost");
    let tenant = |number: usize| {
        let mut tenant = [0; 32];
        tenant[..8].copy_from_slice(&number.to_le_bytes());
        tenant
    };
    for number in 0..=MAX_SIGNING_TENANTS {
        capabilities.record_signing(&tenant(number));
    }
    assert_eq!(capabilities.lock().signing.len(), MAX_SIGNING_TENANTS);
    assert!(
        capabilities.is_signing(&tenant(MAX_SIGNING_TENANTS)) && !capabilities.is_signing(&[9; 32])
    );
    capabilities.expire(Instant::now() + REFUSAL_TTL / 2);
    assert!(capabilities.is_signing(&tenant(MAX_SIGNING_TENANTS)));
    capabilities.expire(Instant::now() + REFUSAL_TTL * 2);
    assert!(!capabilities.is_signing(&tenant(MAX_SIGNING_TENANTS)));
}
