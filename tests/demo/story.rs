//! `diarist demo` tells its story, by numbers that agree with each other.

use super::{number, run};

#[test]
fn the_demo_tells_the_whole_story() {
    let (text, code) = run(&["demo"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("Diarist demo: 120 user turns"), "{text}");

    // Both ways played the same conversation.
    assert!(number(&text, "requests", 0) >= 240.0, "{text}");
    assert_eq!(number(&text, "requests", 0), number(&text, "requests", 1));
    assert_eq!(
        number(&text, "tokens answered", 0),
        number(&text, "tokens answered", 1)
    );

    // What is cached and what is not make up the prompt, in both columns.
    for column in [0, 1] {
        let parts =
            number(&text, "read from the cache", column) + number(&text, "UNCACHED", column);
        assert!(
            (number(&text, "prompt tokens", column) - parts).abs() < 0.5,
            "{text}"
        );
    }
    assert!(
        number(&text, "prompt tokens", 1) < 0.3 * number(&text, "prompt tokens", 0),
        "{text}"
    );
    let net = number(&text, "cost of the conversation", 1)
        + number(&text, "Observer,", 2)
        + number(&text, "Reflector,", 2);
    assert!(
        (number(&text, "COST, all told", 1) - net).abs() < 0.000_2,
        "{text}"
    );
    assert!(net < 0.5 * number(&text, "COST, all told", 0), "{text}");

    // The picture: bars of both kinds, and both marks.
    for sign in ["░", "█", "▲", "◆"] {
        assert!(text.contains(sign), "{sign} in\n{text}");
    }
    assert!(
        text.contains("40 of the 40 facts the user had stated"),
        "{text}"
    );
    assert!(text.contains("<observations>\nDate: "), "{text}");
}

#[test]
fn a_story_that_did_not_happen_is_no_success() {
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
fn another_seed_is_another_conversation_and_the_same_seed_the_same() {
    let play = |seed| {
        let (text, _) = run(&["demo", "--turns", "4", "--seed", seed]);
        let totals =
            ["requests", "prompt tokens", "tokens answered"].map(|name| number(&text, name, 1));
        totals.map(|total| total.to_string())
    };
    assert_eq!(play("1"), play("1"));
    assert_ne!(play("1"), play("2"));
}
