//! A client that summarises lets the model say "Understood." behind the summary, and keeps the newest messages behind that.

use serde_json::{Value, json};

use crate::alignment::harness::{Client, conversation, roomy, text};
use crate::memory::rig::Rig;

/// Messages of the conversation when its client summarises it. The newest range ends four messages before.
const LONG: usize = 46;

/// Turns after the summary.
const TURNS: usize = 24;

async fn grow(rig: &mut Rig, all: &[Value], off: bool) {
    for count in (1..=all.len()).step_by(2) {
        let mut client = Client::new(rig);
        client
            .headers
            .extend(off.then_some(("x-diarist-memory", "off")));
        client.send_with_answer(&all[..count], all.get(count)).await;
    }
}

/// What is kept proves nothing, because somebody else says it too: only the summary leads to the old conversation. Memory
/// of it goes on all the same.
#[tokio::test(flavor = "multi_thread")]
async fn memory_goes_on_behind_an_acknowledged_summary() {
    for (acknowledgement, kept) in [
        ("Understood.", 2),
        ("Understood.", 4),
        ("Got it. Thanks for the additional context!", 4),
        ("Got it. Thanks for the additional context!", 12),
    ] {
        let mut rig = roomy().await;
        let all = conversation("trip", LONG + 2 * TURNS);
        grow(&mut rig, &all[..LONG], false).await;
        let newest = &all[LONG - kept..LONG];
        let bob = [&conversation("bob", 2)[..], newest].concat();
        grow(&mut rig, &bob, true).await;
        let summary = format!("{} {}", text("trip", 900), text("trip", 901));
        let ask = json!({"role": "user", "content": "Summarise it all."});
        let asking = [&all[..LONG], &[ask]].concat();
        let answer = json!({"role": "assistant", "content": summary});
        let before = Client::new(&mut rig)
            .send_with_answer(&asking, Some(&answer))
            .await;
        let head = json!({"role": "user", "content": format!("Until now:\n\n{summary}")});
        let understood = json!({"role": "assistant", "content": acknowledgement});
        let mut sent = [&[head, understood], newest].concat();
        let mut last = None;
        for turn in (LONG..all.len()).step_by(2) {
            sent.push(all[turn].clone());
            let answer = all.get(turn + 1);
            last = Some(Client::new(&mut rig).send_with_answer(&sent, answer).await);
            sent.extend(answer.cloned());
        }
        let last = last.unwrap();
        let observed = (before.calls, last.calls);
        assert!(last.in_block.contains("trip#2"), "{kept}: {last:?}");
        assert!(last.calls > before.calls, "{kept}: calls {observed:?}");
        assert!(
            3 * last.raw < 2 * sent.len(),
            "{kept}: {} of {}",
            last.raw,
            sent.len()
        );
    }
}
