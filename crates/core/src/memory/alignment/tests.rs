use super::*;
use crate::history::align::MessageOrigin;
use crate::history::{
    Encoder, Link, Message, MessageKey, PathMessage, Pepper, Role, Scope, ScopedHash, anchor,
};

const LONG_TEXT: &str = "a long answer of the model that nobody else would ever give by chance, since it goes on \
    and on about what was asked, with names and numbers in it, as answers do";

fn message(role: Role, text: &str, calls: &[&str], answers: Option<&str>) -> Message {
    let mut encoder = Encoder::new();
    encoder.text("role", role.name());
    encoder.text("content", text);
    for id in calls {
        encoder.text("call", id);
    }
    Message {
        fingerprint: encoder.finish(),
        role,
        calls: calls.iter().map(|id| (*id).into()).collect(),
        answers: answers.map(Into::into),
        distinctive_bytes: u32::try_from(text.len()).unwrap(),
        random_ids: calls
            .iter()
            .copied()
            .chain(answers)
            .any(|id| crate::history::is_random_id(id, "")),
        attachment_bytes: 0,
        span: 0..0,
    }
}

fn path(history: &History, observed: usize) -> Vec<PathEntry> {
    let root = history.root();
    let item = |at: usize| MessageKey::from_message(&root, &history.messages()[at].message);
    (0..history.len())
        .map(|at| PathEntry {
            message: PathMessage {
                link: history.messages()[at].link,
                role: history.messages()[at].message.role,
            },
            parent: match at {
                0 => root,
                _ => history.messages()[at - 1].link,
            },
            message_key: Some(item(at)),
            anchor: at
                .checked_sub(1)
                .and_then(|b| anchor(&root, &item(b), &item(at))),
            range_end: at + 1 == observed,
            live: at > 0,
            text_kept: false,
            lineage: 1,
            origin: Origin::for_link(&history.messages()[at].link),
            message_origin: MessageOrigin {
                from_upstream: at > 0,
                unshared: true,
            },
            summary_start: None,
            pending: false,
        })
        .collect()
}

/// A process that could not read the alignment continued the request as a chain of its own. A repeated
/// request is still aligned as before (INV-SAME).
#[test]
fn a_repeated_request_is_aligned_again_although_its_own_chain_is_recorded() {
    let messages: Vec<Message> = (0..8)
        .map(|at| {
            let role = [Role::User, Role::Assistant][at % 2];
            message(role, &format!("{at}: {LONG_TEXT}"), &[], None)
        })
        .collect();
    let scope = Scope::new(b"key", None);
    let path = path(&History::chain(&scope, messages.clone()), 4);
    let client = Arc::new(History::chain(&scope, messages[4..].to_vec()));
    let mut known_chains = KnownChains {
        path: path.clone(),
        ..KnownChains::default()
    };
    let first = find_alignment(&client, &known_chains).unwrap();
    let stored = StoredAlignment {
        count: client.len(),
        base: first.history.tip().unwrap(),
        positions: first.positions.clone(),
        proof: first.proof.clone(),
        withheld: first.withheld,
    };
    known_chains.stored = Some((stored, Arc::new(path.iter().collect())));
    known_chains.stored_holds = true;
    for depth in [0, client.len()] {
        known_chains.recorded_count = depth;
        let again = find_alignment(&client, &known_chains).unwrap();
        assert_eq!(again.positions, first.positions, "{depth}");
        assert_eq!(again.history.tip(), first.history.tip(), "{depth}");
    }
}

/// The newest answer is new to everybody. Several that nobody recorded were given in another conversation, which got one of
/// these answers too and is no longer known.
#[test]
fn a_request_with_several_unrecorded_answers_is_not_proven_by_an_earlier_one() {
    let scope = Scope::new(b"key", None);
    let talk = |name: &str, count: usize| -> Vec<Message> {
        let roles = [Role::User, Role::Assistant].into_iter().cycle();
        let messages = roles.take(count).enumerate();
        let message = |(at, role)| message(role, &format!("{name} {at}: {LONG_TEXT}"), &[], None);
        messages.map(message).collect()
    };
    let recorded = talk("recorded", 8);
    let known_chains = KnownChains {
        path: path(&History::chain(&scope, recorded.clone()), 4),
        ..KnownChains::default()
    };
    for (new_answers, is_proven) in [(0, true), (1, true), (2, false), (3, false)] {
        let sent = [&recorded[4..], &talk("new", 2 * new_answers + 1)].concat();
        let alignment = find(&scope, sent, &known_chains);
        let lineage = alignment.and_then(|alignment| alignment.lineage);
        assert_eq!(lineage.is_some(), is_proven, "{new_answers}");
    }
    // An answer in three messages.
    let parts = ["text", "first call", "second call"];
    let parts =
        parts.map(|part| message(Role::Assistant, &format!("{part}: {LONG_TEXT}"), &[], None));
    let end = [message(Role::User, "And now?", &[], None)];
    let sent = [&recorded[4..], &talk("new", 1), &parts, &end].concat();
    let alignment = find(&scope, sent, &known_chains).expect("aligned");
    assert!(alignment.lineage.is_some());
    // One directly behind what is recorded, and another one.
    let sent = [&recorded[4..], &parts[..1], &talk("new", 3)].concat();
    let alignment = find(&scope, sent, &known_chains);
    assert_eq!(alignment.and_then(|alignment| alignment.lineage), None);
}

/// A gap with no more new messages than missing ones was dropped. It is remembered if its text is
/// stored without a gap; text that was rewritten is not.
#[test]
fn dropped_messages_with_stored_text_can_be_restored_and_edited_ones_not() {
    let messages = |count: usize| -> Vec<Message> {
        (0..count)
            .map(|at| message(Role::User, &format!("message {at}"), &[], None))
            .collect()
    };
    let chain = History::chain(&Scope::new(b"key", None), messages(7));
    let mut path = path(&chain, 0);
    let remembered = |path: &[PathEntry], runs: &[Run]| {
        let sides = PathComparison::new(&chain, path).unwrap();
        sides.restorable_count(runs, path.len())
    };
    let run = |client, path, len| Run { client, path, len };
    let dropped = [run(0, 0, 1), run(1, 4, 3)];
    let edited = [run(0, 0, 1), run(2, 2, 5)];
    let noticed = [run(1, 4, 3)];
    assert_eq!(remembered(&path, &dropped), 1);
    assert_eq!(remembered(&path, &noticed), 0);
    for step in &mut path {
        step.text_kept = true;
    }
    assert_eq!(remembered(&path, &dropped), 7);
    assert_eq!(remembered(&path, &noticed), 7);
    assert_eq!(remembered(&path, &edited), 1);
    path[2].text_kept = false;
    assert_eq!(remembered(&path, &dropped), 2);
    path[3].range_end = true;
    assert_eq!(remembered(&path, &dropped), 7);
}

/// A client dropped one of two parallel calls with its result, and everything before. The remaining
/// call is another message and would stay raw in front of the block for ever, while its result is known
/// and would be covered one day.
#[test]
fn no_alignment_separates_a_tool_call_from_its_result() {
    let mut known: Vec<Message> = (0..6)
        .map(|at| match at % 2 {
            0 => message(
                Role::User,
                &format!("question {at}, {LONG_TEXT}"),
                &[],
                None,
            ),
            _ => message(
                Role::Assistant,
                &format!("answer {at}, {LONG_TEXT}"),
                &[],
                None,
            ),
        })
        .collect();
    known.push(message(Role::User, "read both", &[], None));
    known.push(message(
        Role::Assistant,
        "",
        &["call_a1b2c3d4", "call_e5f6a7b8"],
        None,
    ));
    known.push(message(Role::Tool, "text of a", &[], Some("call_a1b2c3d4")));
    known.push(message(Role::Tool, "text of b", &[], Some("call_e5f6a7b8")));
    known.push(message(
        Role::Assistant,
        &format!("both read, {LONG_TEXT}"),
        &[],
        None,
    ));
    let scope = Scope::new(b"key", None);
    let chain = History::chain(&scope, known.clone());

    let mut sent = vec![message(Role::Assistant, "", &["call_e5f6a7b8"], None)];
    sent.extend_from_slice(&known[9..]);
    sent.push(message(Role::User, "and now", &[], None));
    let client = Arc::new(History::chain(&scope, sent));
    let known_chains = KnownChains {
        path: path(&chain, 4),
        ..KnownChains::default()
    };
    assert!(find_alignment(&client, &known_chains).is_none());
    // A whole round is no obstacle.
    let mut sent = known[7..].to_vec();
    sent.push(message(Role::User, "and now", &[], None));
    let client = Arc::new(History::chain(&scope, sent));
    assert!(find_alignment(&client, &known_chains).is_some());
}

/// Six messages, then two tool rounds; the texts are long.
fn task() -> Vec<Message> {
    let text_at = |at: usize| {
        format!(
            "what is said in message {at} is long enough to tell it from others by: {LONG_TEXT}"
        )
    };
    let mut all: Vec<Message> = (0..6)
        .map(|at| match at % 2 {
            0 => message(Role::User, &text_at(at), &[], None),
            _ => message(Role::Assistant, &text_at(at), &[], None),
        })
        .collect();
    for id in ["call_a1b2c3d4", "call_e5f6a7b8"] {
        all.push(message(Role::Assistant, "", &[id], None));
        all.push(message(Role::Tool, &text_at(all.len()), &[], Some(id)));
    }
    all
}

fn find(scope: &Scope, sent: Vec<Message>, known_chains: &KnownChains) -> Option<Alignment> {
    find_alignment(&Arc::new(History::chain(scope, sent)), known_chains)
}

/// Nobody has observed the first result, and the text of it is gone.
#[test]
fn a_result_cleared_before_its_observation_counts_as_a_new_message() {
    let scope = Scope::new(b"key", None);
    let known = task();
    let chain = History::chain(&scope, known.clone());
    let mut sent = known[2..].to_vec();
    sent[5] = message(Role::Tool, "[cleared]", &[], Some("call_a1b2c3d4"));
    sent.push(message(Role::User, "and now", &[], None));
    let links = |taken: usize| {
        let path = path(&chain, taken);
        let known_chains = KnownChains {
            path,
            ..KnownChains::default()
        };
        let alignment = find(&scope, sent.clone(), &known_chains).unwrap();
        let messages = alignment.history.messages().iter().zip(chain.messages());
        messages
            .take_while(|(new, old)| new.link == old.link)
            .count()
    };
    // If it was observed, the chain keeps it; otherwise the chain goes another way from there.
    assert_eq!(links(8), 10);
    assert_eq!(links(4), 7);
}

/// Another conversation has the same question and answer; this request is known by its own chain.
#[test]
fn a_request_with_a_recorded_conversation_is_not_aligned_to_another() {
    let scope = Scope::new(b"key", None);
    let known = task();
    let chain = History::chain(&scope, known.clone());
    let mut sent = vec![message(Role::User, "another form", &[], None)];
    sent.extend_from_slice(&known[1..]);
    let known_chains = |own: Option<i64>, depth: usize| KnownChains {
        path: path(&chain, 6),
        recorded_lineage: own,
        recorded_count: depth,
        ..KnownChains::default()
    };
    assert!(find(&scope, sent.clone(), &known_chains(Some(2), 3)).is_none());
    // The same conversation with a changed first message.
    assert!(find(&scope, sent.clone(), &known_chains(Some(1), 3)).is_some());
    assert!(find(&scope, sent, &known_chains(None, 0)).is_some());
}

/// If only a template is shared, no memory of text that the request does not hold is sent.
#[test]
fn a_shared_template_brings_no_memory_of_another_conversation() {
    let scope = Scope::new(b"key", None);
    let known = task();
    let chain = History::chain(&scope, known.clone());
    let mut sent = known;
    sent[0] = message(Role::User, "another customer", &[], None);
    let mut path = path(&chain, 6);
    for step in &mut path {
        step.message_origin.from_upstream = false;
    }
    let known_chains = KnownChains {
        path,
        ..KnownChains::default()
    };
    let alignment = find(&scope, sent, &known_chains).unwrap();
    let own: Vec<Link> = chain
        .messages()
        .iter()
        .map(|chained| chained.link)
        .collect();
    assert!(
        alignment
            .history
            .messages()
            .iter()
            .all(|chained| !own.contains(&chained.link))
    );
    assert_eq!(alignment.positions.unknown_before(9), [0]);
}

/// An answer of the model stands at `place` of the request, in place of what it summarises. Of that, eight messages are
/// observed at once.
fn align_with_summary(sent: Vec<Message>, place: usize, depth: usize) -> Option<Alignment> {
    align_with_summary_of(&[8], sent, place, depth)
}

/// The same where observed ranges end behind so many messages.
fn align_with_summary_of(
    range_ends: &[usize],
    sent: Vec<Message>,
    place: usize,
    depth: usize,
) -> Option<Alignment> {
    let scope = Scope::new(b"key", None);
    let mut known = task();
    known.push(message(Role::User, "summarise it", &[], None));
    let mut path = path(&History::chain(&scope, known), 0);
    for end in range_ends {
        path[end - 1].range_end = true;
    }
    let known_chains = KnownChains {
        summary: Some(SummaryCandidate {
            count: place,
            hash: ScopedHash::from_text(&Pepper::NONE, &Link::root(&scope), LONG_TEXT),
            start: None,
            path,
            same_system: true,
            is_unique: true,
        }),
        recorded_count: depth,
        ..KnownChains::default()
    };
    find(&scope, sent, &known_chains)
}

#[test]
fn a_summary_replaces_the_summarised_messages_and_a_quote_replaces_none() {
    let head = message(Role::User, &format!("so far:\n{LONG_TEXT}"), &[], None);
    let ok = message(Role::Assistant, "Got it.", &[], None);
    let next = message(Role::User, "and now", &[], None);
    let sent = vec![head.clone(), ok, next];
    assert_eq!(
        align_with_summary(sent.clone(), 1, 0).unwrap().kind,
        AlignmentKind::Compacted
    );
    // The newest message of a user, and a message that was recorded as the beginning of a
    // conversation.
    assert!(align_with_summary(vec![head], 1, 0).is_none());
    let alone = vec![message(Role::Assistant, LONG_TEXT, &[], None)];
    assert!(
        align_with_summary(alone, 1, 0).is_some(),
        "nobody says that"
    );
    assert!(align_with_summary(sent, 1, 1).is_none());
}

/// What a client sends behind a summary: `between`, messages of the old conversation, and a new one.
fn behind_summary(between: &[Message], kept: &[Message]) -> Vec<Message> {
    let head = message(Role::User, &format!("so far:\n{LONG_TEXT}"), &[], None);
    let next = message(Role::User, "and now", &[], None);
    [&[head], between, kept, &[next]].concat()
}

/// The tail behind a summary reaches back into observed messages; they are not sent twice.
#[test]
fn messages_kept_behind_a_summary_are_not_sent_twice() {
    for (kept, open) in [(5..8, 5), (8..8, 8)] {
        let sent = behind_summary(&[], &task()[kept.clone()]);
        let positions = align_with_summary(sent, 1, 0).unwrap().positions;
        assert_eq!(positions.open_start(), (1, open), "{kept:?}");
    }
}

/// What the chain has in front of the messages that a client sends, no later range can observe: its text is gone. So all of
/// it must be observed, also if the client keeps only a part of what was observed at once.
#[test]
fn behind_a_summary_the_chain_begins_with_whole_observed_ranges() {
    for (kept, open) in [
        (5..10, Some(5)),
        (5..6, Some(4)),
        (2..5, Some(2)),
        (2..3, None),
    ] {
        let sent = behind_summary(&[], &task()[kept.clone()]);
        let alignment = align_with_summary_of(&[4, 8], sent, 1, 0);
        let open_path = alignment.map(|alignment| alignment.positions.open_start().1);
        assert_eq!(open_path, open, "{kept:?}");
    }
    // The client changed the answer that it keeps first: neither what it was is covered, nor what was observed with it.
    let changed = message(Role::Assistant, &format!("other: {LONG_TEXT}"), &[], None);
    let sent = behind_summary(&[changed], &task()[6..]);
    let positions = align_with_summary_of(&[4, 8], sent, 1, 0)
        .unwrap()
        .positions;
    assert_eq!(positions.open_start(), (1, 4));
}

/// A client lets the model answer to the summary. That answer stands for no message of the conversation, and what is kept
/// behind it is known as what it was.
#[test]
fn an_acknowledgement_behind_a_summary_replaces_no_message() {
    let no_answers = [
        message(Role::User, "Understood.", &[], None),
        message(Role::Assistant, LONG_TEXT, &[], None),
        message(
            Role::Assistant,
            "I have removed what was said here, because I do not want it.",
            &[],
            None,
        ),
    ];
    for answer in ["Understood.", "Got it. Thanks for the additional context!"] {
        for kept in [4..10, 8..10] {
            let answer = message(Role::Assistant, answer, &[], None);
            let sent = behind_summary(&[answer], &task()[kept.clone()]);
            let positions = align_with_summary_of(&[4, 8], sent, 1, 0)
                .unwrap()
                .positions;
            assert_eq!(positions.open_start(), (2, kept.start), "{kept:?}");
            assert_eq!(positions.unknown_before(9), [0, 1], "{kept:?}");
        }
    }
    for other in no_answers {
        let sent = behind_summary(&[other], &task()[8..]);
        let positions = align_with_summary_of(&[4, 8], sent, 1, 0)
            .unwrap()
            .positions;
        assert_eq!(positions.open_start(), (1, 4));
    }
}

/// Beside a summary in front, `kept` of the old conversation is in the request, under another system message.
fn with_leading_summary(kept: &str) -> (Arc<History>, KnownChains) {
    let scope = Scope::new(b"key", None);
    let mut known = task();
    known.push(message(Role::User, kept, &[], None));
    known.push(message(Role::User, "summarise it", &[], None));
    let path = path(&History::chain(&scope, known), 8);
    let known_chains = KnownChains {
        summary: Some(SummaryCandidate {
            count: 0,
            hash: ScopedHash::from_text(&Pepper::NONE, &Link::root(&scope), LONG_TEXT),
            start: None,
            path,
            same_system: false,
            is_unique: true,
        }),
        ..KnownChains::default()
    };
    let sent = [kept, "and now"].map(|text| message(Role::User, text, &[], None));
    (
        Arc::new(History::chain(&scope, sent.to_vec())),
        known_chains,
    )
}

#[test]
fn a_common_short_message_does_not_prove_a_summary() {
    for (kept, is_aligned) in [("yes", false), (LONG_TEXT, true)] {
        let (client, known_chains) = with_leading_summary(kept);
        let alignment = find_alignment(&client, &known_chains);
        assert_eq!(alignment.is_some(), is_aligned, "{kept}");
    }
}

/// Another conversation that begins with the same words says them elsewhere, so an answer that both get proves nothing.
#[test]
fn messages_behind_a_leading_summary_have_an_origin_of_their_own() {
    let (client, known_chains) = with_leading_summary(LONG_TEXT);
    let alignment = find_alignment(&client, &known_chains).unwrap();
    let behind = origins(&client, &known_chains, Some(&alignment));
    let alone = origins(&client, &KnownChains::default(), None);
    assert!(behind.iter().zip(&alone).all(|(one, other)| one != other));
}

/// The user's messages of a task stand in front of its summary, where they are not sent twice. The
/// summary is the newest message, or stands behind the first messages; without those messages it would
/// be a quote.
#[test]
fn messages_kept_before_a_summary_prove_it() {
    let head = message(Role::User, &format!("so far:\n{LONG_TEXT}"), &[], None);
    let other = |at: usize| message(Role::User, &format!("{at}: {LONG_TEXT}"), &[], None);
    let kept: Vec<Message> = task().into_iter().take(5).step_by(2).collect();
    let sent = |front: &[Message]| [front, std::slice::from_ref(&head)].concat();

    let now = align_with_summary(sent(&kept), 4, 0).unwrap();
    assert_eq!(now.positions.open_start(), (3, 8), "it is what is said now");
    assert_eq!(now.positions.unknown_before(4), Vec::<usize>::new());
    let mut request = sent(&kept);
    request.push(message(Role::User, "and now", &[], None));
    let behind = align_with_summary(request, 4, 0).unwrap();
    assert_eq!(behind.positions.open_start(), (4, 8));
    assert_eq!(
        behind.positions.unknown_before(4),
        [3],
        "it stays where it is"
    );

    for front in [
        vec![other(1), other(2), other(3)],
        vec![kept[1].clone(), other(2), other(3)],
    ] {
        let mut sent = sent(&front);
        assert!(align_with_summary(sent.clone(), 4, 0).is_none());
        sent.push(message(Role::User, "and now", &[], None));
        assert!(align_with_summary(sent, 4, 0).is_none());
    }
}

#[test]
fn a_summary_is_searched_at_the_beginning_and_before_the_first_answer() {
    let scope = Scope::new(b"key", None);
    let places = |count: usize| -> Vec<usize> {
        let mut sent: Vec<Message> = (0..count)
            .map(|at| message(Role::User, &at.to_string(), &[], None))
            .collect();
        sent.push(message(Role::Assistant, "Got it.", &[], None));
        sent.push(message(Role::User, "and now", &[], None));
        summary_positions(&History::chain(&scope, sent)).collect()
    };
    assert_eq!(places(1), [0, 1, 2]);
    assert_eq!(places(4), [0, 1, 2, 3]);
    assert_eq!(places(40), [0, 1, 2, 37, 38, 39]);
}
