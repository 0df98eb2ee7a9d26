//! Each cause once, and the cases between two causes.

use std::collections::BTreeSet;
use std::time::Duration;

use super::sent_prompt::escaped_length;
use super::*;
use crate::history::{Encoder, Link, Message, PromptFields, Role, Scope};
use crate::memory::{PartId, Snapshot, SnapshotCause, SnapshotId, SnapshotMeta};

fn message(text: &str) -> Message {
    let mut encoder = Encoder::new();
    encoder.text("content", text);
    Message {
        fingerprint: encoder.finish(),
        role: Role::User,
        calls: std::sync::Arc::default(),
        answers: None,
        distinctive_bytes: 0,
        random_ids: false,
        attachment_bytes: 0,
        span: 0..BYTES,
    }
}

/// Bytes of every message: a hundred tokens.
const BYTES: usize = 400;

/// A prompt of a system message and the words of `text`, one message each.
#[derive(Clone)]
struct Sent<'a> {
    model: &'a str,
    tools: Option<&'a str>,
    system: &'a str,
    text: Vec<String>,
    layout: SentLayout,
    has_memory: bool,
}

impl Sent<'_> {
    fn new(messages: usize) -> Self {
        Self {
            model: "gpt-5",
            tools: None,
            system: "s",
            text: (0..messages).map(|number| number.to_string()).collect(),
            layout: SentLayout::default(),
            has_memory: true,
        }
    }

    fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    fn prompt(&self) -> SentPrompt {
        let fields = self.tools.map(|tools| PromptFields {
            fingerprint: message(tools).fingerprint,
            bytes: BYTES,
        });
        let messages: Vec<Message> = self.text.iter().map(|text| message(text)).collect();
        let system = [message(self.system)];
        let layout = self.layout.clone();
        let mut prompt = SentPrompt::new(
            self.model,
            fields,
            &system,
            &messages,
            layout,
            self.has_memory,
        );
        prompt.prompt_tokens = Some(prompt.bytes() / 4);
        prompt
    }
}

fn snapshot(parts: &[i64]) -> Snapshot {
    Snapshot {
        meta: SnapshotMeta {
            id: SnapshotId(parts.len() as i64),
            to: Link::root(&Scope::new(b"k", None)),
            to_count: 20,
            eligible_from: 0,
            pin: None,
            parts: parts.iter().map(|id| PartId(*id)).collect(),
            tokens: 0,
            cause: SnapshotCause::Threshold,
            placement: String::new(),
            peer_memory: None,
        },
        segments: vec!["x".repeat(100); parts.len() + 2],
    }
}

/// A block of these parts, in place of `cut` messages.
fn block(cut: usize, parts: &[i64]) -> SentLayout {
    let bytes = 100 * (parts.len() + 2);
    SentLayout {
        cut,
        block: Some(SentBlock::new(Some(&snapshot(parts)), None, bytes, false)),
        ..SentLayout::default()
    }
}

#[test]
fn tokens_by_segment_add_up_to_the_prompt() {
    let bytes = SegmentBytes {
        tools: 1,
        system: 333,
        observations: 333,
        reminder: 334,
        messages: 999,
        replaced: 20_000,
    };
    for tokens in [0, 1, 7, 499, 500, 2_001] {
        let share = bytes.share_of(tokens);
        let prompt = [
            share.tools,
            share.system,
            share.observations,
            share.reminder,
            share.messages,
        ];
        assert_eq!(prompt.iter().sum::<u64>(), tokens);
        assert_eq!(share.replaced, tokens * 10);
    }
    assert_eq!(SegmentBytes::default().share_of(9), SegmentBytes::default());
}

#[test]
fn the_data_of_attachments_is_no_part_of_any_size() {
    let picture = |text: &str| Message {
        random_ids: false,
        attachment_bytes: 300,
        ..message(text)
    };
    let messages = ["0", "1", "2", "3"].map(picture);
    let layout = SentLayout {
        cut: 3,
        front: vec![0],
        ..SentLayout::default()
    };
    let prompt = SentPrompt::new("m", None, &[message("s")], &messages, layout, true);
    let bytes = prompt.segment_bytes();
    assert_eq!(
        (bytes.system, bytes.messages, bytes.replaced),
        (400, 200, 200)
    );
    let attached = AttachmentBytes {
        received: 1_200,
        sent: 600,
    };
    assert_eq!(prompt.attachment_bytes(), attached);
}

#[test]
fn the_escaped_length_of_a_text_equals_its_length_in_json() {
    let text: String = (0..0x100_u32)
        .filter_map(char::from_u32)
        .collect::<String>()
        + "🔴\n\"";
    // Every byte counts: no count of a piece may be too large for its type.
    let quotes = "\"".repeat(1_000);
    for text in [text, quotes] {
        let json = serde_json::to_string(&text).expect("a text");
        assert_eq!(escaped_length(&text), json.len() - 2);
    }
}

#[test]
fn the_bytes_of_a_block_are_divided_into_observations_and_reminder() {
    let mut snapshot = snapshot(&[1]);
    // As many bytes as in JSON, where a quote is two.
    snapshot.segments = ["rules", "a \"b\"\n", "<current-task>c"]
        .map(str::to_owned)
        .to_vec();
    let sent = |note| {
        let layout = SentLayout {
            block: Some(SentBlock::new(Some(&snapshot), note, 100, false)),
            ..SentLayout::default()
        };
        let prompt = SentPrompt::new("m", None, &[], &[], layout, true);
        let bytes = prompt.segment_bytes();
        (bytes.observations, bytes.reminder)
    };
    assert_eq!(sent(None), (9 + 15, 100 - 24));
    // A note takes the place of the hints.
    assert_eq!(sent(Some((3, None))), (9, 91));
}

const RULES: CacheRules = CacheRules {
    minimum_tokens: 1_024,
    step_tokens: 128,
    lifetime: Duration::from_mins(5),
    reads: CacheReads::AnyBeginning,
};

/// Judges `now` after `before`: the provider read `cached` tokens.
fn judged(before: &Sent<'_>, now: &Sent<'_>, cached: u64, idle_s: u64) -> Judgement {
    let (before, now) = (before.prompt(), now.prompt());
    let reported = Reported {
        prompt_tokens: now.prompt_tokens,
        cached_tokens: Some(cached),
        cache_write_tokens: None,
        idle: Duration::from_secs(idle_s),
    };
    judge(Some(&before), &now, reported, &RULES)
}

fn verdict_and_cause(judgement: Judgement) -> (&'static str, Option<&'static str>) {
    (
        judgement.verdict.name(),
        judgement.cause.map(VerdictCause::name),
    )
}

#[test]
fn a_cache_miss_is_blamed_on_its_cause() {
    let before = Sent::new(50);
    let grown = Sent::new(52);
    let active = before.clone().with(|sent| sent.layout = block(20, &[1]));
    // `a_miss_beyond_the_reach_of_cache_marks_is_blamed_on_them` tests this one.
    let mut tested = BTreeSet::from(["cache_marks"]);
    for (cause, before, now, idle) in [
        (
            "activation",
            &before,
            grown.clone().with(|sent| sent.layout = block(20, &[1])),
            0,
        ),
        (
            "activation",
            &active,
            grown.clone().with(|sent| sent.layout = block(30, &[1, 2])),
            0,
        ),
        (
            "reflection",
            &active,
            grown.clone().with(|sent| sent.layout = block(30, &[3, 2])),
            0,
        ),
        (
            "tools_changed",
            &before,
            grown.clone().with(|sent| sent.tools = Some("t")),
            0,
        ),
        (
            "system_changed",
            &before,
            grown.clone().with(|sent| sent.system = "other"),
            0,
        ),
        (
            "message_changed",
            &before,
            grown.clone().with(|sent| sent.text[3] = "other".into()),
            0,
        ),
        (
            "message_changed",
            &before,
            grown.clone().with(|sent| drop(sent.text.remove(3))),
            0,
        ),
        (
            "message_inserted",
            &before,
            grown
                .clone()
                .with(|sent| sent.text.insert(0, "first".into())),
            0,
        ),
        (
            "message_inserted",
            &active,
            grown.clone().with(|sent| {
                sent.text.insert(30, "one".into());
                sent.text.insert(30, "two".into());
                sent.layout = block(20, &[1]);
            }),
            0,
        ),
        (
            "message_changed",
            &before,
            grown.clone().with(|sent| {
                sent.text.insert(3, "one".into());
                sent.text[40] = "other".into();
            }),
            0,
        ),
        (
            "forked",
            &before,
            Sent::new(40).with(|sent| sent.text[20] = "other".into()),
            0,
        ),
        (
            "forked",
            &active,
            Sent::new(12).with(|sent| sent.text[11] = "other".into()),
            0,
        ),
        (
            "model_changed",
            &before,
            grown.clone().with(|sent| sent.model = "gpt-4"),
            0,
        ),
        ("idle", &before, grown.clone(), 301),
        ("provider", &before, grown.clone(), 300),
        (
            "memory_switched",
            &active,
            grown.clone().with(|sent| sent.has_memory = false),
            0,
        ),
        (
            "memory_switched",
            &before.clone().with(|sent| sent.has_memory = false),
            grown.clone().with(|sent| sent.layout = block(20, &[1])),
            0,
        ),
        ("below_minimum", &Sent::new(8), Sent::new(10), 0),
        (
            "below_minimum",
            &Sent::new(8),
            Sent::new(30).with(|sent| sent.system = "other"),
            0,
        ),
    ] {
        assert_eq!(
            verdict_and_cause(judged(before, &now, 0, idle)),
            ("miss", Some(cause)),
            "{cause}"
        );
        tested.insert(cause);
    }
    let all: BTreeSet<&str> = VerdictCause::ALL.iter().map(|cause| cause.name()).collect();
    assert_eq!(tested, all);
}

#[test]
fn every_cause_and_verdict_has_a_name_of_its_own() {
    let mut names: Vec<&str> = VerdictCause::ALL.iter().map(|cause| cause.name()).collect();
    names.extend(Verdict::ALL.iter().map(|verdict| verdict.name()));
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
}

#[test]
fn one_missing_cache_step_is_warm_and_two_are_partial() {
    let (before, now) = (Sent::new(50), Sent::new(52));
    // 51 messages of 100 tokens: 39 whole steps.
    for (cached, expected) in [
        (39 * 128, ("warm", None)),
        (38 * 128, ("warm", None)),
        (37 * 128, ("partial", Some("provider"))),
        (0, ("miss", Some("provider"))),
    ] {
        let judgement = judged(&before, &now, cached, 0);
        assert_eq!(verdict_and_cause(judgement), expected, "{cached}");
        assert_eq!(judgement.expected_cached_tokens, Some(39 * 128));
    }
}

#[test]
fn a_change_at_the_end_that_costs_nothing_is_warm() {
    let before = Sent::new(50);
    let now = Sent::new(50).with(|sent| sent.text[49] = "other".into());
    let judgement = judged(&before, &now, 38 * 128, 0);
    assert_eq!(verdict_and_cause(judgement), ("warm", None));
    let (part, author) = judgement.change.unwrap().first.unwrap();
    assert_eq!(
        (part.to_string().as_str(), author.name()),
        ("message 50", "client")
    );
}

#[test]
fn a_change_explains_lost_bytes_behind_it_and_a_pause_the_others() {
    let before = Sent::new(50);
    let now = Sent::new(52).with(|sent| sent.text[30] = "other".into());
    // The system message and 30 others: 24 steps.
    let judgement = judged(&before, &now, 24 * 128, 900);
    assert_eq!(judgement.expected_cached_tokens, Some(24 * 128));
    assert_eq!(judgement.change.unwrap().common_bytes, 31 * BYTES as u64);
    assert_eq!(
        verdict_and_cause(judgement),
        ("partial", Some("message_changed"))
    );
    assert_eq!(
        verdict_and_cause(judged(&before, &now, 0, 900)),
        ("miss", Some("idle"))
    );
    assert_eq!(
        verdict_and_cause(judged(&before, &now, 0, 9)),
        ("miss", Some("message_changed"))
    );
}

#[test]
fn a_verdict_without_an_earlier_request_or_usage_report_has_no_cause() {
    let now = Sent::new(50).prompt();
    let reported = |cached_tokens| Reported {
        prompt_tokens: Some(5_000),
        cached_tokens,
        cache_write_tokens: None,
        idle: Duration::ZERO,
    };
    for (before, cached, verdict) in [
        (None, Some(0), "cold_start"),
        (None, Some(4_096), "cold_start"),
        (None, None, "unknown"),
        (Some(&now), None, "unknown"),
    ] {
        let judgement = judge(before, &now, reported(cached), &RULES);
        assert_eq!(verdict_and_cause(judgement), (verdict, None));
    }
}

/// A stream that was cut before its usage: what its prompt left in the cache is estimated by its bytes.
#[test]
fn new_messages_after_a_prompt_without_a_token_count_are_no_miss() {
    let mut before = Sent::new(50).prompt();
    before.prompt_tokens = None;
    let judged = |now: &Sent<'_>, tokens: u64, cached: u64, rules: &CacheRules| {
        let reported = Reported {
            prompt_tokens: Some(tokens),
            cached_tokens: Some(cached),
            ..Reported::default()
        };
        verdict_and_cause(judge(Some(&before), &now.prompt(), reported, rules))
    };
    let grown = Sent::new(55);
    // 51 messages of 100 tokens are 39 steps, and 5 new ones have 100 or, if they are dense, 150.
    for (tokens, cached, expected) in [
        (5_600, 39 * 128, ("warm", None)),
        (5_850, 39 * 128, ("warm", None)),
        (5_600, 30 * 128, ("partial", Some("provider"))),
        (5_600, 0, ("miss", Some("provider"))),
    ] {
        let found = judged(&grown, tokens, cached, &RULES);
        assert_eq!(found, expected, "{tokens} {cached}");
    }
    let edited = grown.with(|sent| sent.text[9] = "other".into());
    let found = judged(&edited, 5_600, 8 * 128, &RULES);
    assert_eq!(found, ("partial", Some("message_changed")));
}

/// Only what was counted is known to be in a cache of whole prefixes.
#[test]
fn a_prompt_without_token_count_keeps_the_stored_ends_of_earlier_prompts() {
    for reads in [
        CacheReads::WholePrompts,
        CacheReads::UpToMarks { look_back: 20 },
    ] {
        let mut counted = Sent::new(30).prompt();
        counted.stored_tokens = counted.prompt_tokens;
        counted.set_stored_ends(reads, None, &[30]);
        let mut uncounted = Sent::new(40).prompt();
        uncounted.prompt_tokens = None;
        uncounted.set_stored_ends(reads, Some((&counted, counted.bytes())), &[35, 40]);
        let now = Sent::new(42).with(|sent| sent.text[37] = "other".into());
        let reported = Reported {
            prompt_tokens: now.prompt().prompt_tokens,
            ..Reported::default()
        };
        let rules = CacheRules { reads, ..RULES };
        let judgement = judge(Some(&uncounted), &now.prompt(), reported, &rules);
        // The counted one had 31 messages of 100 tokens: 24 steps.
        assert_eq!(judgement.expected_cached_tokens, Some(24 * 128));
    }
}

/// With marks, what the request before left is what was read and written there.
#[test]
fn a_miss_beyond_the_reach_of_cache_marks_is_blamed_on_them() {
    const MARKS: CacheRules = CacheRules {
        reads: CacheReads::UpToMarks { look_back: 20 },
        ..RULES
    };
    // Tokens that the request before left, messages that it had and that this one has, what was read and written now.
    for (left, before, now, (cached, written), expected) in [
        (0, 50, 52, (0, 5_000), ("miss", Some("cache_marks"))),
        (0, 50, 52, (0, 0), ("miss", Some("cache_marks"))),
        (5_000, 50, 52, (0, 0), ("miss", Some("cache_marks"))),
        (5_000, 50, 52, (1_200, 0), ("partial", Some("cache_marks"))),
        (5_000, 50, 70, (0, 7_000), ("miss", Some("cache_marks"))),
        (5_000, 50, 69, (0, 6_900), ("miss", Some("provider"))),
        (5_000, 50, 52, (5_000, 200), ("warm", None)),
        (1_200, 50, 52, (1_200, 0), ("warm", None)),
        (0, 8, 30, (0, 3_000), ("miss", Some("below_minimum"))),
        (0, 8, 9, (0, 0), ("miss", Some("below_minimum"))),
    ] {
        let (mut before, now) = (Sent::new(before).prompt(), Sent::new(now).prompt());
        before.stored_tokens = Some(left);
        let reported = Reported {
            prompt_tokens: now.prompt_tokens,
            cached_tokens: Some(cached),
            cache_write_tokens: Some(written),
            idle: Duration::ZERO,
        };
        let judgement = judge(Some(&before), &now, reported, &MARKS);
        assert_eq!(
            verdict_and_cause(judgement),
            expected,
            "{left} {cached} {written}"
        );
    }
}

/// GPT-5.6 and Anthropic give back what was stored as a whole: a change leaves what earlier requests ended with.
#[test]
fn a_whole_prefix_cache_can_read_the_ends_of_earlier_requests() {
    for (reads, marked) in [
        (CacheReads::WholePrompts, None),
        (CacheReads::UpToMarks { look_back: 20 }, Some(10)),
    ] {
        let rules = CacheRules { reads, ..RULES };
        let marks = |messages: usize| marked.map_or(vec![], |early| vec![early, messages]);
        let mut first = Sent::new(30).prompt();
        first.stored_tokens = first.prompt_tokens;
        first.set_stored_ends(reads, None, &marks(30));
        let mut second = Sent::new(40).prompt();
        second.stored_tokens = second.prompt_tokens;
        second.set_stored_ends(reads, Some((&first, first.bytes())), &marks(40));
        let expected = |change_at: usize, idle_s: u64| {
            let now = Sent::new(42).with(|sent| sent.text[change_at] = "other".into());
            let now = now.prompt();
            let reported = Reported {
                prompt_tokens: now.prompt_tokens,
                cached_tokens: Some(0),
                cache_write_tokens: now.prompt_tokens,
                idle: Duration::from_secs(idle_s),
            };
            let judgement = judge(Some(&second), &now, reported, &rules);
            (
                judgement.expected_cached_tokens,
                verdict_and_cause(judgement).1,
            )
        };
        // The first request had 31 messages of 100 tokens with the system message: 24 steps.
        assert_eq!(expected(35, 0), (Some(24 * 128), Some("message_changed")));
        assert_eq!(expected(35, 900), (Some(24 * 128), Some("idle")));
        // Up to the early mark it is 11 messages: 8 steps.
        let early = marked.map_or(0, |_| 8 * 128);
        let cause = marked.map_or("message_changed", |_| "idle");
        assert_eq!(expected(20, 900), (Some(early), Some(cause)));
        assert_eq!(expected(5, 900), (Some(0), Some("message_changed")));
    }
}

/// A block that only has more parts keeps what stands before them.
#[test]
fn unchanged_parts_of_a_block_belong_to_the_common_prefix() {
    let sent = |parts: &[i64]| Sent::new(50).with(|sent| sent.layout = block(20, parts));
    let common = |before: &[i64], now: &[i64]| {
        let change = Change::between(&sent(before).prompt(), &sent(now).prompt());
        (
            change.common_bytes - BYTES as u64,
            change.first.map(|(part, _)| part),
        )
    };
    let observations = Some(PromptPart::Observations);
    assert_eq!(common(&[1, 2], &[1, 2, 3]), (300, observations));
    assert_eq!(common(&[1, 2], &[7, 3]), (100, observations));
    assert_eq!(common(&[1, 2], &[1, 2]).1, None);
}
