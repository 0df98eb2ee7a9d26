//! What holds however many are at work at once: scopes, conversations, workers, processes.

use std::time::Duration;

use diarist::memory::advance::{Action, ChainState, advance};
use diarist::memory::{PartId, PartMeta};

use super::Check;
use super::buffering::{chunks, nodes, policy, root, span};
use super::configuration::refused;
use super::hand::{Client, Ground, Process, config, facts, others, run};

pub const CHECKS: &[Check] = &[
    (&[8], || run(user_memory_does_not_change_buffering())),
    (&[80], || run(every_message_is_sent_raw_or_observed())),
    (&[138], || {
        run(the_section_of_other_conversations_omits_the_own_conversation());
    }),
    (&[146], || {
        run(the_order_of_outcomes_does_not_change_decisions());
    }),
    (&[147], || run(two_processes_observe_each_range_once())),
];

const BUFFER: &str = "MEMORY__OBSERVATION__BUFFER_TOKENS";

const USERS: [(&str, &str); 4] = [
    ("MEMORY__SCOPE", "resource"),
    ("MEMORY__OTHER_CONVERSATIONS", "900"),
    ("IDENTITY__RESOURCE__HEADER", "x-user"),
    ("IDENTITY__RESOURCE__SET_BY", "application"),
];

/// Published, what is explicit is refused, and what is not is silently off.
async fn user_memory_does_not_change_buffering() {
    for buffer in [None, Some("700")] {
        let written: Vec<_> = buffer.map(|buffer| (BUFFER, buffer)).into_iter().collect();
        let of_a_user: Vec<_> = written.iter().chain(&USERS).copied().collect();
        let sizes = [&written, &of_a_user].map(|written| {
            assert_eq!(refused(written), [""; 0]);
            config(written).memory.policy.buffer_tokens
        });
        assert_eq!(sizes[0], sizes[1], "{buffer:?}");
        let mut plays = Vec::new();
        for written in [&written, &of_a_user] {
            let ground = Ground::new(written);
            let mut process = ground.process().await;
            let mut client = Client::new("ada");
            let mut raw = Vec::new();
            for _ in 0..12 {
                let calls = process.model.calls();
                let (sent, _) = process.turn(&mut client).await;
                assert_eq!(process.model.calls(), calls, "nobody waits");
                raw.push(sent.snapshot().map_or(0, |sent| sent.meta.to_count));
                if raw.last() == Some(&0) && raw.len() == 4 {
                    let jobs = ground.number("SELECT count(*) FROM jobs").await;
                    let parts = ground.number("SELECT count(*) FROM parts").await;
                    assert!(jobs + parts > 0, "observed before the threshold");
                }
                process.work().await;
            }
            plays.push((raw, ground.chunks().await));
        }
        assert!(plays[0].1.len() > 4, "{:?}", plays[0]);
        assert_eq!(plays[0], plays[1], "{buffer:?}");
    }
}

/// Whatever is at work meanwhile.
async fn every_message_is_sent_raw_or_observed() {
    let ground = Ground::new(&[]);
    let mut process = ground.process().await;
    let mut client = Client::new("ada");
    let mut working = None;
    let mut cuts = Vec::new();
    for turn in 0..40 {
        client.asks();
        let sent = process.goes_out(&client).await;
        let raw = client.sees_all(&sent);
        cuts.push(client.messages.len() - raw);
        // A job is claimed in one turn and stored in another, or before the request is recorded.
        if working.is_none() {
            working = process.hand.claim().await;
        }
        if let Some(job) = working.take_if(|_| turn % 3 != 0) {
            let written = process.hand.call_model(&job).await;
            let outcome = process.hand.finish(&job, written).await;
            process.answered(&mut client, &sent).await;
            process.hand.on_outcome(outcome).await;
            process.work().await;
        } else {
            process.answered(&mut client, &sent).await;
        }
        // One that says the last thing otherwise, and one that goes back.
        if turn % 5 == 4 {
            let mut edited = client.clone();
            edited.messages.pop();
            edited.asks();
            edited.sees_all(&process.goes_out(&edited).await);
            edited.messages.truncate(turn | 1);
            edited.sees_all(&process.goes_out(&edited).await);
        }
    }
    cuts.dedup();
    assert!(cuts.len() > 3, "{cuts:?}");
}

async fn the_section_of_other_conversations_omits_the_own_conversation() {
    let ground = Ground::new(&USERS);
    let mut process = ground.process().await;
    let mut clients = ["ada", "bob"].map(Client::new);
    let mut peer_counts = [0, 0];
    for _ in 0..12 {
        for own in [0, 1] {
            let (name, other) = (clients[own].name, clients[1 - own].name);
            let (sent, _) = process.turn(&mut clients[own]).await;
            peer_counts[own] += count_peer_facts(&sent, name, other);
            process.work().await;
        }
    }
    assert!(peer_counts[0] > 0 && peer_counts[1] > 0, "{peer_counts:?}");
    // By name, where its beginning is another; by lineage, where it is named otherwise.
    let mut anew = Client::new("cyd");
    anew.thread = "bob";
    let mut fork = clients[1].clone();
    fork.messages.truncate(16);
    (fork.name, fork.thread) = ("fay", "fork");
    for mut client in [anew, fork] {
        let mut peer_count = 0;
        for _ in 0..12 {
            let (sent, _) = process.turn(&mut client).await;
            count_peer_facts(&sent, client.name, "ada");
            peer_count += count_peer_facts(&sent, "bob", "ada");
            process.work().await;
        }
        assert!(peer_count > 0, "{}", client.name);
    }
}

/// Whether `sent` tells something of `other`; of `own` it must not.
fn count_peer_facts(sent: &diarist::proxy::DryRun, own: &str, other: &str) -> usize {
    let section = others(sent);
    let has_facts =
        |name: &str| facts(&section).any(|fact| fact.starts_with(&format!("fact-{name}-")));
    assert!(!has_facts(own), "{own}: {section}");
    usize::from(has_facts(other))
}

/// All orders of so many.
fn orders(count: usize) -> Vec<Vec<usize>> {
    let Some(last) = count.checked_sub(1) else {
        return vec![Vec::new()];
    };
    let mut all = Vec::new();
    for order in orders(last) {
        for at in 0..count {
            let mut order = order.clone();
            order.insert(at, last);
            all.push(order);
        }
    }
    all
}

/// Three ranges are observed; the recorder hears of them in each of six orders, between requests.
async fn the_order_of_outcomes_does_not_change_decisions() {
    // What is decided does not depend on it, also where somebody else observed another cut.
    let (nodes, policy) = (nodes(&[10_000; 3]), policy(30_000, 10_000, 0));
    let mut written = chunks(&nodes);
    written.push(PartMeta {
        id: PartId(9),
        span: span(&nodes, 0, 4),
        message_tokens: 20_000,
        ..written[0].clone()
    });
    let steps = orders(4).into_iter().map(|order| {
        let parts: Vec<PartMeta> = order.iter().map(|at| written[*at].clone()).collect();
        let path = ChainState {
            root: root(),
            nodes: &nodes,
            parts: &parts,
            snapshots: &[],
            jobs: &[],
        };
        (advance(&path, &policy), order)
    });
    let steps: Vec<_> = steps.collect();
    let plans = |step: &Action| matches!(step, Action::Snapshot(_));
    assert!(steps[0].0.iter().any(plans));
    for (step, order) in &steps {
        assert_eq!(*step, steps[0].0, "{order:?}");
    }

    let mut first = None;
    for order in orders(3) {
        let ground = Ground::new(&[]);
        let mut process = ground.process().await;
        let mut client = Client::new("ada");
        for _ in 0..5 {
            process.turn(&mut client).await;
        }
        let mut outcomes = Vec::new();
        while let Some(job) = process.hand.claim().await {
            let written = process.hand.call_model(&job).await;
            outcomes.push(Some(process.hand.finish(&job, written).await));
        }
        assert_eq!(outcomes.len(), 3);
        let mut covered = 0;
        for at in &order {
            process.hand.on_outcome(outcomes[*at].take().unwrap()).await;
            // No gap is ever sent, and nothing that was covered is raw again.
            let (sent, _) = process.turn(&mut client).await;
            let now = sent.snapshot().map_or(0, |sent| sent.meta.to_count);
            assert!(now >= covered, "{order:?}");
            covered = now;
        }
        process.work().await;
        for _ in 0..2 {
            process.turn(&mut client).await;
            process.work().await;
        }
        client.asks();
        let sent = process.goes_out(&client).await;
        let raw = client.sees_all(&sent);
        assert!(client.messages.len() - raw >= 6, "{order:?}: {raw} raw");
        let chunks = ground.chunks().await;
        assert!(chunks.is_sorted_by(|one, next| one.1 == next.0));
        let first = first.get_or_insert_with(|| chunks.clone());
        assert_eq!(*first, chunks, "{order:?}");
    }
}

/// A conversation whose requests go to one process or the other, and one of them dies at work.
async fn two_processes_observe_each_range_once() {
    let ground = Ground::new(&[]);
    let mut first = ground.process().await;
    let mut second = ground.process().await;
    let mut client = Client::new("ada");
    let (mut calls, mut held) = (0, None);
    let mut cuts = Vec::new();
    for turn in 0..36 {
        let (one, two) = (&mut first, &mut second);
        let (one, two) = if turn % 3 == 1 {
            (two, one)
        } else {
            (one, two)
        };
        let (sent, raw) = one.turn(&mut client).await;
        cuts.push(sent.history().len() - raw);
        // Both look for work at once: what one holds the other does not get.
        let (mine, other) = tokio::join!(one.hand.claim(), two.hand.claim());
        if let (Some(mine), Some(other)) = (&mine, &other) {
            assert_ne!(mine.spec.span, other.spec.span);
        }
        for (process, job) in [(one, mine), (two, other)] {
            let Some(job) = job else { continue };
            if turn == 12 && held.is_none() {
                held = Some(job.spec.span);
                continue;
            }
            calls += 1;
            let written = process.hand.call_model(&job).await;
            let outcome = process.hand.finish(&job, written).await;
            process.hand.on_outcome(outcome).await;
        }
        if turn == 12 {
            // With a job in its hands: it is nobody's until its lease has run out.
            first = ground.process().await;
            ground.clock.advance(Duration::from_secs(59));
        }
        if turn == 20 {
            ground.clock.advance(Duration::from_secs(2));
        }
    }
    for process in [&mut first, &mut second] {
        calls += done(process).await;
    }
    assert!(held.is_some());
    cuts.dedup();
    assert!(cuts.len() > 3, "{cuts:?}");
    assert_eq!(ground.number("SELECT count(*) FROM lineages").await, 1);
    assert_eq!(ground.number("SELECT count(*) FROM jobs").await, 0);
    let chunks = ground.chunks().await;
    assert_eq!(chunks.len(), calls, "each range once, whoever observed it");
    assert!(chunks[0].0 == 0 && chunks.is_sorted_by(|one, next| one.1 == next.0));
}

async fn done(process: &mut Process) -> usize {
    let mut jobs = 0;
    while process.job().await.is_some() {
        jobs += 1;
    }
    jobs
}
