//! A log in which everything is important: nothing of it may be lost, and there is no room for all.

use diarist::provider::{Ask, Options, Part, Reply};
use serde_json::{Value, json};

use crate::rig::Rig;
use crate::tools::metric;

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
fn observer(ask: &Ask<'_>) -> Reply {
    let shown = ask.text_of("user").join("\n");
    let history = shown.split("<history-").nth(1).unwrap();
    let lines = history.match_indices("Report ").flat_map(|(at, report)| {
        let turn = &history[at + report.len()..][..4];
        reading(turn.parse().unwrap())
    });
    let lines: Vec<String> = lines.chain(["* 🟢 It went on.".to_owned()]).collect();
    Reply::say(format!(
        "<observations>\n{}\n</observations>",
        lines.join("\n")
    ))
}

/// Keeps the first words of the newest entries, whatever it is told.
fn reflector(ask: &Ask<'_>) -> Reply {
    let shown = ask.text_of("user").join("\n");
    let shown = shown.split("<history-").nth(1).unwrap();
    let log = shown.split("</history-").next().unwrap();
    let lines: Vec<&str> = log.lines().filter(|line| line.starts_with("* ")).collect();
    let newest = &lines[lines.len() - lines.len().min(24)..];
    let short = newest.iter().map(|line| {
        let words: Vec<&str> = line.split(' ').take(4).collect();
        words.join(" ")
    });
    Reply::say(format!(
        "<observations>\n{}\n</observations>",
        short.collect::<Vec<_>>().join("\n")
    ))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_of_important_things_alone_is_condensed_and_what_is_lost_is_told() {
    let rig = Rig::with(
        Options::default(),
        &[
            ("MEMORY__OBSERVATION__MESSAGE_TOKENS", "2000"),
            ("MEMORY__REFLECTION__OBSERVATION_TOKENS", "1000"),
        ],
    )
    .await;
    rig.provider.script(Part::Observer, observer);
    rig.provider.script(Part::Reflector, reflector);
    let before = rig.metric("diarist_reflections_lossy_total").await;
    for turn in 1..=TURNS {
        assert_eq!(rig.send(&body(turn)).await.status, 200);
        rig.quiet().await;
    }

    let largest = rig.number("SELECT max(tokens) FROM snapshots").await;
    assert!(
        largest <= 1_200,
        "{largest} tokens of observations are sent"
    );
    let of = async |condition: &str| {
        let query = format!("SELECT count(*) FROM parts WHERE kind = 'reflection' AND {condition}");
        let mut database = rig.database().await;
        sqlx::query_scalar::<_, i64>(sqlx::AssertSqlSafe(query))
            .fetch_one(&mut database)
            .await
            .unwrap()
    };
    assert_eq!(of("model = 'code'").await, 0, "a Reflector did it");
    let written = of("model <> 'code'").await;
    assert!(written > 2, "{written}");
    // All that is important was counted, and what is gone of it.
    let lossy = of("(retention ->> '$.high[0]') < 0.95 * (retention ->> '$.high[1]')").await;
    assert!(lossy > 0);
    let page = rig.metrics().await;
    let told = metric(&page, "diarist_reflections_lossy_total") - before;
    assert!(told >= lossy as f64, "{told} of {lossy}");

    // The newest entries of the newest reflection's sources are there word for word, older ones are not.
    let mut database = rig.database().await;
    let text = "SELECT text FROM parts WHERE kind = 'reflection' ORDER BY id DESC LIMIT 1";
    let text: String = sqlx::query_scalar(text)
        .fetch_one(&mut database)
        .await
        .unwrap();
    let reaches = "SELECT to_count FROM parts WHERE kind = 'reflection' ORDER BY id DESC LIMIT 1";
    let reaches = usize::try_from(rig.number(reaches).await).unwrap();
    let newest = reaches.div_ceil(2);
    let whole = |turn: usize| {
        reading(turn)
            .iter()
            .all(|line| text.contains(line.as_str()))
    };
    let kept: Vec<usize> = (1..=newest).filter(|turn| whole(*turn)).collect();
    println!("of {newest} turns {kept:?} are whole; {written} reflections, {lossy} of them lossy");
    assert!(kept.len() > 3, "{text}");
    let oldest = newest + 1 - kept.len();
    assert_eq!(kept, (oldest..=newest).collect::<Vec<_>>(), "{text}");
    assert!(!whole(1));
}
