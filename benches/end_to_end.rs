//! One request over real sockets: straight to the provider, through Diarist, and through Diarist with
//! a long history that memory stands in for.
//!
//! `cargo bench --bench end_to_end`. Compare lines of one run only. The scripted provider judges and
//! counts every body it receives, so a shorter request is also answered sooner, as it is by a real
//! one; the first two rows differ by Diarist alone.

#![expect(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::Duration;

use diarist::app::App;
use diarist::config;
use diarist_provider::{
    CallerKind, FixedReply, OBSERVER_MODEL, Options, Provider, REFLECTOR_MODEL,
};
use divan::Bencher;
use divan::counter::BytesCount;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

const SIZES: [usize; 3] = [1_000, 100_000, 1_000_000];

/// Characters of one message.
const MESSAGE: usize = 2_000;

fn main() {
    divan::main();
}

struct Stand {
    runtime: Runtime,
    provider: Provider,
    client: reqwest::Client,
    through: String,
    quiet: Box<dyn Fn(Duration) -> futures_util::future::BoxFuture<'static, bool> + Send + Sync>,
    _folder: tempfile::TempDir,
}

/// One for all benches: the process has one set of metrics.
fn stand() -> &'static Stand {
    static STAND: OnceLock<Stand> = OnceLock::new();
    STAND.get_or_init(|| {
        let runtime = Runtime::new().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let entered = runtime.enter();
        let options = Options {
            keep_bodies: false,
            ..Options::default()
        };
        let provider = runtime.block_on(Provider::start(options)).unwrap();
        provider.script(CallerKind::Actor, FixedReply("Yes.".to_owned()));
        let database = format!("sqlite://{}", folder.path().join("bench.db").display());
        let env: BTreeMap<String, String> = [
            ("SERVER__LISTEN", "127.0.0.1:0"),
            ("SERVER__ADMIN", "127.0.0.1:0"),
            ("UPSTREAM__BASE_URL", &provider.base_url()),
            ("STORE__URL", &database),
            ("AUDIT__PATH", "off"),
            ("MEMORY__OBSERVATION__MODEL", OBSERVER_MODEL),
            ("MEMORY__REFLECTION__MODEL", REFLECTOR_MODEL),
        ]
        .into_iter()
        .map(|(key, value)| (format!("DIARIST__{key}"), value.to_owned()))
        .collect();
        let config = config::load(&config::Flags::default(), &env, None).unwrap();
        let app = runtime.block_on(App::build(&config)).unwrap();
        let through = format!("http://{}/v1/chat/completions", app.data_addr().unwrap());
        let quiet = Box::new(app.quiet());
        drop(entered);
        serve(&runtime, app);
        Stand {
            provider,
            client: reqwest::Client::new(),
            through,
            quiet,
            _folder: folder,
            runtime,
        }
    })
}

fn serve(runtime: &Runtime, app: App) {
    runtime.spawn(async move {
        app.run(std::future::pending::<std::future::Pending<()>>())
            .await
    });
}

impl Stand {
    fn send(&self, url: &str, credential: &str, body: &str) {
        let request = self
            .client
            .post(url)
            .header("authorization", credential)
            .header("content-type", "application/json")
            .body(body.to_owned());
        self.runtime.block_on(async {
            let response = request.send().await.unwrap();
            assert!(response.status().is_success(), "{}", response.status());
            response.bytes().await.unwrap();
        });
    }
}

/// A history of about `size` bytes that ends with a question.
fn messages(size: usize) -> Vec<Value> {
    let count = (size / MESSAGE).max(1);
    let text = "What was said stays as it was said; the log is written while nobody waits. ";
    let mut all = vec![json!({"role": "system", "content": "You are terse."})];
    for index in 0..count {
        let role = if index % 2 == 0 { "user" } else { "assistant" };
        let text = text.repeat(MESSAGE.min(size) / text.len() + 1);
        all.push(json!({"role": role, "content": format!("{index}: {text}")}));
    }
    if count.is_multiple_of(2) {
        all.push(json!({"role": "user", "content": "And now?"}));
    }
    all
}

fn body(messages: &[Value]) -> String {
    json!({"model": "gpt-bench", "messages": messages}).to_string()
}

#[divan::bench(args = SIZES)]
fn direct(bencher: Bencher, size: usize) {
    let stand = stand();
    let url = format!("{}/chat/completions", stand.provider.base_url());
    let body = body(&messages(size));
    bencher
        .counter(BytesCount::new(body.len()))
        .bench(|| stand.send(&url, "Bearer direct", &body));
}

#[divan::bench(args = SIZES)]
fn through_diarist_raw(bencher: Bencher, size: usize) {
    let stand = stand();
    let body = body(&messages(size));
    // The same request again and again: it was sent raw the first time, and is for ever.
    stand.send(&stand.through, "Bearer raw", &body);
    bencher
        .counter(BytesCount::new(body.len()))
        .bench(|| stand.send(&stand.through, "Bearer raw", &body));
}

#[divan::bench(args = [1_000_000])]
fn through_diarist_remembered(bencher: Bencher, size: usize) {
    let stand = stand();
    let mut all = messages(size);
    for question in 0..3 {
        stand.send(&stand.through, "Bearer remembered", &body(&all));
        assert!(
            stand
                .runtime
                .block_on((stand.quiet)(Duration::from_mins(2)))
        );
        all.push(json!({"role": "assistant", "content": "Yes."}));
        all.push(json!({"role": "user", "content": format!("And then, {question}?")}));
    }
    let body = body(&all);
    stand.send(&stand.through, "Bearer remembered", &body);
    let sent = stand
        .provider
        .record_for(CallerKind::Actor)
        .pop()
        .unwrap()
        .body_bytes;
    assert!(
        sent * 2 < body.len(),
        "memory stands in for most of it: {sent} of {}",
        body.len()
    );
    bencher
        .counter(BytesCount::new(body.len()))
        .bench(|| stand.send(&stand.through, "Bearer remembered", &body));
}
