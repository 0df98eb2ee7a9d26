//! Somebody else of the same key got the words that would prove Alice's conversation, in a form that leaves no row. The
//! process has noted that they were sent, so nobody is told of Alice. In each scene memory serves the same words where
//! nobody else got them.

use diarist_provider::{
    Behaviour, CallerKind, DefaultScript, Failure, LineEnd, Reply, ScriptInput,
};
use serde_json::{Value, json};

use crate::alignment::harness::{Client, assistant, conversation, roomy, set_answer, system, user};
use crate::alignment::script::message;
use crate::memory::rig::Rig;

type Headers = Vec<(&'static str, &'static str)>;

const KEY: &str = "Bearer sk-test";

/// An answer of Alice's that may come back as a summary. Every number is another one.
fn summary(number: usize) -> String {
    format!(
        "{:?} is what part {number} of our talk was about, as far as I remember it. We spoke of the house, of the \
         boat behind it, and of what has to be done before the winter comes: the roof, the windows and the pump in \
         the cellar, each with its price. You wanted to think about number {number} until Thursday.",
        blake3::hash(&number.to_le_bytes()).to_hex().as_str()
    )
}

fn ask() -> Value {
    message("user", "Please write the text.")
}

/// How somebody got an answer.
struct Receipt {
    headers: Headers,
    body: Vec<u8>,
    reply: Reply,
    behaviour: Behaviour,
}

impl Receipt {
    /// An ordinary request for `text`.
    fn new(text: &str) -> Self {
        Self {
            headers: vec![("authorization", KEY)],
            body: body_of(&json!({"messages": [ask()]})),
            reply: Reply::text(text),
            behaviour: Behaviour::default(),
        }
    }

    fn with_header(mut self, name: &'static str, value: &'static str) -> Self {
        self.headers.push((name, value));
        self
    }

    fn off(text: &str) -> Self {
        Self::new(text).with_header("x-diarist-memory", "off")
    }

    fn with_body(mut self, fields: &Value) -> Self {
        self.body = body_of(fields);
        self
    }

    /// Whatever is asked, the upstream answers with these bytes.
    fn with_raw_answer(mut self, content_type: &'static str, body: String) -> Self {
        self.behaviour.early = true;
        self.behaviour.fail = Some(Failure {
            status: 200,
            retry_after: None,
            body: Some((content_type, body)),
        });
        self
    }

    async fn take_place(&self, rig: &Rig) {
        let reply = self.reply.clone();
        rig.provider.script(
            CallerKind::Actor,
            move |input: &ScriptInput<'_>| match input.choice {
                // Of several choices the last one is it.
                choice if choice + 1 < choices(input) => Reply::text("Another one."),
                _ => reply.clone(),
            },
        );
        let (actor, behaviour) = (CallerKind::Actor, &self.behaviour);
        rig.provider.inject_next(actor, 1, behaviour);
        let answer = rig.post(&self.headers, self.body.clone()).await;
        assert_eq!(answer.status, 200);
        rig.provider.script(actor, DefaultScript::default());
        rig.quiet().await;
    }
}

fn choices(input: &ScriptInput<'_>) -> u32 {
    let count = input.request.get("n").and_then(Value::as_u64);
    count.map_or(1, |count| count.try_into().unwrap())
}

fn body_of(fields: &Value) -> Vec<u8> {
    let mut body = json!({"model": "gpt-test"});
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body.to_string().into_bytes()
}

fn answer_of(message: &Value) -> String {
    json!({"id": "x", "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
    .to_string()
}

fn events(deltas: &[Value]) -> String {
    let events = deltas.iter().map(|delta| {
        let choice = json!({"index": 0, "delta": delta});
        format!("data: {}\r\r", json!({ "choices": [choice] }))
    });
    events.collect()
}

/// The name of a form, and how somebody gets the text in it.
type ReceiptForm = (&'static str, fn(&str) -> Receipt);

const RECEIPT_FORMS: [ReceiptForm; 19] = [
    ("memory off", Receipt::off),
    ("read only", |text| {
        Receipt::new(text).with_header("x-diarist-memory", "read")
    }),
    ("the only request of its conversation", Receipt::new),
    ("a signed request", |text| {
        let hash = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
        Receipt::new(text)
            .with_header("x-amz-content-sha256", hash)
            .with_header("x-amz-date", "20261125T000000Z")
    }),
    ("a request of system messages", |text| {
        Receipt::new(text).with_body(&json!({"messages": [system("Write the text.")]}))
    }),
    ("a request that is compressed", |text| Receipt {
        body: gzip(&body_of(&json!({"messages": [ask()]}))),
        ..whole(text).with_header("content-encoding", "gzip")
    }),
    ("a request with a field twice", |text| Receipt {
        body: br#"{"model":"m","messages":[{"role":"user","content":"a","content":"b"}]}"#.to_vec(),
        ..whole(text)
    }),
    ("a request without messages", |text| {
        whole(text).with_body(&json!({"prompt": "Write."}))
    }),
    ("the last of five choices", |text| {
        Receipt::off(text).with_body(&json!({"messages": [ask()], "n": 5}))
    }),
    ("behind thinking", |text| {
        Receipt::off(&format!("<think>{}</think>\n{text}", "Well. ".repeat(60)))
    }),
    ("with blanks behind it", |text| {
        Receipt::off(&format!("{text}\n\n   \n"))
    }),
    ("a stream", |text| {
        Receipt::off(text).with_body(&json!({"messages": [ask()], "stream": true}))
    }),
    ("a stream that is compressed", |text| Receipt {
        behaviour: Behaviour {
            gzip: true,
            line_end: LineEnd::CrLf,
            byte_order_mark: true,
            ..Behaviour::default()
        },
        ..Receipt::off(text).with_body(&json!({"messages": [ask()], "stream": true}))
    }),
    ("a compressed answer", |text| Receipt {
        behaviour: Behaviour {
            gzip: true,
            ..Behaviour::default()
        },
        ..Receipt::off(text)
    }),
    ("parts of a text", |text| {
        let (one, two) = text.split_at(100);
        let parts = [one, two].map(|part| json!({"type": "text", "text": part}));
        let answer = answer_of(&json!({"role": "assistant", "content": parts}));
        Receipt::off(text).with_raw_answer("application/json", answer)
    }),
    ("behind blanks, as a page", |text| {
        let answer = answer_of(&message("assistant", text));
        Receipt::off(text).with_raw_answer("text/html", format!("\u{feff}\n\n  {answer}"))
    }),
    ("a stream that breaks off", |text| {
        let (one, two) = text.split_at(100);
        let deltas = [one, two].map(|part| json!({ "content": part }));
        Receipt::off(text).with_raw_answer("text/event-stream", events(&deltas))
    }),
    ("a stream that says it is text", |text| {
        let stream = events(&[json!({ "content": text })]) + "data: [DONE]\r\r";
        Receipt::off(text).with_raw_answer("text/plain", stream)
    }),
    ("a refusal", |text| {
        let stream = events(&[json!({ "refusal": text })]) + "data: [DONE]\r\r";
        Receipt::off(text).with_raw_answer("text/event-stream", stream)
    }),
];

/// A request whose answer comes whole, whatever it asks.
fn whole(text: &str) -> Receipt {
    let answer = answer_of(&message("assistant", text));
    Receipt::new(text).with_raw_answer("application/json", answer)
}

fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    std::io::Write::write_all(&mut encoder, plain).unwrap();
    encoder.finish().unwrap()
}

/// Messages of a script, long enough to prove a conversation if nobody else has them.
fn script(number: usize) -> Vec<Value> {
    (0..6)
        .map(|step| {
            let role = if step % 2 == 0 { "user" } else { "assistant" };
            let text = summary(100 * number + step);
            message(role, format!("Step {step} of script {number}. {text}"))
        })
        .collect()
}

/// The last messages of a script, and a question: what a client sends that has dropped the rest.
fn window(number: usize) -> Vec<Value> {
    let question = message("user", "And what is next?");
    [&script(number)[3..], &[question]].concat()
}

/// A conversation of `messages`, turn by turn, each answer given by the upstream.
async fn hold(rig: &mut Rig, headers: &[(&'static str, &'static str)], messages: &[Value]) {
    let mut client = Client::new(rig);
    client.headers = headers.to_vec();
    for place in (0..messages.len()).step_by(2) {
        let answer = messages.get(place + 1);
        client.send_with_answer(&messages[..=place], answer).await;
    }
}

/// Alice's conversation, observed but for the latest messages. She asks its end `count` times for a summary, each on a branch
/// of its own: an answer that comes back in its turn is none. Returns the messages before that.
async fn alice(rig: &mut Rig, count: usize) -> Vec<Value> {
    let messages = [conversation("alice", 40), script(0), script(1)].concat();
    hold(rig, &[], &messages).await;
    let mut client = Client::new(rig);
    for number in 0..count {
        let ask = message("user", format!("Sum up part {number}, please."));
        let answer = message("assistant", summary(number));
        let sent = [&messages[..], &[ask]].concat();
        client.send_with_answer(&sent, Some(&answer)).await;
    }
    messages
}

/// Whether somebody who brings this summary hears of Alice.
async fn is_served_her_memory(rig: &mut Rig, number: usize) -> bool {
    set_answer(rig, None);
    let sent = [
        message("user", summary(number)),
        message("user", "And what did I tell you about myself?"),
    ];
    let sent_request = Client::new(rig).send(&sent).await;
    assert_eq!(
        sent_request.body.0.contains("alice#"),
        !sent_request.in_block.is_empty()
    );
    !sent_request.in_block.is_empty()
}

/// Alice goes on and has her memory.
async fn assert_alice_has_memory(rig: &mut Rig, messages: &[Value]) {
    let sent = [messages, &[user("alice", 999)]].concat();
    let sent_request = Client::new(rig).send(&sent).await;
    assert!(
        sent_request.in_block.contains("alice#0"),
        "{:?}",
        sent_request.in_block
    );
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn an_answer_another_user_got_in_any_form_proves_no_conversation() {
    let mut rig = roomy().await;
    let count = RECEIPT_FORMS.len();
    // Each form twice: before Alice gets the answer, and after it. The last two answers nobody else gets.
    for (number, (_, receipt)) in RECEIPT_FORMS.iter().enumerate() {
        receipt(&summary(number)).take_place(&rig).await;
    }
    let messages = alice(&mut rig, 2 * count + 2).await;
    for (number, (_, receipt)) in RECEIPT_FORMS.iter().enumerate() {
        receipt(&summary(count + number)).take_place(&rig).await;
    }
    assert!(
        is_served_her_memory(&mut rig, 2 * count).await,
        "nobody else has it"
    );
    let mut leaks = Vec::new();
    for (number, (form, _)) in RECEIPT_FORMS.iter().enumerate() {
        for (when, number) in [("before Alice", number), ("after her", count + number)] {
            if is_served_her_memory(&mut rig, number).await {
                leaks.push((form, when));
            }
        }
    }
    assert!(leaks.is_empty(), "{leaks:?}");
    assert!(
        is_served_her_memory(&mut rig, 2 * count + 1).await,
        "nobody else has it"
    );
    assert_alice_has_memory(&mut rig, &messages).await;
}

/// What is recorded in two conversations is known to be so by the next process.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_another_user_got_proves_nothing_after_a_restart() {
    let mut rig = roomy().await;
    let messages = alice(&mut rig, 3).await;
    let thinking = format!("<think>{}</think>\n{}", "Well. ".repeat(60), summary(1));
    for (number, answer) in [summary(0), thinking].into_iter().enumerate() {
        let answer = message("assistant", answer);
        let mut bob = conversation("bob", 2 * number + 1);
        bob.push(ask());
        let mut client = Client::new(&mut rig);
        client.send_with_answer(&bob, Some(&answer)).await;
        bob.extend([answer, user("bob", 9)]);
        client.send(&bob).await;
    }
    rig.restart().await;
    assert!(!is_served_her_memory(&mut rig, 0).await);
    assert!(!is_served_her_memory(&mut rig, 1).await);
    assert!(
        is_served_her_memory(&mut rig, 2).await,
        "nobody else has it"
    );
    assert_alice_has_memory(&mut rig, &messages).await;
}

/// So much is remembered where a test sets the bound.
const ENTRIES: usize = 4_000;

/// Somebody says far more than is remembered, with memory off.
async fn flood(rig: &Rig, key: &str, status: u16) {
    let off = [("x-diarist-memory", "off")];
    for round in 0..4 {
        let messages = (0..ENTRIES).map(|number| {
            let text = format!("Message {number} of round {round}, long enough to count.");
            message("user", text)
        });
        let messages: Vec<Value> = messages.collect();
        let body = json!({"model": "gpt-test", "messages": messages});
        assert_eq!(rig.send_as(key, &off, &body).await.status, status);
    }
}

/// Bob has script 0 as well, script 1 is Alice's alone.
async fn assert_only_her_own_script_gives_memory(rig: &mut Rig) {
    for (number, gets_memory) in [(0, false), (1, true)] {
        let sent = Client::new(rig).send(&window(number)).await;
        assert_eq!(!sent.in_block.is_empty(), gets_memory, "script {number}");
    }
}

/// What the process noted under one key is not pushed out by messages under another one.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn many_messages_of_another_tenant_do_not_displace_noted_messages() {
    let mut rig = roomy().await;
    rig.limit_seen_entries(ENTRIES);
    Receipt::off(&summary(0)).take_place(&rig).await;
    let bob = [conversation("bob", 2), script(0)].concat();
    hold(&mut rig, &[("x-diarist-memory", "off")], &bob).await;
    let messages = alice(&mut rig, 2).await;
    flood(&rig, "Bearer sk-flood", 200).await;
    assert!(!is_served_her_memory(&mut rig, 0).await);
    assert!(
        is_served_her_memory(&mut rig, 1).await,
        "nobody else has it"
    );
    assert_only_her_own_script_gives_memory(&mut rig).await;
    assert_alice_has_memory(&mut rig, &messages).await;
}

/// Anybody can send messages with keys that the upstream refuses. The first request of a key that it accepts comes from a
/// stranger too.
#[tokio::test(flavor = "multi_thread")]
async fn refused_requests_of_unknown_tenants_do_not_displace_noted_messages() {
    let mut rig = roomy().await;
    rig.limit_seen_entries(ENTRIES);
    let bob = [conversation("bob", 2), script(0), vec![user("bob", 9)]].concat();
    let off = [("x-diarist-memory", "off")];
    let body = json!({"model": "gpt-test", "messages": bob});
    assert_eq!(rig.send_as(KEY, &off, &body).await.status, 200);
    let refusal = Behaviour::failing(401);
    rig.provider.inject(CallerKind::Actor, refusal);
    flood(&rig, "Bearer sk-unknown", 401).await;
    rig.provider.inject(CallerKind::Actor, Behaviour::default());
    let messages = alice(&mut rig, 0).await;
    assert_only_her_own_script_gives_memory(&mut rig).await;
    assert_alice_has_memory(&mut rig, &messages).await;
}

/// What a tenant makes the process forget of itself is asked of the database.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn messages_displaced_from_the_process_are_looked_up_in_the_database() {
    // Who else has the script, and whether the process forgets before or after Alice has it.
    for (two_have_it, forgets_first, gets_memory) in [
        (false, true, true),
        (true, true, false),
        (false, false, true),
        (true, false, false),
    ] {
        let mut rig = roomy().await;
        rig.limit_seen_entries(ENTRIES);
        let alice = [
            conversation("alice", 40),
            script(0),
            vec![user("alice", 46)],
        ]
        .concat();
        // Bob has the same messages apart from each other, so no look-up of his finds hers.
        let apart = script(0)
            .into_iter()
            .enumerate()
            .flat_map(|(place, scripted)| {
                let (question, answer) = (user("bob", place), assistant("bob", place));
                match place % 2 {
                    0 => [scripted, answer],
                    _ => [question, scripted],
                }
            });
        let bob: Vec<Value> = apart.chain([user("bob", 46)]).collect();
        if two_have_it {
            hold(&mut rig, &[], &bob).await;
        }
        if forgets_first {
            flood(&rig, KEY, 200).await;
        }
        hold(&mut rig, &[], &alice).await;
        if !forgets_first {
            flood(&rig, KEY, 200).await;
        }
        let got = Client::new(&mut rig).send(&window(0)).await;
        let case = format!("{two_have_it} {forgets_first}: {}", got.reason);
        assert_eq!(!got.in_block.is_empty(), gets_memory, "{case}");
    }
}
