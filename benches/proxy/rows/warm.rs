//! Agents at work: long conversations that Diarist knows, each with a turn every tenth of a second.

use std::time::Duration;

use crate::conversation::{Answer, Conversation, KEY};
use crate::load::{Load, PHASE, closed, paced};
use crate::report::{Finding, Goal, each, per_target};
use crate::rounds::Bench;
use crate::stand::Target;

const CONVERSATIONS: usize = 32;
const BYTES: usize = 100_000;
/// Of all together.
const REQUESTS_PER_SECOND: f64 = 300.0;

/// 32 conversations of 100 KB, 300 requests a second.
pub async fn warm(bench: &Bench) -> anyhow::Result<Vec<Finding>> {
    let diarist = bench.stand.diarist().await?;
    let length = Duration::from_secs(bench.arguments.count(8) as u64);
    let rounds = bench
        .rounds(&diarist, async |target| turns(target, length).await)
        .await?;
    let (median, tail) = (
        |load: &Load| load.whole(0.5),
        |load: &Load| load.whole(0.99),
    );
    let name = "32 warm of 100 KB, 300/s";
    let mut findings = vec![
        Finding::judged(
            format!("{name}: added / nginx's, p50"),
            each(&rounds, |round| round.ratio(median)),
            Goal::at_most(2.0, 1.3),
        ),
        Finding::judged(
            format!("{name}: added / nginx's, p99"),
            each(&rounds, |round| round.ratio(tail)),
            Goal::at_most(4.0, 2.0),
        ),
    ];
    findings.extend(per_target(&rounds, &format!("{name}: p50 µs"), median));
    findings.extend(per_target(&rounds, &format!("{name}: p99 µs"), tail));
    Ok(findings)
}

/// Two turns make the conversations known; what they cause is waited for. Then the clock runs.
async fn turns(target: &Target<'_>, length: Duration) -> anyhow::Result<Load> {
    let new = || Conversation::grown(KEY, false, BYTES);
    let mut conversations: Vec<_> = (0..CONVERSATIONS).map(|_| new()).collect();
    for _ in 0..2 {
        let answers = conversations.iter().map(|_| Answer::at_once());
        let answers: Vec<Answer> = answers.collect();
        let turns = conversations.iter().zip(&answers);
        let requests = turns.map(|(conversation, answer)| conversation.request(*answer));
        closed(target.address, 2, requests.collect(), PHASE).await?;
        for (conversation, answer) in conversations.iter_mut().zip(answers) {
            conversation.next_turn(answer);
        }
        target.quiet().await?;
    }
    let period = Duration::from_secs_f64(CONVERSATIONS as f64 / REQUESTS_PER_SECOND);
    paced(target.address, &mut conversations, period, length).await
}
