//! `diarist demo` tells its story, by numbers that agree with each other.

use super::{number, run};

#[test]
fn the_demo_prints_consistent_numbers_and_succeeds() {
    let (text, code) = run(&["demo"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("Diarist demo: 120 user turns"), "{text}");

    // Both ways played the same conversation.
    let both = |name| [number(&text, name, 0), number(&text, name, 1)];
    let [requests, carried] = both("requests");
    assert!(requests >= 240 && requests == carried, "{text}");
    let [without, with] = both("tokens answered");
    assert_eq!(without, with, "{text}");

    // What is cached and what is not make up the prompt, in both columns.
    let (prompt, cached, uncached) = (
        both("prompt tokens"),
        both("read from the cache"),
        both("UNCACHED"),
    );
    assert_eq!(prompt, [cached[0] + uncached[0], cached[1] + uncached[1]]);
    assert!(prompt[1] < prompt[0] * 3 / 10, "{text}");
    let net = number(&text, "cost of the conversation", 1)
        + number(&text, "Observer,", 2)
        + number(&text, "Reflector,", 2);
    let [without, with] = both("COST, all told");
    // Three rounded numbers against a rounded sum.
    assert!(with.abs_diff(net) <= 2, "{text}");
    assert!(with < without / 2, "{text}");

    // The picture: bars of both kinds, and both marks.
    for sign in ["░", "█", "▲", "◆"] {
        assert!(text.contains(sign), "{sign} in\n{text}");
    }
    assert!(
        text.contains("40 of the 40 facts the user had stated"),
        "{text}"
    );
    assert!(text.contains("<observations>\n[as of "), "{text}");
}

#[test]
fn the_demo_fails_if_no_observation_was_used() {
    let (text, code) = run(&["demo", "--turns", "3"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("The story is not complete: 0 activations and 0 reflections"),
        "{text}"
    );
    assert!(text.contains("No observations were sent."), "{text}");
    assert!(!text.contains('▲') && !text.contains('░'), "{text}");
}

#[test]
#[ignore = "slow"]
fn the_seed_decides_the_conversation_of_the_demo() {
    let play = |seed| {
        let (text, _) = run(&["demo", "--turns", "4", "--seed", seed]);
        ["requests", "prompt tokens", "tokens answered"].map(|name| number(&text, name, 1))
    };
    assert_eq!(play("1"), play("1"));
    assert_ne!(play("1"), play("2"));
}
