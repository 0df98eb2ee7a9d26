use super::*;
use crate::history::Pepper;

/// A bound that a test reaches soon.
const ENTRIES: usize = 50_000;

const ACCEPTED: Sender = Sender {
    is_stranger: false,
    may_be_stored: true,
};

const STRANGER: Sender = Sender {
    is_stranger: true,
    may_be_stored: true,
};

fn scope(name: &str) -> Scope {
    Scope::new(name.as_bytes(), None)
}

fn hash(text: &str) -> ScopedHash {
    ScopedHash::from_text(&Pepper::NONE, &Link::root(&scope("alice")), text)
}

fn origin(byte: u8) -> Origin {
    Origin::for_link(&Link::from_slice(&[byte; 32]).expect("32 bytes"))
}

/// Whether `tenant` is known to have said this in another conversation than that of `origin(1)`.
fn is_contested(index: &OriginIndex, tenant: &Scope, text: &str) -> bool {
    let witness = Witness {
        hash: hash(text),
        origin: origin(1),
    };
    index.origins_of(tenant).is_contested(&witness)
}

/// What is not stored yet, which is stored now.
fn take_unsaved(index: &mut OriginIndex) -> Vec<SeenMessages> {
    let unsaved = index.seal_unsaved();
    index.mark_saved();
    unsaved
}

/// As the store returns it: the newest first.
fn newest_first(lives: &[&[SeenMessages]]) -> Vec<SeenMessages> {
    let mut all = lives.concat();
    all.reverse();
    all
}

/// A tenant says `count` messages; returns whether another tenant than this one lost something.
fn flood(index: &mut OriginIndex, tenant: &Scope, count: usize) -> bool {
    for number in 0..count {
        let mark = hash(&format!("flood {number}"));
        index.add_message(tenant, mark, origin(2), ACCEPTED);
    }
    let mut lost = index.take_evicted();
    lost.remove(&tenant.tenant);
    !lost.is_empty()
}

/// What `held` counts is what is there, and it keeps the bound.
fn check_size(index: &OriginIndex) {
    let tenants = index.tenants.values();
    let held: usize = tenants.map(|tenant| tenant.len() + TENANT_ENTRIES).sum();
    assert_eq!(index.held, held);
    assert!(held <= index.max_entries, "{held}");
}

/// Anybody can send messages with a key that the upstream refuses.
#[test]
fn messages_of_unaccepted_tenants_evict_no_accepted_messages() {
    let (alice, other) = (scope("alice"), origin(2));
    let mut index = OriginIndex::with_max_entries(ENTRIES);
    index.add_message(&alice, hash("said by two"), other, ACCEPTED);
    for number in 0..ENTRIES {
        let mark = hash(&format!("stranger {number}"));
        index.add_message(&scope("stranger"), mark, other, STRANGER);
    }
    assert!(index.take_evicted().is_empty());
    assert!(index.strangers.young.len() + index.strangers.old.len() <= ENTRIES * 2 / 5);
    assert!(is_contested(&index, &alice, "said by two"));
    // What a tenant said before it was accepted counts too.
    index.add_message(&alice, hash("said before"), other, STRANGER);
    index.add_message(&alice, hash("said before"), origin(1), ACCEPTED);
    assert!(is_contested(&index, &alice, "said before"));
    assert!(!is_contested(&index, &alice, "said by nobody"));
}

#[test]
fn a_flood_of_one_tenant_evicts_no_messages_of_another_tenant() {
    let (alice, chatty) = (scope("alice"), scope("chatty"));
    let mut index = OriginIndex::with_max_entries(ENTRIES);
    for number in 0..ENTRIES / 4 {
        let mark = hash(&format!("alice {number}"));
        index.add_message(&alice, mark, origin(2), ACCEPTED);
    }
    assert!(!flood(&mut index, &chatty, ENTRIES * 3));
    check_size(&index);
    for number in 0..ENTRIES / 4 {
        let text = format!("alice {number}");
        assert!(is_contested(&index, &alice, &text), "{number}");
    }
    // A tenant alone keeps its latest entries: no less than half of all.
    let kept = index.tenants[&chatty.tenant].len();
    assert!(kept >= ENTRIES / 2, "{kept}");
    let last = format!("flood {}", ENTRIES * 3 - 1);
    assert!(is_contested(&index, &chatty, &last));
    // What it lost to itself is read from the database.
    assert!(!is_contested(&index, &chatty, "flood 0"));
}

/// Few generations are searched, however a tenant grows.
#[test]
fn a_tenant_never_loses_more_than_half_of_its_entries_at_once() {
    let sizes = generation_sizes(MAX_ENTRIES);
    let mut tenant = TenantOrigins::default();
    for number in 0..MAX_ENTRIES {
        let mark = hash(&format!("{number}"));
        tenant.add(&sizes, |entries| {
            entries.add_message(mark, Occurrence::Several);
        });
        if number.is_multiple_of(100) {
            let (all, len) = (tenant.generation_sizes(), tenant.len());
            let most = all.iter().max().copied().unwrap_or_default();
            assert!(
                len <= 2 * sizes.start() || most <= len / 2 + 1,
                "{most} of {len}"
            );
            assert!(all.len() <= 16, "{all:?}");
        }
    }
}

#[test]
fn large_tenants_end_with_about_equal_shares() {
    let mut index = OriginIndex::with_max_entries(20_000);
    let tenants = ["a", "b", "c", "d"].map(scope);
    // One after the other, so that the first ones hold all there is when the last ones come.
    for tenant in &tenants {
        flood(&mut index, tenant, 20_000);
        check_size(&index);
    }
    for tenant in &tenants {
        let held = index.tenants[&tenant.tenant].len();
        assert!(held >= 20_000 / 4 / 2, "{held}");
    }
}

#[test]
fn many_tiny_tenants_evict_no_small_tenant_that_is_in_use() {
    let mut index = OriginIndex::with_max_entries(ENTRIES);
    let (alice, silent) = (scope("alice"), scope("silent"));
    for tenant in [&alice, &silent] {
        index.add_message(tenant, hash("said by two"), origin(2), ACCEPTED);
    }
    for number in 0..ENTRIES / TENANT_ENTRIES * 3 {
        let tiny = scope(&format!("tiny {number}"));
        index.add_message(&tiny, hash("one message"), origin(2), ACCEPTED);
        if number.is_multiple_of(1_000) {
            let mark = hash(&format!("alice {number}"));
            index.add_message(&alice, mark, origin(2), ACCEPTED);
        }
    }
    check_size(&index);
    assert!(index.tenants.len() <= ENTRIES / TENANT_ENTRIES);
    assert!(is_contested(&index, &alice, "said by two"));
    assert!(!index.tenants.contains_key(&silent.tenant));
    assert!(is_contested(
        &index,
        &silent,
        "what may have been said by two"
    ));
    let evicted = index.take_evicted();
    assert!(evicted.contains(&silent.tenant) && !evicted.contains(&alice.tenant));
}

/// A request with an unknown ending is not compared with answers at all.
#[test]
fn an_answer_ending_is_kept_as_long_as_the_answer() {
    let body = br#"{"model":"m","messages":[{"role":"user","content":"Sum up."}]}"#;
    let parsed = crate::wire::Request::parse_chat(&body.to_vec().into()).expect("a request");
    let alice = scope("alice");
    let chain = parsed.history(&alice);
    let answer = |number: usize| AnswerHash {
        text: hash(&format!("answer {number}")),
        ending: hash(&format!("ending {}", number / 3)),
    };
    let mut index = OriginIndex::with_max_entries(ENTRIES);
    for number in 0..ENTRIES {
        index.add_summary_answer(&alice, answer(number), &chain, ACCEPTED);
        if number.is_multiple_of(1_000) {
            index.mark_quoted(&alice, answer(number / 2).text);
        }
    }
    check_size(&index);
    let mut held = 0;
    let seen_origins = index.origins_of(&alice);
    for number in 0..ENTRIES {
        let AnswerHash { text, ending } = answer(number);
        if seen_origins.has_summary_answer(&text) {
            held += 1;
            assert!(seen_origins.has_answer_ending(&ending), "{number}");
        }
    }
    assert!(held >= ENTRIES / 4, "{held}");
    assert!(!seen_origins.has_answer_ending(&hash("another ending")));
    assert!(
        !index
            .origins_of(&scope("bob"))
            .has_summary_answer(&answer(ENTRIES - 1).text)
    );
}

/// What a process has seen proves as little in the next one, and no more than that.
#[test]
fn what_was_seen_is_restored_but_for_requests_without_memory() {
    let body = br#"{"model":"m","messages":[{"role":"user","content":"Sum up."}]}"#;
    let parsed = crate::wire::Request::parse_chat(&body.to_vec().into()).expect("a request");
    let (alice, bob) = (scope("alice"), scope("bob"));
    let chain = parsed.history(&alice);
    let tip = chain.tip().expect("a message");
    let answer = |text: &str| AnswerHash {
        text: hash(text),
        ending: hash("ending"),
    };
    let private = Sender {
        may_be_stored: false,
        ..ACCEPTED
    };
    let mut index = OriginIndex::with_max_entries(ENTRIES);
    index.add_message(&alice, hash("elsewhere"), origin(2), ACCEPTED);
    index.add_message(&alice, hash("here"), origin(1), ACCEPTED);
    index.add_message(&alice, hash("here and elsewhere"), origin(1), ACCEPTED);
    index.add_message(&alice, hash("here and elsewhere"), origin(2), ACCEPTED);
    index.add_message(&alice, hash("private"), origin(2), private);
    index.add_message(&alice, hash("private first"), origin(2), private);
    index.add_message(&alice, hash("private first"), origin(2), ACCEPTED);
    index.add_message(&bob, hash("of a stranger"), origin(2), STRANGER);
    index.add_answer(&alice, tip, hash("here"), origin(1), ACCEPTED);
    index.add_answer(&alice, tip, hash("private"), origin(2), private);
    // Also if another request had the same answer, the chain of this one is not stored.
    let private_tip = Link::from_slice(&[9; 32]).expect("32 bytes");
    index.add_answer(&alice, private_tip, hash("here"), origin(2), private);
    index.add_summary_answer(&alice, answer("summary"), &chain, ACCEPTED);
    index.add_summary_answer(&alice, answer("private summary"), &chain, private);
    // The chain of a request without memory is not stored either.
    let body = br#"{"model":"m","messages":[{"role":"user","content":"Sum up."},
        {"role":"user","content":"Again, for me alone."}]}"#;
    let parsed = crate::wire::Request::parse_chat(&body.to_vec().into()).expect("a request");
    let private_chain = parsed.history(&alice);
    index.add_summary_answer(&alice, answer("continued"), &chain, ACCEPTED);
    index.add_summary_answer(&alice, answer("continued"), &private_chain, private);
    check_size(&index);

    // It is stored again until that has succeeded.
    assert_eq!(index.seal_unsaved(), index.seal_unsaved());
    let saved = take_unsaved(&mut index);
    assert_eq!(saved.len(), 1);
    assert!(index.seal_unsaved().is_empty());
    let mut next = OriginIndex::with_max_entries(ENTRIES);
    next.restore(&saved);
    check_size(&next);
    for text in ["elsewhere", "here and elsewhere", "private first"] {
        assert!(is_contested(&next, &alice, text), "{text}");
    }
    for text in ["here", "private", "of a stranger"] {
        assert!(!is_contested(&next, &alice, text), "{text}");
    }
    let restored = next.origins_of(&alice);
    assert_eq!(restored.answer_origin(tip, hash("here")), Some(origin(1)));
    assert_eq!(restored.answer_origin(tip, hash("private")), None);
    assert_eq!(restored.answer_origin(private_tip, hash("here")), None);
    assert!(restored.is_from_upstream(origin(1)) && !restored.is_from_upstream(origin(2)));
    assert_eq!(
        restored.summary_answer(&hash("summary")),
        index.origins_of(&alice).summary_answer(&hash("summary"))
    );
    assert!(restored.has_answer_ending(&hash("ending")));
    assert!(!restored.has_summary_answer(&hash("private summary")));
    assert!(!restored.has_summary_answer(&hash("continued")));
    // It is stored already, and what was seen since is not.
    assert!(take_unsaved(&mut next).is_empty());
    next.add_message(&alice, hash("here"), origin(2), ACCEPTED);
    assert!(is_contested(&next, &alice, "here"));
    assert_eq!(take_unsaved(&mut next).len(), 1);
    // Also what may be stored only now.
    index.add_message(&alice, hash("private"), origin(2), ACCEPTED);
    index.add_answer(&alice, private_tip, hash("late"), origin(2), private);
    index.add_answer(&alice, private_tip, hash("late"), origin(2), ACCEPTED);
    check_size(&index);
    next.restore(&take_unsaved(&mut index));
    assert!(is_contested(&next, &alice, "private"));
    let late = next
        .origins_of(&alice)
        .answer_origin(private_tip, hash("late"));
    assert_eq!(late, Some(origin(2)));
    check_size(&next);
}

/// Two processes have seen one message in two places. Neither place is its only one.
#[test]
fn what_two_processes_have_seen_in_two_places_is_in_both() {
    let alice = scope("alice");
    let saved_by = |place| {
        let mut index = OriginIndex::with_max_entries(ENTRIES);
        index.add_message(&alice, hash("equal"), origin(place), ACCEPTED);
        take_unsaved(&mut index)
    };
    let mut next = OriginIndex::with_max_entries(ENTRIES);
    next.restore(&[saved_by(1), saved_by(1)].concat());
    assert!(!is_contested(&next, &alice, "equal"));
    next.restore(&saved_by(2));
    assert!(is_contested(&next, &alice, "equal"));
    check_size(&next);
}

/// A tenant says so many messages that nobody else has said; what a process has seen of that.
fn life_of(tenant: &str, from: usize, count: usize) -> Vec<SeenMessages> {
    let mut index = OriginIndex::with_max_entries(10 * ENTRIES);
    for number in from..from + count {
        let mark = hash(&format!("message {number}"));
        index.add_message(&scope(tenant), mark, origin(2), ACCEPTED);
    }
    take_unsaved(&mut index)
}

/// If all of it is too much, the tenant that has most loses its oldest messages, and no other one loses anything.
#[test]
fn a_large_tenant_keeps_no_other_tenant_from_being_restored() {
    let (alice, large) = (scope("alice"), scope("large"));
    let first = [life_of("alice", 0, 100), life_of("large", 0, ENTRIES / 2)].concat();
    let second = life_of("large", ENTRIES / 2, ENTRIES);
    let mut next = OriginIndex::with_max_entries(ENTRIES);
    next.restore(&newest_first(&[&first, &second]));
    check_size(&next);
    for number in 0..100 {
        assert!(is_contested(&next, &alice, &format!("message {number}")));
    }
    let newest = format!("message {}", 3 * ENTRIES / 2 - 1);
    assert!(is_contested(&next, &large, &newest));
    let seen_origins = next.origins_of(&large);
    let is_held = |number: &usize| {
        seen_origins
            .own_occurrence(&hash(&format!("message {number}")))
            .is_some()
    };
    let newest_first = (0..3 * ENTRIES / 2).rev();
    let kept = newest_first.take_while(is_held).count();
    assert!(kept > ENTRIES / 2, "{kept}");
    assert!(
        !(0..3 * ENTRIES / 2 - kept).any(|number| is_held(&number)),
        "its oldest"
    );
    // What is not held proves nothing.
    assert!(is_contested(&next, &large, "message 0"));
    assert!(
        !is_contested(&next, &alice, "message 100"),
        "said by nobody"
    );
    let tenant = &next.tenants[&large.tenant];
    assert!(
        tenant.generation_sizes().len() > 2,
        "it loses one after the other"
    );
}

/// An older list says that a message is in one conversation, a newer one that it is in several. The older one is not read without
/// the newer one.
#[test]
fn a_tenant_loses_its_oldest_messages_first_in_a_restore() {
    let alice = scope("alice");
    let mut index = OriginIndex::with_max_entries(ENTRIES);
    index.add_message(&alice, hash("equal"), origin(1), ACCEPTED);
    let first = take_unsaved(&mut index);
    index.add_message(&alice, hash("equal"), origin(2), ACCEPTED);
    for number in 0..ENTRIES / 4 {
        let mark = hash(&format!("alice {number}"));
        index.add_message(&alice, mark, origin(2), ACCEPTED);
    }
    let second = take_unsaved(&mut index);
    let others = |life: usize| {
        let of_one = |number: usize| life_of(&format!("other {life} {number}"), 0, 100);
        (0..ENTRIES / 300).flat_map(of_one).collect::<Vec<_>>()
    };
    for lives in [
        [&first[..], &others(1), &others(2), &second],
        [&first[..], &second, &others(1), &others(2)],
        [&others(1)[..], &first, &others(2), &second],
    ] {
        let mut next = OriginIndex::with_max_entries(ENTRIES);
        next.restore(&newest_first(&lives));
        check_size(&next);
        assert!(is_contested(&next, &alice, "equal"));
    }
}

/// Otherwise each start would store a copy of what was said in several conversations.
#[test]
fn a_process_that_sees_nothing_stores_nothing() {
    let alice = scope("alice");
    let mut index = OriginIndex::with_max_entries(ENTRIES);
    index.add_message(&alice, hash("equal"), origin(1), ACCEPTED);
    let first = take_unsaved(&mut index);
    index.add_message(&alice, hash("equal"), origin(2), ACCEPTED);
    let second = take_unsaved(&mut index);
    let mut next = OriginIndex::with_max_entries(ENTRIES);
    next.restore(&newest_first(&[&first, &second]));
    assert!(is_contested(&next, &alice, "equal"));
    assert!(next.seal_unsaved().is_empty());
}

/// A message of a request without memory is never stored, also if what was seen of it first is dropped.
#[test]
fn what_may_not_be_stored_may_not_be_after_an_eviction() {
    let alice = scope("alice");
    let private = Sender {
        may_be_stored: false,
        ..ACCEPTED
    };
    let mut index = OriginIndex::with_max_entries(ENTRIES);
    for (place, others) in [(1, 0..ENTRIES * 2 / 5), (2, ENTRIES..ENTRIES * 33 / 20)] {
        index.add_message(&alice, hash("private"), origin(place), private);
        for number in others {
            let mark = hash(&format!("message {number}"));
            index.add_message(&alice, mark, origin(2), ACCEPTED);
        }
    }
    let seen_origins = index.origins_of(&alice);
    assert!(seen_origins.own_occurrence(&hash("message 0")).is_none());
    assert!(seen_origins.own_occurrence(&hash("private")).is_some());
    let saved = index.seal_unsaved();
    let messages = saved.iter().flat_map(|entries| entries.messages.chunks(24));
    let mut marks = messages.map(|record| &record[..16]);
    assert!(marks.all(|mark| mark != hash("private").as_bytes()));
}

/// What is known of losses is known to the next process.
#[test]
fn a_tenant_that_has_lost_messages_has_lost_them_in_the_next_process() {
    let (alice, bob) = (scope("alice"), scope("bob"));
    let mut index = OriginIndex::with_max_entries(ENTRIES);
    index.add_message(&alice, hash("said by two"), origin(2), ACCEPTED);
    index.add_message(&bob, hash("said by two"), origin(2), ACCEPTED);
    for number in 0..ENTRIES / 20 {
        let many = scope(&format!("many {number}"));
        flood(&mut index, &many, 20);
    }
    assert!(!index.tenants.contains_key(&bob.tenant));
    index.add_message(&alice, hash("new"), origin(1), ACCEPTED);
    let saved = take_unsaved(&mut index);
    assert!(index.seal_unsaved().is_empty());
    let mut next = OriginIndex::with_max_entries(ENTRIES);
    // Bob had said something in a process before that.
    next.restore(&newest_first(&[&life_of("bob", 0, 10), &saved]));
    for tenant in [&alice, &bob, &scope("of whom nothing is known")] {
        assert!(is_contested(&next, tenant, "said by two"));
    }
    assert!(!is_contested(&next, &alice, "new"));
    let unsaved = next.seal_unsaved();
    assert!(
        unsaved.iter().all(|entries| entries.tenant == bob.tenant),
        "all else is stored"
    );
}

/// Nothing is known to be unique before what earlier processes have seen is known.
#[test]
fn nothing_old_proves_a_conversation_before_the_restore() {
    let alice = scope("alice");
    let mut index = OriginIndex::with_max_entries(ENTRIES);
    index.await_saved();
    assert!(is_contested(
        &index,
        &alice,
        "an answer of before the start"
    ));
    // Another user may have got the same answer in an earlier process.
    index.add_message(&alice, hash("new"), origin(1), ACCEPTED);
    assert!(is_contested(&index, &alice, "new"));
    index.restore(&[]);
    assert!(!is_contested(&index, &alice, "new"));
    assert!(!is_contested(
        &index,
        &alice,
        "an answer of before the start"
    ));
}

/// One account can begin many tenants, each with few messages. So a quiet tenant loses what was seen of it.
#[test]
fn evicted_messages_prove_nothing_until_they_are_sent_again() {
    let (bob, own) = (scope("bob"), origin(1));
    let mut index = OriginIndex::with_max_entries(ENTRIES);
    assert!(!is_contested(&index, &bob, "an answer of before the start"));
    index.add_message(&bob, hash("said by two"), origin(2), ACCEPTED);
    for number in 0..ENTRIES / 20 {
        let many = scope(&format!("many {number}"));
        flood(&mut index, &many, 20);
    }
    assert!(!index.tenants.contains_key(&bob.tenant));
    assert!(is_contested(&index, &bob, "said by two"));
    assert!(is_contested(&index, &bob, "an answer of before the start"));
    // What is said from now on is seen by all that follows.
    index.add_message(&bob, hash("a new answer"), own, ACCEPTED);
    assert!(!is_contested(&index, &bob, "a new answer"));
    assert!(is_contested(&index, &bob, "said by two"));
}
