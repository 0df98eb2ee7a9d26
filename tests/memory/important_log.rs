//! A log in which everything is important: nothing of it may be lost, and there is no room for all.

use diarist_provider::{CallerKind, Options, Reply, ScriptInput};
use serde_json::{Value, json};

use crate::memory::rig::Rig;

const TURNS: usize = 45;

/// What is said in a turn, and what is written down of it: two lines, one of high priority and one of
/// something done.
fn reading(turn: usize) -> [String; 2] {
    [
        format!(
            "* 🔴 Station QX-{turn:04} reads {} litres under the lid",
            51_000 + 17 * turn
        ),
        format!(
            "* ✅ Valve ZV-{turn:04} was set to {} turns and sealed again",
            82_000 + 13 * turn
        ),
    ]
}

fn body(turn: usize) -> Value {
    let mut messages =
        vec![json!({"role": "system", "content": "You keep the books of a waterworks."})];
    for number in 1..=turn {
        let filler = format!("what came in part {number} was weighed and kept. ").repeat(20);
        messages.push(json!({"role": "user", "content": format!("Report {number:04}. {filler}")}));
        if number < turn {
            messages.push(json!({"role": "assistant", "content": format!("Noted. {filler}")}));
        }
    }
    json!({"model": "gpt-test", "messages": messages})
}

/// Writes nothing but what is important.
fn observer(ask: &ScriptInput<'_>) -> Reply {
    let shown = ask.texts_by_role("user").join("\n");
    let history = shown.split("<history-").nth(1).unwrap();
    let lines = history.match_indices("Report ").flat_map(|(at, report)| {
        let turn = &history[at + report.len()..][..4];
        reading(turn.parse().unwrap())
    });
    let lines: Vec<String> = lines.chain(["* 🟢 It went on.".to_owned()]).collect();
    Reply::text(format!(
        "<observations>\n{}\n</observations>",
        lines.join("\n")
    ))
}

/// Keeps the first words of the newest entries, whatever it is told.
fn gutting(ask: &ScriptInput<'_>) -> Reply {
    let lines = entries(ask);
    let newest = &lines[lines.len() - lines.len().min(24)..];
    answer(newest.iter().map(|line| {
        let words: Vec<&str> = line.split(' ').take(4).collect();
        words.join(" ")
    }))
}

/// Says each entry in few words, but forgets every third of the older ones.
fn terse(ask: &ScriptInput<'_>) -> Reply {
    let lines = entries(ask);
    let newest = lines.len().saturating_sub(8);
    let kept = lines
        .iter()
        .enumerate()
        .filter(|(at, _)| at % 3 != 1 || *at >= newest);
    answer(kept.map(|(_, line)| {
        let says = |word: &&str| word.contains(|c: char| c.is_ascii_digit());
        let mark = line.split(' ').take(2);
        let words: Vec<&str> = mark.chain(line.split(' ').filter(says)).collect();
        words.join(" ")
    }))
}

fn entries(ask: &ScriptInput<'_>) -> Vec<String> {
    let shown = ask.texts_by_role("user").join("\n");
    let shown = shown.split("<history-").nth(1).unwrap();
    let log = shown.split("</history-").next().unwrap();
    let lines = log.lines().filter(|line| line.starts_with("* "));
    lines.map(str::to_owned).collect()
}

fn answer(lines: impl Iterator<Item = String>) -> Reply {
    Reply::text(format!(
        "<observations>\n{}\n</observations>",
        lines.collect::<Vec<_>>().join("\n")
    ))
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_log_of_important_lines_is_condensed_and_its_loss_is_counted() {
    lossy(gutting, TURNS, "").await;
}

/// Where a model loses less than code, its words are taken, with the newest of what it lost put back.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow"]
async fn a_reflector_that_loses_less_than_code_is_preferred() {
    lossy(terse, 2 * TURNS, "AND model <> 'code'").await;
}

async fn lossy(reflector: fn(&ScriptInput<'_>) -> Reply, turns: usize, by: &str) {
    let rig = Rig::with(
        Options::default(),
        &[
            ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "2000"),
            ("MEMORY__REFLECTION__OBSERVATION_TOKENS", "1000"),
        ],
    )
    .await;
    rig.provider.script(CallerKind::Observer, observer);
    rig.provider
        .script(CallerKind::Reflector, move |ask: &ScriptInput<'_>| {
            reflector(ask)
        });
    let before = rig.metric("diarist_reflections_lossy_total").await;
    for turn in 1..=turns {
        assert_eq!(rig.send(&body(turn)).await.status, 200);
        rig.quiet().await;
    }

    let largest = rig.number("SELECT max(tokens) FROM snapshots").await;
    assert!(
        largest <= 1_200,
        "{largest} tokens of observations are sent"
    );
    let query = format!(
        "SELECT count(*) FROM parts WHERE kind = 'reflection' {by}
         AND (retention ->> '$.high[0]') < 0.95 * (retention ->> '$.high[1]')"
    );
    let mut database = rig.database().await;
    let lossy: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(query))
        .fetch_one(&mut database)
        .await
        .unwrap();
    // All that is important was counted, and what is gone of it.
    assert!(lossy > 0, "{lossy}");
    let lossy_metric = rig.metric("diarist_reflections_lossy_total").await - before;
    assert!(lossy_metric >= lossy as f64, "{lossy_metric} of {lossy}");

    // In the newest reflection the newest facts stand, and the oldest do not all.
    let newest =
        "SELECT text, to_count FROM parts WHERE kind = 'reflection' ORDER BY id DESC LIMIT 1";
    let (text, reaches): (String, i64) = sqlx::query_as(newest)
        .fetch_one(&mut database)
        .await
        .unwrap();
    let newest = usize::try_from(reaches).unwrap().div_ceil(2);
    let whole = |turn: usize| {
        let lines = reading(turn).join(" ");
        let mut facts = lines
            .split(' ')
            .filter(|word| word.contains(|c: char| c.is_ascii_digit()));
        facts.all(|fact| text.contains(fact))
    };
    let kept: Vec<usize> = (1..=newest).filter(|turn| whole(*turn)).collect();
    println!("of {newest} turns {kept:?} are whole; {lossy} lossy reflections {by}");
    // A line without a time that is put back stands at the end of its day, which is one day here: what is
    // older by its place is not always older.
    let last: Vec<usize> = (newest - 2..=newest).collect();
    assert!(kept.ends_with(&last), "{kept:?}: {text}");
    let of_last_ten = kept.iter().filter(|turn| **turn + 10 > newest);
    assert!(of_last_ten.count() >= 7, "{kept:?}: {text}");
    assert!(kept.len() < newest, "{text}");
}
