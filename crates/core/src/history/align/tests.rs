use proptest::prelude::*;

use super::*;

use crate::history::{Encoder, Link, Message, Role, Scope};

fn message(role: Role, text: &str, calls: &[String], answers: Option<String>) -> Message {
    let mut encoder = Encoder::new();
    encoder.text("role", role.name());
    encoder.text("content", text);
    let mut ids = calls.iter().chain(&answers);
    let random_ids = ids.any(|id| crate::history::is_random_id(id, ""));
    Message {
        fingerprint: encoder.finish(),
        role,
        calls: calls.iter().map(|id| id.as_str().into()).collect(),
        answers: answers.map(Into::into),
        distinctive_bytes: crate::history::distinctive_bytes(role, text),
        random_ids,
        attachment_bytes: 0,
        span: 0..0,
    }
}

fn item(message: &Message) -> MessageKey {
    MessageKey::from_message(&Link::root(&Scope::new(b"key", None)), message)
}

fn user(text: &str) -> MessageKey {
    item(&message(Role::User, text, &[], None))
}

fn answer(text: &str) -> MessageKey {
    item(&message(Role::Assistant, text, &[], None))
}

fn call(id: &str) -> MessageKey {
    item(&message(Role::Assistant, "", &[id.to_owned()], None))
}

fn result(id: &str, text: &str) -> MessageKey {
    item(&message(Role::Tool, text, &[], Some(id.to_owned())))
}

fn long(number: usize) -> String {
    format!(
        "The answer with the number {number} is one that nobody else would ever give to anybody, is it not: \
         it has some thirty words, which is more than a model has for those to whom it only says goodbye."
    )
}

/// A path whose answers from `given` on the upstream gave, and which no other conversation holds.
fn context(
    first_from_upstream: usize,
) -> AlignmentContext<impl Fn(usize) -> MessageOrigin, impl Fn(usize) -> bool> {
    AlignmentContext {
        origin: move |place| MessageOrigin {
            from_upstream: place >= first_from_upstream,
            unshared: true,
        },
        same_thread_key: false,
        is_client_summary: |_| false,
    }
}

fn aligned(path: &[MessageKey], client: &[MessageKey]) -> PathAlignment {
    super::align(path, &context(0), client).expect("it stands there")
}

/// Runs on a path whose answers the upstream gave.
fn align(path: &[MessageKey], client: &[MessageKey]) -> Option<Vec<Run>> {
    super::align(path, &context(0), client).map(|aligned| aligned.runs)
}

fn run(client: usize, path: usize, len: usize) -> Run {
    Run { client, path, len }
}

#[test]
fn a_window_is_aligned_to_the_place_where_it_was_cut() {
    let path = [
        user("one"),
        answer(&long(1)),
        user("two"),
        answer(&long(2)),
        user("three"),
    ];
    let client = [
        user("two"),
        answer(&long(2)),
        user("three"),
        answer(&long(3)),
        user("four"),
    ];
    // Only one of the three is distinctive, which is not enough.
    assert_eq!(align(&path, &client), None);
    let question = |number| user(&format!("Question {number} of the afternoon, please."));
    let path = [
        question(1),
        answer(&long(1)),
        question(2),
        answer(&long(2)),
        question(3),
    ];
    let client = [
        question(2),
        answer(&long(2)),
        question(3),
        answer(&long(3)),
        question(4),
    ];
    assert_eq!(align(&path, &client), Some(vec![run(0, 2, 3)]));
}

#[test]
fn two_messages_suffice_with_a_long_answer_or_a_tool_call() {
    let question = user("What shall we say about the harbour?");
    let path = [user("a"), question, answer(&long(1))];
    assert_eq!(
        align(&path, &[question, answer(&long(1)), user("b")]),
        Some(vec![run(0, 1, 2)])
    );
    let brief = answer("It is closed on Sundays.");
    let path = [user("a"), question, brief];
    assert_eq!(align(&path, &[question, brief, user("b")]), None);
    let path = [
        user("a"),
        call("call_Xq81bTz4d"),
        result("call_Xq81bTz4d", "files"),
    ];
    assert_eq!(
        align(
            &path,
            &[
                call("call_Xq81bTz4d"),
                result("call_Xq81bTz4d", "files"),
                user("b")
            ]
        ),
        Some(vec![run(0, 1, 2)])
    );
}

#[test]
fn fixed_messages_that_a_client_program_writes_prove_no_alignment() {
    let files = user(&format!(
        "I have *added these files to the chat*: {}",
        "x".repeat(500)
    ));
    let fixed = answer("Ok, any changes I propose will be to those files.");
    let question = user("Please make the tests pass again.");
    let path = [user("a"), answer(&long(1)), files, fixed, question];
    assert_eq!(align(&path, &[files, fixed, question]), None);
}

#[test]
fn a_result_that_came_back_as_a_placeholder_is_the_same_result() {
    let path = [
        user("look"),
        call("call_Xq81bTz4d"),
        result(
            "call_Xq81bTz4d",
            "a long listing of files that fills the page",
        ),
        call("call_Yr92cUa7m"),
        result(
            "call_Yr92cUa7m",
            "the text of one of them, at some length as well",
        ),
    ];
    let mut client = path.to_vec();
    client[2] = result("call_Xq81bTz4d", "[cleared]");
    client.push(answer("done"));
    assert_eq!(align(&path, &client), Some(vec![run(0, 0, 5)]));
    // A result that is longer than before is another result.
    client[2] = result("call_Xq81bTz4d", &"something else altogether ".repeat(9));
    assert_eq!(
        align(&path, &client),
        Some(vec![run(0, 0, 2), run(3, 3, 2)])
    );
}

#[test]
fn ids_that_a_server_numbers_anew_prove_nothing() {
    let listing = result("call_0", "ok");
    let path = [
        user("a"),
        call("call_0"),
        listing,
        user("b"),
        call("call_0"),
        listing,
    ];
    let client = [user("other"), call("call_0"), listing];
    assert_eq!(align(&path, &client), None);
}

#[test]
fn messages_that_occur_twice_on_the_path_prove_no_alignment() {
    let (question, reply) = (user("Is the harbour open on this day?"), answer(&long(1)));
    let path = [user("a"), question, reply, user("b"), question, reply];
    assert_eq!(align(&path, &[question, reply, user("new")]), None);
}

/// Reminders of a user's agent after each step, and short replies of a model, are no evidence.
#[test]
fn repeated_reminders_and_short_answers_prove_no_alignment() {
    let reminder =
        user("<system-reminder>Do not forget to update the list of tasks.</system-reminder>");
    let fixed = answer(
        "I have updated the list of tasks and go on with the next one of them now, as you said.",
    );
    let path = [user("a"), fixed, reminder, fixed, reminder, fixed, reminder];
    let client = [user("b"), fixed, reminder, fixed, reminder];
    assert_eq!(align(&path, &client), None);
    let path = [
        user("a"),
        answer("Ok."),
        user("go on"),
        answer("Got it, thank you."),
        user("go on"),
        answer("Done."),
    ];
    assert_eq!(align(&path, &path[1..]), None);
}

fn is_proven(
    path: &[MessageKey],
    first_from_upstream: usize,
    client: &[MessageKey],
) -> Option<bool> {
    super::align(path, &context(first_from_upstream), client)
        .map(|aligned| !aligned.proof.is_empty())
}

/// The same examples open every conversation of an application.
#[test]
fn a_shared_template_aligns_messages_but_proves_no_conversation() {
    let template: Vec<MessageKey> = (0..8)
        .map(|at| match at % 2 {
            0 => user(&format!("Example {at}: how is this to be done, please?")),
            _ => answer(&long(at)),
        })
        .collect();
    let behind = |first: &str, last: &str| {
        let mut all = vec![user(first)];
        all.extend_from_slice(&template);
        all.push(user(last));
        all
    };
    let path = behind("The first customer is called Ada.", "What does Ada owe?");
    let other = behind("The second customer is called Bob.", "What does Bob owe?");
    assert_eq!(is_proven(&path, 9, &other), Some(false));
    // Nor if a tool round is among the examples.
    let mut tools = path.clone();
    tools[3] = call("call_Xq81bTz4d");
    tools[4] = result("call_Xq81bTz4d", "files");
    let mut client = tools.clone();
    client[0] = user("The second customer is called Bob.");
    assert_eq!(is_proven(&tools, 9, &client[..9]), Some(false));
    // A later answer of the model is no template.
    let mut path = path;
    path.push(answer(&long(77)));
    path.push(user("And what does she own?"));
    let window = path[6..].to_vec();
    assert_eq!(is_proven(&path, 9, &window), Some(true));
}

/// A model gives every document the same answer, and every user then asks the same question.
#[test]
fn equal_answers_behind_a_different_first_message_prove_no_conversation() {
    let question = user("Summarise it in five points, please.");
    let path = [user("document one"), answer(&long(1)), question];
    let client = [
        user("document two"),
        answer(&long(1)),
        question,
        answer(&long(2)),
    ];
    assert_eq!(is_proven(&path, 1, &client), Some(false));
    let path = [path[0], path[1], question, answer(&long(3)), user("b")];
    let client = [client[0], path[1], question, answer(&long(3)), user("b")];
    assert_eq!(
        is_proven(&path, 1, &client),
        Some(false),
        "another user may be told the same"
    );
    // Messages that were dropped before a window do not make another beginning.
    assert_eq!(is_proven(&path, 1, &path[1..]), Some(true));
}

/// One change that a client makes to its messages.
#[derive(Clone, Debug)]
enum Change {
    DropOldest(usize),
    DropFrom(usize, usize),
    Replace(usize),
    Insert(usize),
    Clear(usize),
    Say(usize),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        (0..40_usize).prop_map(Change::DropOldest),
        (0..40_usize, 1..20_usize).prop_map(|(at, len)| Change::DropFrom(at, len)),
        (0..40_usize).prop_map(Change::Replace),
        (0..40_usize).prop_map(Change::Insert),
        (0..40_usize).prop_map(Change::Clear),
        (0..4_usize).prop_map(Change::Say),
    ]
}

/// A conversation with many short messages that repeat; `kinds` gives the kind of each.
fn conversation(name: &str, kinds: &[u8]) -> Vec<MessageKey> {
    const SHORT: [&str; 4] = ["yes", "go on", "ok", "and then?"];
    kinds
        .iter()
        .enumerate()
        .flat_map(|(at, kind)| match kind {
            0 => vec![user(SHORT[at % 4]), answer("Ok.")],
            1 => vec![user(SHORT[at % 3]), answer(&format!("{name} {}", long(at)))],
            2 => vec![
                user(&format!("{name} asks for the thing number {at} now")),
                answer(SHORT[at % 2]),
            ],
            3 => {
                let id = format!("call_{name}q8Zt{at}");
                vec![
                    call(&id),
                    result(&id, &format!("{name} read {at}: {}", "x".repeat(40))),
                ]
            }
            // A server that numbers its calls from the start, and a tool that always answers
            // the same.
            _ => vec![call("call_0"), result("call_0", "fine")],
        })
        .collect()
}

/// Two branches of a conversation that end with the same question and answer.
#[test]
fn another_branch_is_not_the_same_conversation() {
    let question = |number| user(&format!("Question {number} of the afternoon, please."));
    let begin = [question(1), answer(&long(1))];
    let end = [question(9), answer(&long(9))];
    let branch = |middle: &[MessageKey]| [&begin[..], middle, &end[..]].concat();
    let path = branch(&[question(2), answer(&long(2))]);
    let is_proven = |client: &[MessageKey]| !aligned(&path, client).proof.is_empty();
    assert!(is_proven(&branch(&[])), "it was dropped");
    assert!(
        !is_proven(&branch(&[question(3)])),
        "or something else was said"
    );
    assert!(!is_proven(&branch(&[question(3), answer(&long(3))])));
}

fn chat(count: usize) -> Vec<MessageKey> {
    let message_at = |number: usize| match number % 2 {
        0 => user(&format!("Question {number} of the afternoon, please.")),
        _ => answer(&long(number)),
    };
    (0..count).map(message_at).collect()
}

/// Three messages that no other conversation holds, one of them given by the upstream; or two with a
/// long one.
#[test]
fn messages_that_another_conversation_also_contains_prove_nothing() {
    let path = chat(12);
    let proof = |from_upstream: &[usize], shared: &[usize], client: &[MessageKey]| {
        let context = AlignmentContext {
            origin: |place: usize| MessageOrigin {
                from_upstream: from_upstream.contains(&place),
                unshared: !shared.contains(&place),
            },
            same_thread_key: false,
            is_client_summary: |_| false,
        };
        super::align(&path, &context, client).map(|aligned| aligned.proof)
    };
    let window = &path[7..];
    assert_eq!(proof(&[], &[], window), Some(vec![]), "nobody gave it");
    assert!(proof(&[9], &[], window).is_some_and(|proof| proof.contains(&9)));
    assert_eq!(proof(&[9], &[9], window), Some(vec![]), "given twice");
    assert_eq!(proof(&[9], &[7, 8, 10, 11], window), Some(vec![]), "alone");
    assert_eq!(proof(&[9], &[7, 10, 11], window), Some(vec![8, 9]));
    // The newest ones: they are the last that another conversation says as well.
    assert_eq!(proof(&[3, 7], &[], &path[1..]), Some(vec![7, 9, 10, 11]));
    // A message of its own in front: this may be another conversation that holds the same passage.
    let mut with_own_message = vec![user("My name is Bob, and this is what I ask.")];
    with_own_message.extend_from_slice(window);
    assert_eq!(proof(&[7, 9, 11], &[], &with_own_message), Some(vec![]));
}

#[test]
fn a_tool_call_of_the_upstream_proves_a_conversation_behind_a_notice() {
    let mut path = chat(6);
    path.push(call("call_Xq81bTz4d"));
    path.push(result("call_Xq81bTz4d", "files"));
    let mut client = vec![user("[Earlier messages were removed to save space.]")];
    client.extend_from_slice(&path[4..]);
    assert_eq!(aligned(&path, &client).proof, [6]);
    assert_eq!(is_proven(&path, 7, &client), Some(false), "an example");
}

/// Its server gives two conversations the same ids, or a cache does.
#[test]
fn a_call_with_other_arguments_proves_nothing() {
    let mut path = chat(6);
    path.push(call("call_Xq81bTz4d"));
    path.push(result("call_Xq81bTz4d", "files"));
    let arguments = message(
        Role::Assistant,
        "of Bob",
        &["call_Xq81bTz4d".to_owned()],
        None,
    );
    let client = [
        user("My name is Bob, and this is what I ask."),
        item(&arguments),
        result("call_Xq81bTz4d", "more"),
    ];
    assert_eq!(is_proven(&path, 0, &client), Some(false));
    // An id that is not random does not even make it the same call.
    path[6] = call("tool_0_get_weather");
    let arguments = message(
        Role::Assistant,
        "of Bob",
        &["tool_0_get_weather".to_owned()],
        None,
    );
    assert_eq!(align(&path, &[user("of Bob"), item(&arguments)]), None);
}

/// If both have the thread key of one conversation, one answer is enough.
#[test]
fn with_the_same_thread_key_one_answer_proves_the_conversation() {
    let path = [user("hi"), answer("It is closed on Sundays."), user("why")];
    let proof = |same_thread_key: bool| {
        let context = AlignmentContext {
            same_thread_key,
            ..context(0)
        };
        super::align(&path, &context, &path[1..]).map(|aligned| aligned.proof)
    };
    assert_eq!(proof(false), None);
    assert_eq!(proof(true), Some(vec![1]));
}

/// Messages that a client takes back are distinguished from messages that it drops to save room.
#[test]
fn rewritten_messages_are_distinguished_from_messages_dropped_for_space() {
    let path = chat(12);
    let rewritten = |client: &[MessageKey]| aligned(&path, client).rewritten;
    let without = |places: &[usize]| -> Vec<MessageKey> {
        let remaining = (0..12).filter(|at| !places.contains(at));
        remaining.map(|at| path[at]).collect()
    };
    assert_eq!(rewritten(&path), 12);
    assert_eq!(rewritten(&path[4..]), 12, "a window");
    let doubtful = |client: &[MessageKey]| aligned(&path, client).doubtful;
    assert_eq!((rewritten(&path[2..]), doubtful(&path[2..])), (12, 0));
    assert_eq!((rewritten(&path[3..]), doubtful(&path[3..])), (12, 12));
    assert_eq!(rewritten(&without(&[5])), 5);
    assert_eq!(rewritten(&without(&[4, 5])), 4);
    assert_eq!(doubtful(&without(&[2, 3])), 2);
    assert_eq!(rewritten(&without(&[2, 3, 4, 5])), 12, "the middle");
    let mut edited = path.clone();
    edited[5] = answer(&long(77));
    assert_eq!(rewritten(&edited), 5);
    assert_eq!(aligned(&path, &edited).missing, 5);
    let mut moved = path.clone();
    moved.swap(3, 6);
    assert_eq!(aligned(&path, &moved).missing, 12, "all of it is there");
    // A notice for dropped messages does not rewrite them.
    let mut noticed = vec![user("[Earlier messages were removed to save space.]")];
    noticed.extend_from_slice(&path[6..]);
    assert_eq!(rewritten(&noticed), 12);
    noticed.splice(1..1, path[2..6].iter().copied());
    assert_eq!(rewritten(&noticed), 0);
}

#[test]
fn a_missing_tool_round_counts_as_dropped_and_not_as_rewritten() {
    let mut path = chat(4);
    path.push(call("call_Xq81bTz4d"));
    path.push(result("call_Xq81bTz4d", "a long listing of files"));
    path.extend(chat(8).split_off(4));
    let mut client = path.clone();
    client[5] = result("call_Xq81bTz4d", "[cleared]");
    let cleared = aligned(&path, &client);
    assert_eq!((cleared.rewritten, cleared.missing), (10, 5));
    client.drain(4..6);
    assert_eq!(aligned(&path, &client).rewritten, 10);
}

/// A short word that both share is no evidence by itself.
#[test]
fn a_short_shared_message_alone_is_not_aligned() {
    let question = |number| user(&format!("Question {number} of the afternoon, please."));
    let path = [user("go on"), question(1), answer(&long(1)), question(2)];
    let client = [
        question(7),
        user("go on"),
        answer(&long(7)),
        question(1),
        answer(&long(1)),
        question(2),
    ];
    assert_eq!(align(&path, &client), Some(vec![run(3, 1, 3)]));
}

proptest! {
    /// Whatever a client does, the messages that are aligned to the path stand there, in order, and
    /// nothing that comes after the last place does. The oracle knows where each message came from.
    #[test]
    fn no_message_is_aligned_to_a_different_message(
        kinds in proptest::collection::vec(0..5_u8, 1..25),
        changes in proptest::collection::vec(change(), 0..6),
    ) {
        let path = conversation("it", &kinds);
        let mut client: Vec<(MessageKey, Option<usize>)> =
            path.iter().enumerate().map(|(at, item)| (*item, Some(at))).collect();
        for (number, change) in changes.iter().enumerate() {
            let at = |place: usize| place % client.len().max(1);
            match change {
                Change::DropOldest(count) => { client.drain(..(*count).min(client.len())); }
                Change::DropFrom(place, len) => {
                    let from = at(*place);
                    let to = (from + len).min(client.len());
                    client.drain(from.min(to)..to);
                }
                Change::Replace(place) if !client.is_empty() => {
                    let place = at(*place);
                    client[place] = (user(&format!("what replaces {place} by change {number}")), None);
                }
                Change::Insert(place) => {
                    let place = at(*place);
                    client.insert(place, (user(&format!("what comes in at {place}, {number}")), None));
                }
                Change::Clear(place) if !client.is_empty() => {
                    let place = at(*place);
                    if client[place].0.role == Role::Tool {
                        let ids = client[place].0.ids;
                        let cleared = result("any", "[x]");
                        client[place].0 = MessageKey { ids, ..cleared };
                    }
                }
                Change::Say(what) => {
                    let new = conversation("new", &[(*what).try_into().unwrap()]);
                    client.extend(new.into_iter().map(|item| (item, None)));
                }
                Change::Replace(_) | Change::Clear(_) => {}
            }
        }
        let sent: Vec<MessageKey> = client.iter().map(|(item, _)| *item).collect();
        let Some(runs) = align(&path, &sent) else { return Ok(()) };
        let mut at = (0, 0);
        for run in &runs {
            prop_assert!(run.len > 0 && run.client >= at.0 && run.path >= at.1, "{runs:?}");
            at = (run.client + run.len, run.path + run.len);
            for step in 0..run.len {
                let (place, (item, origin)) = (run.path + step, &client[run.client + step]);
                // Only messages with the same content may stand for each other.
                let alike = path[place].content == item.content;
                prop_assert!(*origin == Some(place) || alike, "{origin:?} at {place}: {runs:?}");
                let once = path.iter().filter(|path_item| path_item.content == item.content).count() == 1;
                if once && origin.is_some() {
                    prop_assert_eq!(*origin, Some(place));
                }
            }
        }
        // No distinctive message from before the end of the path counts as new.
        for (item, origin) in &client[at.0..] {
            if let Some(origin) = origin {
                let repeats = path.iter().filter(|path_item| path_item.content == item.content).count() > 1;
                prop_assert!(*origin >= at.1 || repeats, "{origin} behind {at:?}: {runs:?}");
            }
        }
    }

    /// Another conversation of the same application, with the same short words, tools and ids,
    /// aligns to nothing.
    #[test]
    fn another_conversation_is_aligned_to_nothing(
        one in proptest::collection::vec(0..5_u8, 1..25),
        other in proptest::collection::vec(0..5_u8, 1..25),
    ) {
        let path = conversation("one", &one);
        let client = conversation("other", &other);
        prop_assert_eq!(align(&path, &client), None);
    }
}
