//! What clients are like and what they do, drawn.

use proptest::prelude::*;
use proptest::sample::Index;

use super::client::{Act, Habits, Head, Move};

pub fn habits() -> impl Strategy<Value = Habits> {
    let head = prop_oneof![
        4 => Just(Head::System),
        1 => Just(Head::Developer),
        1 => Just(Head::Two),
        1 => Just(Head::None),
    ];
    let rare = || prop::bool::weighted(0.12);
    (
        head,
        (rare(), rare(), rare(), rare(), rare()),
        any::<(bool, bool)>(),
        prop_oneof![Just(0_u8), any::<u8>()],
    )
        .prop_map(
            |(
                head,
                (clock, trailing, floating, images, json_object),
                (pretty, stream),
                spelling,
            )| {
                Habits {
                    head,
                    clock,
                    trailing,
                    floating,
                    images: images && !clock,
                    json_object,
                    pretty,
                    stream,
                    spelling,
                }
            },
        )
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![6 => 8_usize..60, 6 => 60_usize..220, 1 => 220_usize..700]
}

/// Rounds of a long task, now and then of a very long one.
fn long() -> impl Strategy<Value = usize> {
    prop_oneof![60 => 10_usize..30, 1 => Just(300_usize)]
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        30 => (size(), size()).prop_map(|(ask, answer)| Act::Chat { ask, answer }),
        3 => Just(Act::Yes),
        9 => (size(), 1_usize..6, 1_usize..4, size(), prop::bool::weighted(0.9)).prop_map(
            |(ask, rounds, width, result, finish)| Act::Task { ask, rounds, width, result, finish }
        ),
        1 => (long(), 1_usize..3, 20_usize..160).prop_map(|(rounds, width, result)| {
            Act::Task { ask: 40, rounds, width, result, finish: true }
        }),
        2 => Just(Act::Retry),
        2 => size().prop_map(|ask| Act::Twins { ask }),
        2 => any::<Index>().prop_map(Act::Late),
        2 => size().prop_map(|ask| Act::EditLast { ask }),
        5 => (any::<Index>(), size()).prop_map(|(at, ask)| Act::EditEarly { at, ask }),
        2 => Just(Act::Return),
        2 => size().prop_map(|answer| Act::Regenerate { answer }),
        1 => Just(Act::Head),
        1 => prop::option::of(any::<Index>()).prop_map(|at| Act::Foreign { at }),
        1 => (1_usize..4).prop_map(|rounds| Act::Truncate { rounds }),
        1 => any::<u8>().prop_map(Act::Respell),
        1 => Just(Act::Prune),
        1 => Just(Act::Side),
        2 => Just(Act::Rest),
        2 => Just(Act::Idle),
        1 => Just(Act::Restart),
    ]
}

pub fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = (
        prop_oneof![3 => Just(0_usize), 1 => Just(1), 1 => Just(2)],
        act(),
    )
        .prop_map(|(who, act)| Move { who, act });
    prop::collection::vec(one, 10..45)
}
