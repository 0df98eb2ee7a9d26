//! What the provider refused, failed at or filtered leaves no trace: not a row, not a word with the
//! Observer. Hang-ups are in `hangups`.

use diarist_provider::{Behaviour, CallerKind, Reply, ScriptInput};

use crate::memory::rig::Rig;
use crate::memory::tools::{ACTIVE, SampleConversation};

fn refusal() -> Reply {
    Reply {
        refusal: Some("I can't help with that.".to_owned()),
        ..Reply::default()
    }
}

fn stopped_by(finish: &'static str) -> Reply {
    Reply {
        finish: Some(finish),
        ..Reply::text("Well, first you")
    }
}

/// What the model answers.
type ReplyFn = fn() -> Reply;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_refused_or_filtered_exchange_leaves_no_row() {
    let rig = Rig::small().await;
    let conversation = SampleConversation::new("refused");
    let untouched = rig.everything().await;
    assert!(untouched.len() > 15, "{untouched:?}");
    for stream in [false, true] {
        let body = |turn| {
            if stream {
                conversation.streamed(turn)
            } else {
                conversation.body(turn)
            }
        };
        for status in [
            400, 401, 402, 403, 404, 409, 413, 422, 429, 500, 502, 503, 504, 529,
        ] {
            for turn in [1, 5] {
                rig.provider
                    .inject(CallerKind::Actor, Behaviour::failing(status));
                let answer = rig.send(&body(turn)).await;
                assert_eq!(answer.status, status, "stream {stream}");
                rig.quiet().await;
                assert_eq!(
                    rig.everything().await,
                    untouched,
                    "{status}, stream {stream}"
                );
            }
        }
        rig.provider.inject(CallerKind::Actor, Behaviour::default());
        let endings: [(&str, ReplyFn); 4] = [
            ("filtered", Reply::filtered),
            ("refused", refusal),
            ("filtered after some words", || stopped_by("content_filter")),
            ("refused after some words", || stopped_by("refusal")),
        ];
        for (name, reply) in endings {
            rig.provider
                .script(CallerKind::Actor, move |_: &ScriptInput<'_>| reply());
            for turn in [1, 5] {
                let answer = rig.send(&body(turn)).await;
                assert_eq!(answer.status, 200);
                rig.quiet().await;
                assert_eq!(rig.everything().await, untouched, "{name}, stream {stream}");
            }
        }
    }
    assert!(rig.provider.record_for(CallerKind::Observer).is_empty());
}

/// In the middle of a conversation that is remembered: the refused turn is taken back by the client,
/// and nothing of it was ever confirmed.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_turn_is_shown_to_no_observer() {
    let rig = Rig::small().await;
    let conversation = SampleConversation::new("ada");
    for turn in 1..=ACTIVE {
        let mut refused = conversation.body(turn);
        let messages = refused["messages"].as_array_mut().unwrap();
        let last = messages.last_mut().unwrap();
        last["content"] = format!("unspeakable{turn} ").repeat(300).into();
        let before = rig.everything().await;
        // Also as the client itself sends it.
        rig.provider
            .inject(CallerKind::Actor, Behaviour::failing(403));
        assert_eq!(rig.send(&refused).await.status, 403);
        rig.provider.inject(CallerKind::Actor, Behaviour::default());
        rig.provider
            .script(CallerKind::Actor, |_: &ScriptInput<'_>| Reply::filtered());
        assert_eq!(rig.send(&refused).await.status, 200);
        rig.quiet().await;
        assert_eq!(rig.everything().await, before, "turn {turn}");
        rig.provider
            .script(CallerKind::Actor, |_: &ScriptInput<'_>| Reply::text("Yes."));
        rig.play_turns(&conversation, turn..=turn).await;
    }
    let answer = rig.play_turns(&conversation, ACTIVE + 1..=ACTIVE + 1).await;
    assert_eq!(answer.memory(), "active");
    let calls = rig.provider.record_for(CallerKind::Observer);
    assert!(calls.len() > 2);
    for call in calls {
        assert!(!String::from_utf8_lossy(&call.body).contains("unspeakable"));
    }
    assert_eq!(
        rig.number("SELECT count(*) FROM parts WHERE text LIKE '%unspeakable%'")
            .await,
        0
    );
}
