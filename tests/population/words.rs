//! What is said: texts that one conversation alone says, and texts that everybody says.

use serde_json::{Value, json};

use crate::population::marks::Mark;
use crate::support::dice::Dice;

const WORDS: [&str; 24] = [
    "harbour", "copper", "lantern", "meadow", "violin", "glacier", "saddle", "orchard", "window",
    "pepper", "marble", "thunder", "ribbon", "castle", "ginger", "velvet", "anchor", "cottage",
    "falcon", "barley", "pillow", "cellar", "ladder", "walnut",
];

const PHRASES: [&str; 16] = [
    "Thank you for getting in touch with our service team today.",
    "You can return every article within thirty days of its arrival.",
    "Please keep the original packaging until the refund has been booked.",
    "Our opening hours are the same on every working day of the week.",
    "A parcel usually arrives within three working days of its dispatch.",
    "You find the number of your order in the upper corner of the invoice.",
    "The warranty covers all faults that are not due to wrong handling.",
    "We never ask for your password, neither by letter nor by telephone.",
    "If the device does not start, please hold the button for ten seconds.",
    "The light on the front shows green as soon as the device is ready.",
    "An update is installed by itself during the night if you allow it.",
    "You can change your address at any time in the settings of your account.",
    "Refunds reach your bank within a week, depending on the bank itself.",
    "For business customers there is a separate line with shorter waits.",
    "The manual can be downloaded free of charge from our help pages.",
    "Should anything remain unclear, a colleague will call you back.",
];

/// What people answer a form in equal words.
pub const ANSWERS: [&str; 8] = [
    "yes",
    "no",
    "I do not know.",
    "Yes, please go on with that, as you said.",
    "No, that is not what I am looking for here.",
    "I would like to know more about the delivery time.",
    "My device is the newest model that you are selling.",
    "Please tell me what I have to do as the next step.",
];

/// What is asked again and again.
pub const COMMON: [&str; 10] = [
    "What are your opening hours on working days?",
    "How do I return an article that I ordered?",
    "Where do I find the number of my order?",
    "How long does the delivery of a parcel take?",
    "My device does not start any more, what now?",
    "Which faults does the warranty cover, please?",
    "Can I change the address of my delivery still?",
    "When does the refund reach my bank account?",
    "Is there a manual that I can download somewhere?",
    "Could somebody of your team call me back today?",
];

/// A text of about so many bytes that only this mark's owner says. The mark is a sentence of its own at the
/// beginning, where an Observer that shortens what it is shown keeps it.
pub fn own(mark: Mark, bytes: usize) -> String {
    let mut dice = Dice::new(
        mark.user as u64 * 1_000_003 + mark.conversation as u64 * 10_007 + mark.number as u64 * 13,
    );
    let mut text = format!("{mark}. The");
    while text.len() < bytes {
        text.push(' ');
        text.push_str(dice.pick::<&str>(&WORDS));
    }
    text.push('.');
    text
}

/// The canned text of this number: the same for everybody, of 280 to 570 bytes.
pub fn canned(number: usize) -> String {
    let mut dice = Dice::new(0xca_77ed + number as u64);
    let mut phrases = PHRASES;
    dice.shuffle(&mut phrases);
    let count = dice.between(4, 7);
    // The two last words part texts that drew the same phrases.
    let signed = format!("Your {} {} team.", dice.pick(&WORDS), dice.pick(&WORDS));
    format!("{} {signed}", phrases[..count].join(" "))
}

/// A shorter one, of 60 to 150 bytes.
pub fn short_canned(number: usize) -> String {
    let mut dice = Dice::new(0x5_0000 + number as u64);
    let phrase = *dice.pick(&PHRASES);
    format!("{phrase} Is there anything else? {}", dice.pick(&WORDS))
}

/// The canned words of a user, which the form suggests.
pub fn suggested(number: usize) -> String {
    let mut dice = Dice::new(0x7_0000 + number as u64);
    format!(
        "I choose the {} {} with the {} from your list.",
        dice.pick(&WORDS),
        dice.pick(&WORDS),
        dice.pick(&WORDS)
    )
}

pub fn message(role: &str, words: impl Into<String>) -> Value {
    json!({"role": role, "content": words.into()})
}

pub fn calls(ids: &[String], query: &str) -> Value {
    let calls: Vec<Value> = ids
        .iter()
        .map(|id| {
            let arguments = json!({"query": query, "place": id.len()}).to_string();
            json!({"id": id, "type": "function",
                   "function": {"name": "look_up", "arguments": arguments}})
        })
        .collect();
    json!({"role": "assistant", "content": null, "tool_calls": calls})
}

pub fn result(id: &str, words: impl Into<String>) -> Value {
    json!({"role": "tool", "tool_call_id": id, "content": words.into()})
}

/// A dialogue that goes the same way with everybody: what is asked and what is answered, turn by turn.
pub fn flow(number: usize) -> Vec<(Value, Value)> {
    let mut dice = Dice::new(0xf10_0000 + number as u64);
    (0..dice.between(2, 4))
        .map(|turn| {
            let question = match dice.below(3) {
                0 => (*dice.pick(&ANSWERS)).to_owned(),
                _ => suggested(number * 16 + turn),
            };
            let answer = match dice.below(5) {
                0 => short_canned(number * 16 + turn),
                _ => canned(100_000 + number * 16 + turn),
            };
            (message("user", question), message("assistant", answer))
        })
        .collect()
}

/// A long dialogue that several users have in equal words.
pub fn equal_answers(number: usize) -> Vec<(Value, Value)> {
    let turn = |turn| {
        let at = 700 * number + turn;
        let (question, answer) = (suggested(600_000 + at), canned(5_000_000 + at));
        (message("user", question), message("assistant", answer))
    };
    (0..40).map(turn).collect()
}

/// The questions of a form, answered in a word or two.
pub fn form(number: usize, dice: &mut Dice) -> Vec<(Value, Value)> {
    (0..4 + number % 3)
        .map(|turn| {
            let question = message("user", *dice.pick(&ANSWERS));
            (
                question,
                message("assistant", canned(200_000 + number * 16 + turn)),
            )
        })
        .collect()
}

/// Examples that an application puts in front of every conversation, with rounds of tools under fixed ids.
pub fn examples(number: usize) -> Vec<Value> {
    (0..3)
        .flat_map(|example| {
            let at = number * 8 + example;
            let id = format!("call_example{number}x{example}abc");
            [
                message("user", suggested(900_000 + at)),
                calls(std::slice::from_ref(&id), "example"),
                result(&id, canned(300_000 + at)),
                message("assistant", canned(310_000 + at)),
            ]
        })
        .collect()
}

/// The first messages of every conversation with this application.
pub fn template(number: usize) -> Vec<Value> {
    (0..3 + number % 4)
        .flat_map(|turn| {
            let at = number * 16 + turn;
            [
                message("user", suggested(800_000 + at)),
                message("assistant", canned(400_000 + at)),
            ]
        })
        .collect()
}

/// What the application has told the model.
pub fn system(number: usize) -> String {
    let all = [
        "You are a patient assistant.",
        "You answer the questions of customers, briefly and politely.",
        "You help with the work on a large programme. Use the tools that you have.",
    ];
    all[number % all.len()].to_owned()
}

/// A person's words in text, whatever they are made of.
pub fn text(message: &Value) -> &str {
    message["content"].as_str().unwrap_or_default()
}

pub fn reworded(message: &Value, words: String) -> Value {
    let mut message = message.clone();
    message["content"] = words.into();
    message
}

#[test]
fn canned_texts_are_long_and_differ() {
    let all: std::collections::BTreeSet<String> = (0..500).map(canned).collect();
    assert!(all.len() > 480, "{} differ", all.len());
    assert!(all.iter().all(|text| (260..=580).contains(&text.len())));
}
