//! Thousands of strangers whom the upstream does not know: they leave no row, no label, no memory.

use std::time::Duration;

use diarist_provider::{Behaviour, CallerKind, Options, Provider};
use futures_util::StreamExt as _;
use serde_json::json;

use crate::support::skipped::skipped;
use crate::tenants::program::Program;
use crate::tenants::search;

/// How many come.
const STRANGERS: usize = 10_000;

/// Of these the first may fill what is filled once: pools, tables of labels, buffers.
const FIRST: usize = 2_000;

/// What each of the rest may add, in bytes. Less shows nothing: allocators round.
const GROWTH: u64 = 2 * 1024;

/// Each with a key, a user, a conversation and a model of its own.
async fn strangers(program: &Program, numbers: std::ops::Range<usize>) {
    let client = reqwest::Client::new();
    let asking = numbers.map(|number| {
        let (client, url) = (client.clone(), program.chat());
        async move {
            let history: Vec<_> = (0..=number % 3)
                .flat_map(|turn| {
                    let question = format!("Stranger {number} asks {turn} things. ").repeat(8);
                    [
                        json!({"role": "user", "content": question}),
                        json!({"role": "assistant", "content": "Yes."}),
                    ]
                })
                .chain([json!({"role": "user", "content": format!("Who is {number}?")})])
                .collect();
            let answer = client
                .post(url)
                .header("authorization", format!("Bearer sk-random-{number:08}"))
                .header("x-diarist-thread", format!("thread-{number}"))
                .header("x-diarist-resource", format!("user-{number}"))
                .json(&json!({"model": format!("model-{number}"), "messages": history}))
                .send()
                .await
                .unwrap();
            assert_eq!(answer.status(), 401);
            answer.bytes().await.unwrap();
        }
    });
    futures_util::stream::iter(asking)
        .for_each_concurrent(48, |asking| asking)
        .await;
}

/// Names and labels of a metrics page.
fn series(page: &str) -> Vec<String> {
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    let names = lines.filter_map(|line| Some(line.rsplit_once(' ')?.0.to_owned()));
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn requests_with_unknown_keys_leave_no_row_label_or_memory() {
    let (first, all) = (FIRST, STRANGERS);
    let options = Options {
        keep_bodies: false,
        ..Options::default()
    };
    let provider = Provider::start(options).await.unwrap();
    provider.inject(CallerKind::Actor, Behaviour::failing(401));
    let program = Program::start(&provider, "info").await;
    strangers(&program, 0..first).await;
    // Told from time to time, whether anybody came or not: it may not come in between.
    tokio::time::timeout(Duration::from_mins(2), async {
        while !program.metrics().await.contains("\ndiarist_jobs_open ") {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await
    .expect("the open jobs are counted");
    let before = (series(&program.metrics().await), program.resident());
    strangers(&program, first..all).await;
    let after = (series(&program.metrics().await), program.resident());
    assert!(before.0.len() > 5, "{:?}", before.0);
    assert_eq!(before.0, after.0, "labels");
    println!(
        "resident after {first}: {:?}, after {all}: {:?}",
        before.1, after.1
    );
    match (before.1, after.1) {
        (Some(before), Some(after)) => assert!(
            after < before + GROWTH * (all - first) as u64,
            "{before} became {after}"
        ),
        // Linux says in /proc how much memory a process holds.
        unread if cfg!(target_os = "linux") => panic!("the memory cannot be read: {unread:?}"),
        _ => skipped("this system has no /proc; the growth of the process is not checked"),
    }
    assert_eq!(provider.record_for(CallerKind::Actor).len(), all);
    let left = program.stop().await;
    let counted = search::counted(&left.file).await;
    assert!(counted.len() > 10, "{counted:?}");
    let held: Vec<_> = counted.iter().filter(|(_, rows)| **rows > 0).collect();
    assert!(held.is_empty(), "{held:?}");
    assert!(!search::contains(&left.logs, b"sk-random"));
    assert!(!search::contains(&left.audit, b"sk-random"));
}
