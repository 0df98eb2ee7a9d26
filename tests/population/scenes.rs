//! Scenes in which one conversation looks as much like another as it can: Alice has long talked and is
//! remembered, Bob says what she was told in equal words, and nothing else of hers.
//!
//! No scene is played that nobody could judge: Bob has words of his own in front, or was given the answers
//! himself, or both have names of their own.

use serde_json::Value;

use crate::population::conversation::{Conversation, Pool};
use crate::population::kinds::{Kind, Naming};
use crate::population::request::{Fate, Request};
use crate::population::words::{canned, message, suggested};

/// How Bob came to what he sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Came {
    /// Nobody saw it.
    Unseen,
    /// Turn by turn, with answers from elsewhere because the provider failed.
    Refused,
    /// Turn by turn without memory.
    WithoutMemory,
    /// Turn by turn, each directly behind the other.
    AtOnce,
    /// Turn by turn, in answers that broke off.
    BrokenOff,
    /// Turn by turn, as everybody.
    Live,
}

const CAME: [Came; 6] = [
    Came::Unseen,
    Came::Refused,
    Came::WithoutMemory,
    Came::AtOnce,
    Came::BrokenOff,
    Came::Live,
];

impl Came {
    fn drawn(pool: &mut Pool) -> Self {
        *pool.dice.pick(&CAME)
    }

    fn is_given(self) -> bool {
        matches!(self, Self::WithoutMemory | Self::AtOnce | Self::Live)
    }
}

/// Whether `conversation` can be Alice's: a plain client that is remembered.
pub fn is_alice(conversation: &Conversation) -> bool {
    let kinds = [
        Kind::Plain,
        Kind::Bot,
        Kind::Form,
        Kind::Cached,
        Kind::Reminder,
        Kind::Template,
        Kind::Examples,
        Kind::Import,
    ];
    let long: usize = conversation
        .now
        .messages
        .iter()
        .map(|line| line.value.to_string().len())
        .sum();
    kinds.contains(&conversation.kind)
        && long > 5_500
        && conversation.now.pending["content"].is_string()
}

/// Plays one scene with `alice`; gives Bob, who goes on as anybody, and what is sent.
pub fn play(kind: Kind, alice: &mut Conversation, pool: &mut Pool) -> (Conversation, Vec<Request>) {
    let mut bob = Conversation::begin(pool, kind);
    while bob.user == alice.user {
        bob = Conversation::begin(pool, kind);
    }
    bob.tenant = alice.tenant;
    bob.turns = 1 + pool.dice.below(3);
    if pool.dice.one_in(2) {
        bob.system
            .clone_from(&alice.system.clone().filter(|s| !s.contains("fact-")));
    }
    let came = Came::drawn(pool);
    let mut all = Vec::new();
    match kind {
        Kind::SceneThree => three(came, alice, &mut bob, pool, &mut all),
        Kind::SceneLast => last(came, alice, &mut bob, pool, &mut all),
        Kind::SceneQuote => quote(alice, &mut bob, pool, &mut all),
        Kind::SceneBehind => behind(alice, &mut bob, pool, &mut all),
        _ => slid(alice, &mut bob, pool, &mut all),
    }
    (bob, all)
}

/// A dialogue of so many canned answers that nobody had yet.
fn dialogue(pool: &mut Pool, answers: usize) -> Vec<(Value, Value)> {
    let number = 2_000 + 16 * pool.fresh();
    let turns = (0..answers).map(|turn| {
        let question = message("user", suggested(number + turn));
        (question, message("assistant", canned(number + turn)))
    });
    turns.collect()
}

/// Alice asks something of her own and gets the first canned answer, then the rest of the dialogue.
fn play_dialogue(
    alice: &mut Conversation,
    dialogue: &[(Value, Value)],
    pool: &mut Pool,
    all: &mut Vec<Request>,
) {
    alice.ahead.clear();
    for (turn, (question, answer)) in dialogue.iter().enumerate() {
        let question = match turn {
            0 => message("user", alice.own(300)),
            _ => question.clone(),
        };
        one_turn(alice, (question, answer.clone()), pool, all);
    }
}

/// A turn with this question and this answer; the request is the last one of `all`.
fn one_turn(
    conversation: &mut Conversation,
    exchange: (Value, Value),
    pool: &mut Pool,
    all: &mut Vec<Request>,
) {
    conversation.ahead.push_back(exchange);
    conversation.goes_on(pool);
    conversation.reply(pool);
    let mut request = conversation.request(pool);
    request.rests = true;
    conversation.settles(&request, pool);
    all.push(request);
}

/// Bob plays `dialogue`, as it came to be.
fn comes(
    bob: &mut Conversation,
    dialogue: Vec<(Value, Value)>,
    came: Came,
    pool: &mut Pool,
) -> Vec<Request> {
    let mut all = Vec::new();
    for turn in dialogue {
        one_turn(bob, turn, pool, &mut all);
        let request = all.last_mut().unwrap();
        match came {
            Came::Unseen => all.clear(),
            Came::Refused => request.fate = Fate::Fails(*pool.dice.pick(&[429, 500])),
            Came::WithoutMemory => {
                let mode = *pool.dice.pick(&["off", "read"]);
                request.headers.push(("x-diarist-memory", mode.to_owned()));
            }
            Came::AtOnce => request.rests = false,
            Came::BrokenOff => request.fate = Fate::CutOff,
            Came::Live => {}
        }
    }
    all
}

/// What Bob says before, in his own words.
fn own(bob: &mut Conversation, turns: usize) -> Vec<(Value, Value)> {
    let turn = |_| {
        let question = message("user", bob.own(250));
        (question, message("assistant", bob.own(350)))
    };
    (0..turns).map(turn).collect()
}

fn asks(bob: &mut Conversation, pool: &mut Pool, all: &mut Vec<Request>) {
    let turn = own(bob, 1).remove(0);
    one_turn(bob, turn, pool, all);
}

/// His first recorded request carries his own turns, then three of her messages.
fn three(
    came: Came,
    alice: &mut Conversation,
    bob: &mut Conversation,
    pool: &mut Pool,
    all: &mut Vec<Request>,
) {
    let answers = 2 + pool.dice.below(2);
    let dialogue = dialogue(pool, answers);
    play_dialogue(alice, &dialogue, pool, all);
    // What was said last is told of once it is behind something.
    for _ in 0..pool.dice.below(4) {
        all.extend(alice.turn(pool));
    }
    let turns = 2 + pool.dice.below(9);
    let mut before = own(bob, turns);
    let (question, _) = before.pop().unwrap();
    before.push((question, dialogue[0].1.clone()));
    before.extend(dialogue[1..].iter().cloned());
    all.extend(comes(bob, before, came, pool));
    asks(bob, pool, all);
}

/// `[system, user, T, question]`, where T is the last that she was told.
fn last(
    came: Came,
    alice: &mut Conversation,
    bob: &mut Conversation,
    pool: &mut Pool,
    all: &mut Vec<Request>,
) {
    let dialogue = dialogue(pool, 1);
    play_dialogue(alice, &dialogue, pool, all);
    if pool.dice.one_in(2) {
        bob.naming = Naming::Chat;
        bob.headers = bob.naming.headers(bob.user, bob.id);
    }
    let question = own(bob, 1).remove(0).0;
    all.extend(comes(
        bob,
        vec![(question, dialogue[0].1.clone())],
        came,
        pool,
    ));
    asks(bob, pool, all);
}

/// He quotes what he was told, in a message of his own; or another name than hers parts them.
fn quote(
    alice: &mut Conversation,
    bob: &mut Conversation,
    pool: &mut Pool,
    all: &mut Vec<Request>,
) {
    let dialogue = dialogue(pool, 1);
    play_dialogue(alice, &dialogue, pool, all);
    let answer = dialogue[0].1.clone();
    let quoted = answer["content"].as_str().unwrap().to_owned();
    let mark = bob.own(60);
    let words = match pool.dice.below(3) {
        0 => quoted,
        1 => format!("{quoted}\n\nWhat does that mean? {mark}"),
        _ => format!("{mark} You told me:\n{quoted}\nWhat does that mean?"),
    };
    let apart = alice.naming.names_one() && pool.dice.one_in(2);
    if apart {
        bob.naming = Naming::Thread;
        bob.headers = bob.naming.headers(bob.user, bob.id);
    } else {
        let came = loop {
            let came = Came::drawn(pool);
            if came.is_given() {
                break came;
            }
        };
        // Only the process that gave him the answer knows of it where it has no memory.
        bob.process = alice.process;
        let question = own(bob, 1).remove(0).0;
        all.extend(comes(bob, vec![(question, answer)], came, pool));
    }
    let reply = own(bob, 1).remove(0).1;
    one_turn(bob, (message("user", words), reply), pool, all);
    asks(bob, pool, all);
}

/// Her client puts a summary behind its system message. He begins with what she says behind it, and says nothing else of hers.
fn behind(
    alice: &mut Conversation,
    bob: &mut Conversation,
    pool: &mut Pool,
    all: &mut Vec<Request>,
) {
    alice.ahead.clear();
    let words = format!("continue with number {}", pool.fresh());
    let answer = message("assistant", alice.own(300));
    alice.ahead.push_back((message("user", &*words), answer));
    let habit = std::mem::replace(&mut alice.habit, Kind::SceneBehind);
    let mut summarises = alice.summarise(pool);
    alice.habit = habit;
    for request in &mut summarises {
        request.rests = true;
    }
    all.extend(summarises);
    let answer = message("assistant", bob.own(300));
    one_turn(bob, (message("user", words), answer), pool, all);
    asks(bob, pool, all);
}

/// His client leaves out his own words and keeps the canned messages.
fn slid(alice: &mut Conversation, bob: &mut Conversation, pool: &mut Pool, all: &mut Vec<Request>) {
    let answers = 2 + pool.dice.below(2);
    let dialogue = dialogue(pool, answers);
    play_dialogue(alice, &dialogue, pool, all);
    for _ in 0..pool.dice.below(3) {
        all.extend(alice.turn(pool));
    }
    let mut turns = own(bob, 2);
    let (question, _) = turns.pop().unwrap();
    turns.push((question, dialogue[0].1.clone()));
    turns.extend(dialogue[1..].iter().cloned());
    let apart = alice.naming.names_one() && pool.dice.one_in(2);
    let came = if apart {
        bob.naming = Naming::Chat;
        bob.headers = bob.naming.headers(bob.user, bob.id);
        Came::Unseen
    } else {
        *pool
            .dice
            .pick(&[Came::WithoutMemory, Came::AtOnce, Came::Live])
    };
    // Only the process that gave him the answers knows of them where they have no memory.
    bob.process = alice.process;
    all.extend(comes(bob, turns, came, pool));
    bob.skips = match pool.dice.below(2) {
        // From her first canned answer on, or from her first canned question.
        0 => 3,
        _ => 4,
    };
    asks(bob, pool, all);
}
