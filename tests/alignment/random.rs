//! Every composition of `compose` through the whole proxy, with processes that end between any two
//! requests. What each request may be told of the composer knows: what is left out was observed
//! ([`Client::send`]), nothing is told that is not of this branch of this conversation, and the same
//! request goes out as the same bytes, however much later. A failure names its seed:
//! `DIARIST_SEED=7 cargo test --test proxy alignment::random` plays that one alone, `DIARIST_CASES=300` many.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;

use diarist_provider::script::Reply;
use diarist_provider::{CallerKind, Options};
use futures_util::FutureExt as _;
use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt as _};

use crate::alignment::compose::{Ask, Composer, Op};
use crate::alignment::harness::Client;
use crate::alignment::model_store::format_counts;
use crate::memory::rig::Rig;
use crate::support::depth;

const CASES: [u64; 2] = [24, 4];

/// Steps of a case; some make several requests.
const STEPS: usize = 34;

/// From so many requests on the shares of what came of them are judged.
const MANY: usize = 700;

const KEYS: [&str; 2] = ["Bearer sk-test", "Bearer sk-another"];

/// A request, and what went out for it.
struct Sent {
    ask: Ask,
    body: String,
}

struct Case {
    rig: Rig,
    before: Vec<Sent>,
    counts: BTreeMap<&'static str, usize>,
}

impl Case {
    async fn new(keeps: bool) -> Self {
        let keep = if keeps { "always" } else { "until_observed" };
        let settings = [
            ("MEMORY__KEEP_MESSAGES", keep),
            ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "1000"),
            ("MEMORY__REFLECTION__OBSERVATION_TOKENS", "20000"),
        ];
        Self {
            rig: Rig::with(Options::default(), &settings).await,
            before: Vec::new(),
            counts: BTreeMap::new(),
        }
    }

    fn client(&mut self, ask: &Ask) -> Client<'_> {
        let mut client = Client::new(&mut self.rig);
        client.credential = KEYS[ask.tenant];
        // One session id for everybody.
        client.headers = vec![("x-session-id", "always-the-same")];
        client.system = Some(ask.system.clone());
        client.fields = ask.fields.clone();
        client
    }

    async fn ask(&mut self, ask: Ask) -> Result<(), String> {
        let reply = Reply::recorded(&ask.reply);
        self.rig.provider.script(
            CallerKind::Actor,
            move |_: &diarist_provider::ScriptInput<'_>| reply.clone(),
        );
        let messages = ask.messages();
        let client = self.client(&ask);
        let body = client.body(&messages);
        if ask.times > 1 {
            let (rig, headers) = (&*client.rig, &client.headers);
            let at_once = (1..ask.times).map(|_| rig.send_as(client.credential, headers, &body));
            if join_all(at_once)
                .await
                .iter()
                .any(|answer| answer.status != 200)
            {
                return Err("one of the same requests was refused".to_owned());
            }
            rig.quiet().await;
        }
        let sent_request = self.client(&ask).send(&messages).await;
        if let Some(strange) = sent_request.in_block.iter().find(|mark| {
            let mark = mark.strip_prefix("gone-").unwrap_or(mark);
            !ask.may_tell.contains(mark)
        }) {
            return Err(format!(
                "{} is told of {strange}, {}",
                ask.conversation, sent_request.reason
            ));
        }
        let what = match &*sent_request.reason {
            "aligned" | "compaction_link" => "views",
            "no_snapshot" => "raw",
            _ => "exact",
        };
        *self.counts.entry(what).or_default() += 1;
        *self.counts.entry("told").or_default() += usize::from(!sent_request.in_block.is_empty());
        let body = sent_request.body.0;
        self.before.push(Sent { ask, body });
        Ok(())
    }

    /// One that was sent before goes out as it did.
    async fn again(&mut self, at: usize) -> Result<(), String> {
        let (ask, body) = (self.before[at].ask.clone(), self.before[at].body.clone());
        let sent_request = self.client(&ask).send(&ask.messages()).await;
        if sent_request.body.0 == body {
            return Ok(());
        }
        let count = self.before.len();
        Err(format!("request {at} of {count} went out as other bytes"))
    }

    async fn step(&mut self, composer: &mut Composer) -> Result<(), String> {
        for op in composer.step() {
            match op {
                Op::Restart => self.rig.restart().await,
                Op::Again(at) => self.again(at).await?,
                Op::Ask(ask) => self.ask(*ask).await?,
            }
        }
        Ok(())
    }
}

async fn play(seed: u64) -> Result<BTreeMap<&'static str, usize>, String> {
    let mut composer = Composer::new(seed);
    let mut case = Case::new(seed.is_multiple_of(3)).await;
    for step in 0..STEPS {
        let stepped = AssertUnwindSafe(case.step(&mut composer)).catch_unwind();
        stepped
            .await
            .unwrap_or_else(|_| Err("a check of every request failed, see above".to_owned()))
            .map_err(|broken| format!("DIARIST_SEED={seed}, step {step}: {broken}"))?;
    }
    Ok(case.counts)
}

#[expect(clippy::disallowed_methods, reason = "a switch of these tests alone")]
fn env_number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// What is played: one seed, or so many.
pub fn seeds(plain: u64) -> std::ops::Range<u64> {
    match env_number("DIARIST_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..env_number("DIARIST_CASES").unwrap_or(plain),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_any_client_stay_correct() {
    let played: Vec<_> = stream::iter(seeds(depth::long_or(CASES[0], CASES[1])))
        .map(play)
        .buffer_unordered(3)
        .collect()
        .await;
    let broken: Vec<&String> = played
        .iter()
        .filter_map(|case| case.as_ref().err())
        .collect();
    assert!(broken.is_empty(), "{broken:#?}");
    let mut counts = BTreeMap::new();
    for (what, count) in played.iter().flatten().flatten() {
        *counts.entry(*what).or_insert(0) += count;
    }
    let requests = ["views", "exact", "raw"].map(|what| counts.get(what).copied().unwrap_or(0));
    let requests = requests.iter().sum::<usize>();
    println!(
        "{} cases, {requests} requests: {}",
        played.len(),
        format_counts(&counts)
    );
    if requests < MANY {
        println!("too few to judge the shares, which takes {MANY} requests");
        return;
    }
    // Where nothing proves that a request goes on with its conversation, it is no view.
    for (what, least) in [("views", 3), ("exact", 20), ("raw", 20), ("told", 20)] {
        let share = 100 * counts.get(what).copied().unwrap_or_default() / requests;
        assert!(
            share >= least,
            "{share} % are {what}, at least {least} were to be"
        );
    }
}
