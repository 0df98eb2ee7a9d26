use super::*;
use crate::history::{Encoder, Message, Scope};
use crate::memory::SnapshotCause;
use crate::memory::peer_memory::{ConversationBinding, PeerMemory};

fn history(lines: &[(Role, &str)]) -> History {
    let messages = lines.iter().map(|(role, text)| {
        let mut encoder = Encoder::new();
        encoder.text("role", role.name());
        encoder.text("content", text);
        Message {
            fingerprint: encoder.finish(),
            role: *role,
            calls: text
                .strip_prefix("call ")
                .map(Into::into)
                .into_iter()
                .collect(),
            answers: text.strip_prefix("result ").map(Into::into),
            distinctive_bytes: 0,
            random_ids: false,
            attachment_bytes: 0,
            span: 0..0,
        }
    });
    History::chain(&Scope::new(b"key", None), messages)
}

fn chat(count: usize) -> Vec<(Role, &'static str)> {
    (0..count)
        .map(|i| {
            (
                if i % 2 == 0 {
                    Role::User
                } else {
                    Role::Assistant
                },
                "text",
            )
        })
        .collect()
}

fn snapshot(id: i64, history: &History, to_count: usize, eligible_from: usize) -> SnapshotMeta {
    SnapshotMeta {
        id: SnapshotId(id),
        to: history.messages()[to_count - 1].link,
        to_count,
        eligible_from,
        pin: None,
        parts: vec![],
        tokens: 0,
        cause: SnapshotCause::Threshold,
        placement: String::new(),
        peer_memory: None,
    }
}

#[test]
fn the_longest_eligible_snapshot_is_selected() {
    let seven = history(&chat(7));
    let all = [
        snapshot(1, &seven, 2, 5),
        snapshot(2, &seven, 4, 7),
        snapshot(3, &seven, 4, 9),
    ];
    let got = select(&seven, &all, PreviousSend::NotSent);
    assert_eq!((got.cut(), got.reason), (4, SelectionReason::Longest));
    assert_eq!(got.snapshot.map(|s| s.id), Some(SnapshotId(2)));
    let six = history(&chat(6));
    assert_eq!(select(&six, &all, PreviousSend::NotSent).cut(), 2);
    let four = history(&chat(4));
    assert_eq!(
        select(&four, &all, PreviousSend::NotSent).reason,
        SelectionReason::NotYet
    );
    let two = history(&chat(2));
    assert_eq!(
        select(&two, &all, PreviousSend::NotSent).reason,
        SelectionReason::Unsafe
    );
}

#[test]
fn the_smaller_of_two_snapshots_with_equal_coverage_is_selected() {
    let seven = history(&chat(7));
    let reflected = SnapshotMeta {
        tokens: 50,
        ..snapshot(1, &seven, 4, 5)
    };
    let from_a_fork = SnapshotMeta {
        tokens: 80,
        ..snapshot(2, &seven, 4, 7)
    };
    let got = select(&seven, &[from_a_fork, reflected], PreviousSend::NotSent);
    assert_eq!(got.snapshot.map(|s| s.id), Some(SnapshotId(1)));
}

#[test]
fn a_repeated_request_gets_the_same_snapshot_as_before() {
    let seven = history(&chat(7));
    let all = [snapshot(1, &seven, 2, 5), snapshot(2, &seven, 4, 7)];
    assert_eq!(select(&seven, &all, PreviousSend::Raw).cut(), 0);
    assert_eq!(
        select(&seven, &all, PreviousSend::Snapshot(SnapshotId(1))).cut(),
        2
    );
    assert_eq!(
        select(&seven, &all, PreviousSend::Snapshot(SnapshotId(9))).cut(),
        4
    );
}

#[test]
fn a_snapshot_of_another_conversation_is_not_selected() {
    let mine = history(&chat(7));
    let mut other = chat(7);
    other[0].1 = "another";
    let theirs = history(&other);
    let got = select(&mine, &[snapshot(1, &theirs, 4, 5)], PreviousSend::NotSent);
    assert_eq!((got.cut(), got.reason), (0, SelectionReason::NoSnapshot));
}

#[test]
fn newest_user_message_is_raw_or_pinned() {
    let task = history(&[
        (Role::User, "do it"),
        (Role::Assistant, "call a"),
        (Role::Tool, "result a"),
        (Role::Assistant, "call b"),
        (Role::Tool, "result b"),
    ]);
    let mut cut = snapshot(1, &task, 3, 4);
    assert_eq!(
        select(&task, std::slice::from_ref(&cut), PreviousSend::NotSent).reason,
        SelectionReason::Unsafe
    );
    cut.pin = Some(0);
    let got = select(&task, &[cut], PreviousSend::NotSent);
    assert_eq!((got.cut(), got.pin()), (3, Some(0)));
    let inside = SnapshotMeta {
        pin: Some(0),
        ..snapshot(2, &task, 2, 3)
    };
    assert_eq!(
        select(&task, &[inside], PreviousSend::NotSent).reason,
        SelectionReason::Unsafe
    );
}

/// A client went back to the cut and asked something else: the pinned message would stand
/// directly before its own.
#[test]
fn two_user_messages_never_follow_each_other_across_the_cut() {
    let task = [
        (Role::User, "do it"),
        (Role::Assistant, "call a"),
        (Role::Tool, "result a"),
    ];
    let elsewhere = history(
        &[
            &task[..],
            &[(Role::User, "stop"), (Role::Assistant, "fine")],
        ]
        .concat(),
    );
    let pinned = SnapshotMeta {
        pin: Some(0),
        ..snapshot(1, &elsewhere, 3, 4)
    };
    let got = select(
        &elsewhere,
        std::slice::from_ref(&pinned),
        PreviousSend::NotSent,
    );
    assert_eq!(got.reason, SelectionReason::Unsafe);
}

#[test]
fn a_snapshot_that_leaves_no_raw_message_is_not_selected() {
    let four = history(&chat(4));
    assert_eq!(
        select(&four, &[snapshot(1, &four, 4, 1)], PreviousSend::NotSent).reason,
        SelectionReason::Unsafe
    );
}

fn with_peer_memory(snapshot: SnapshotMeta, bound: Option<&History>) -> SnapshotMeta {
    let bound = bound.map(|made_for| ConversationBinding {
        link: made_for.tip().unwrap(),
        count: made_for.len(),
        key: None,
    });
    let others = PeerMemory {
        lineages: vec![9],
        keys: vec![],
        tokens: 100,
        binding: bound,
    };
    SnapshotMeta {
        peer_memory: Some(others.into()),
        ..snapshot
    }
}

#[test]
fn a_snapshot_with_other_conversations_serves_only_its_own_conversation() {
    let (five, nine) = (history(&chat(5)), history(&chat(9)));
    let mut forked = chat(9);
    forked[4].1 = "something else";
    let fork = history(&forked);
    let all = [
        with_peer_memory(snapshot(1, &nine, 4, 6), Some(&five)),
        snapshot(2, &nine, 4, 6),
    ];
    let chosen = |history: &History| {
        select(history, &all, PreviousSend::NotSent)
            .snapshot
            .map(|s| s.id.0)
    };
    assert_eq!(
        chosen(&nine),
        Some(1),
        "it knows of others and covers as much"
    );
    assert_eq!(
        chosen(&fork),
        Some(2),
        "what forked off before is another conversation"
    );
    let shorter = SnapshotMeta {
        tokens: 9,
        ..all[0].clone()
    };
    let pair = [shorter, all[1].clone()];
    let smaller = select(&nine, &pair, PreviousSend::NotSent)
        .snapshot
        .unwrap();
    assert_eq!(
        smaller.id.0, 2,
        "a shorter log comes before the others' text"
    );
}

#[test]
fn an_introduction_is_selected_if_no_snapshot_covers_messages() {
    let five = history(&chat(5));
    let opener = SnapshotMeta {
        to: five.root(),
        to_count: 0,
        eligible_from: 0,
        ..with_peer_memory(snapshot(3, &five, 1, 0), None)
    };
    let got = select(&five, std::slice::from_ref(&opener), PreviousSend::NotSent);
    assert_eq!((got.cut(), got.reason), (0, SelectionReason::PeerMemory));
    assert!(got.snapshot.is_some());
    let call = history(&[(Role::User, "a"), (Role::Assistant, "call 1")]);
    assert!(
        select(&call, std::slice::from_ref(&opener), PreviousSend::NotSent)
            .snapshot
            .is_some()
    );
    let covers = [opener.clone(), snapshot(1, &five, 2, 4)];
    assert_eq!(select(&five, &covers, PreviousSend::NotSent).cut(), 2);
    let again = select(&five, &covers, PreviousSend::Snapshot(SnapshotId(3)));
    assert_eq!((again.cut(), again.reason), (0, SelectionReason::Repeated));
    let empty = SnapshotMeta {
        peer_memory: None,
        ..opener
    };
    let got = select(&five, &[empty], PreviousSend::NotSent);
    assert_eq!(
        (got.snapshot, got.reason),
        (None, SelectionReason::NoSnapshot)
    );
}
