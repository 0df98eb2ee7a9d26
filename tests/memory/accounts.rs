//! One account among others: what one key does, with whatever headers beside it, leaves room, tokens and rows for the
//! rest.

use diarist_provider::{CallerKind, Options};
use serde_json::{Value, json};
use sqlx::Connection as _;

use crate::memory::rig::{Rig, SMALL};
use crate::memory::tools::{ACTIVE, SampleConversation, eventually_async};

/// The two requests of a conversation that begins with so many bytes: with the second one it is recorded.
fn two_requests(name: &str, bytes: usize) -> [Value; 2] {
    let long = "long ".repeat(bytes / 5);
    let first = json!({"role": "user", "content": format!("{name} {long}")});
    let second = json!({"role": "user", "content": "And?"});
    let answer = json!({"role": "assistant", "content": "Yes."});
    [json!([first]), json!([first, answer, second])]
        .map(|messages| json!({"model": "gpt-test", "messages": messages}))
}

const MEBIBYTE: usize = 1 << 20;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_flood_of_one_account_drops_no_exchange_of_another() {
    // Nothing is observed: to read so much takes long, and this is about the queue.
    let nothing = [("MEMORY__OBSERVATION__MESSAGE_TOKENS", "100000000")];
    let rig = Rig::with(Options::default(), &nothing).await;
    let dropped = async || rig.metric("diarist_exchanges_dropped_total").await;
    // Somebody else writes to the database: the recorder waits, and the queue fills.
    let mut database = rig.database().await;
    let writing = database.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let before = dropped().await;
    for number in 0..24 {
        // Headers that the provider ignores make no second share.
        let header = [("x-any-auth", number.to_string())];
        let header = header
            .each_ref()
            .map(|(name, value)| (*name, value.as_str()));
        for body in two_requests(&number.to_string(), MEBIBYTE) {
            let answer = rig.send_as("Bearer sk-flood", &header, &body).await;
            assert_eq!(answer.status, 200);
        }
    }
    eventually_async("something is dropped", async || dropped().await > before).await;
    for body in two_requests("quiet", 3 * MEBIBYTE) {
        let answer = rig.send_as("Bearer sk-quiet", &[], &body).await;
        assert_eq!(answer.status, 200);
    }
    writing.rollback().await.unwrap();
    rig.quiet().await;
    let quiet = rig.tenant("sk-quiet");
    let recorded: i64 = sqlx::query_scalar("SELECT count(*) FROM lineages WHERE tenant = $1")
        .bind(quiet.as_slice())
        .fetch_one(&mut database)
        .await
        .unwrap();
    assert_eq!(recorded, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn new_headers_beside_one_key_create_a_limited_number_of_tenants() {
    let settings = [&SMALL[..], &[("IDENTITY__NEW_TENANTS_PER_HOUR", "2")]].concat();
    let mut rig = Rig::with(Options::default(), &settings).await;
    let conversation = SampleConversation::new("ada");
    let send = async |rig: &Rig, credential: &str, number: &str, turn| {
        let header = [("x-any-auth", number)];
        let answer = rig
            .send_as(credential, &header, &conversation.body(turn))
            .await;
        assert_eq!(answer.status, 200);
        rig.quiet().await;
        answer
    };
    for number in ["1", "2", "3", "4"] {
        for turn in 1..=2 {
            let answer = send(&rig, "Bearer sk-test", number, turn).await;
            let refused = number > "2";
            let expected = "bypass; reason=too_many_tenants";
            assert_eq!(answer.memory() == expected, refused, "{number}");
            if refused {
                assert_eq!(rig.last().body, conversation.body(turn).to_string());
                let entry = rig.audit_entry(&answer).await;
                assert_eq!(entry["reason"], "too_many_tenants");
            }
        }
    }
    let tenants = "SELECT count(DISTINCT tenant) FROM lineages";
    assert_eq!(rig.number(tenants).await, 2);
    // The key alone is no new tenant, and other accounts have their own count.
    assert_eq!(rig.send(&conversation.body(2)).await.memory(), "watching");
    let other = send(&rig, "Bearer sk-other", "3", 2).await;
    assert_eq!(other.memory(), "watching");
    // Who was there before a restart is not new after it.
    rig.set("IDENTITY__NEW_TENANTS_PER_HOUR", "1");
    rig.restart().await;
    send(&rig, "Bearer sk-test", "5", 1).await;
    send(&rig, "Bearer sk-test", "5", 2).await;
    for number in ["1", "2", "5"] {
        let answer = send(&rig, "Bearer sk-test", number, 3).await;
        assert_eq!(answer.memory(), "watching", "{number}");
    }
    let answer = send(&rig, "Bearer sk-test", "6", 3).await;
    assert_eq!(answer.memory(), "bypass; reason=too_many_tenants");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ignored_header_does_not_renew_the_daily_budget() {
    let settings = [&SMALL[..], &[("MEMORY__DAILY_TOKENS", "1")]].concat();
    let rig = Rig::with(Options::default(), &settings).await;
    let observed = |conversation: &SampleConversation| {
        let prompts = rig.provider.record_for(CallerKind::Observer);
        let canary = conversation.canary();
        prompts
            .iter()
            .any(|entry| String::from_utf8_lossy(&entry.body).contains(&canary))
    };
    let [ada, bob, eve] = ["ada", "bob", "eve"].map(SampleConversation::new);
    let say =
        async |credential: &str, headers: &[(&str, &str)], conversation: &SampleConversation| {
            for turn in 1..=ACTIVE + 1 {
                let answer = rig
                    .send_as(credential, headers, &conversation.body(turn))
                    .await;
                assert_eq!(answer.status, 200);
            }
        };
    say("Bearer sk-test", &[], &ada).await;
    eventually_async("ada is observed", async || observed(&ada)).await;
    let spent = async || rig.metric("diarist_budgets_spent_total").await > 0.0;
    eventually_async("the budget is spent", spent).await;
    say("Bearer sk-test", &[("x-any-auth", "1")], &bob).await;
    // The jobs of an account with fewer running jobs come first, then the older ones: bob's would be done by now.
    say("Bearer sk-other", &[], &eve).await;
    eventually_async("eve is observed", async || observed(&eve)).await;
    assert!(!observed(&bob));
}

#[tokio::test(flavor = "multi_thread")]
async fn users_with_different_gateway_keys_share_no_memory() {
    let rig = Rig::small().await;
    let conversation = SampleConversation::new("ada");
    let header = |name| [("ocp-apim-subscription-key", name)];
    let answer = rig
        .play_turns_as(
            "Bearer EMPTY",
            &header("alice"),
            &conversation,
            1..=ACTIVE + 1,
        )
        .await;
    assert_eq!(answer.memory(), "active");
    for other in [&header("bob")[..], &[]] {
        let answer = rig
            .send_as("Bearer EMPTY", other, &conversation.body(ACTIVE + 2))
            .await;
        assert_eq!(answer.memory(), "watching");
    }
}
