//! How cost grows: with the size of a body, the number of connections, of messages, of stored conversations.

use crate::conversation::{Answer, Conversation, KEY};
use crate::load::{Load, PHASE, closed};
use crate::output;
use crate::rounds::{Bench, Round, new_conversations};
use crate::rows::stored::Filling;
use crate::stand::Kind;
use crate::statistics::Summary;

const SIZES: [usize; 6] = [1_000, 10_000, 100_000, 1_000_000, 4_000_000, 8_000_000];
const CONNECTIONS: [usize; 6] = [1, 4, 16, 64, 128, 256];
const MESSAGES: [usize; 5] = [10, 100, 1_000, 5_000, 20_000];
const STORED: [usize; 4] = [1_000, 10_000, 100_000, 1_000_000];

/// Measures and prints all of them.
pub async fn measure(bench: &Bench) -> anyhow::Result<()> {
    sizes(bench).await?;
    connections(bench).await?;
    messages(bench).await?;
    if bench.arguments.stores_many() {
        conversations(bench).await?;
    }
    Ok(())
}

async fn sizes(bench: &Bench) -> anyhow::Result<()> {
    title("new conversations, c=1", "bytes");
    for bytes in SIZES {
        let count = bench.arguments.count((20_000_000 / bytes).clamp(4, 300));
        let diarist = bench.stand.diarist().await?;
        let rounds = bench.rounds(&diarist, async |target| {
            new_conversations(target, 1, count, bytes, PHASE).await
        });
        line(bytes, &rounds.await?);
    }
    Ok(())
}

async fn connections(bench: &Bench) -> anyhow::Result<()> {
    title("new conversations of 1 KB", "connections");
    for connections in CONNECTIONS {
        let count = bench.arguments.count(3_000);
        let diarist = bench.stand.diarist().await?;
        let rounds = bench.rounds(&diarist, async |target| {
            new_conversations(target, connections, count, 1_000, PHASE).await
        });
        line(connections, &rounds.await?);
    }
    Ok(())
}

/// Each conversation takes ten turns; the first one, which is new, is among them.
async fn messages(bench: &Bench) -> anyhow::Result<()> {
    title("ten turns of one conversation, c=1", "messages");
    for messages in MESSAGES {
        let diarist = bench.stand.diarist().await?;
        let rounds = bench.rounds(&diarist, async |target| {
            let mut conversation = Conversation::counted(KEY, messages);
            let mut turns = Vec::new();
            for _ in 0..10 {
                let answer = Answer::at_once();
                turns.push(conversation.request(answer));
                conversation.next_turn(answer);
            }
            closed(target.address, 1, turns, PHASE).await
        });
        line(messages, &rounds.await?);
    }
    Ok(())
}

async fn conversations(bench: &Bench) -> anyhow::Result<()> {
    output("\n### new and continued conversations of 1 KB, c=8\n");
    output("| stored | p50 µs | p99 µs | CPU µs |");
    output("|--:|--:|--:|--:|");
    let mut filling = Filling::new(bench.stand.diarist().await?);
    let most = bench.arguments.conversations();
    for count in STORED.into_iter().filter(|count| *count <= most) {
        filling.fill(count).await?;
        filling.diarist.target().quiet().await?;
        let load = filling.requests(2_000).await?;
        let cost = load.processor / load.count() as f64;
        let (median, tail) = (load.whole(0.5), load.whole(0.99));
        output(&format!(
            "| {} | {median:.0} | {tail:.0} | {cost:.0} |",
            filling.stored
        ));
    }
    Ok(())
}

fn title(name: &str, axis: &str) {
    output(&format!("\n### {name}\n"));
    output(&format!(
        "| {axis} | direct p50 µs | nginx added | pass-through added | diarist added | diarist p99 µs | diarist CPU µs | nginx CPU µs |"
    ));
    output("|--:|--:|--:|--:|--:|--:|--:|--:|");
}

fn line(place: usize, rounds: &[Round]) {
    let median = |value: &dyn Fn(&Round) -> f64| {
        let values: Vec<f64> = rounds.iter().map(value).collect();
        format!("{:.0}", Summary::new(&values).median)
    };
    let load = |kind: Kind, value: fn(&Load) -> f64| {
        median(&|round: &Round| round.load(kind).map_or(f64::NAN, value))
    };
    let added = |kind: Kind| median(&|round: &Round| round.added(kind, |load| load.whole(0.5)));
    let cost = |load: &Load| load.processor / load.count() as f64;
    let cells = [
        place.to_string(),
        load(Kind::Direct, |load| load.whole(0.5)),
        added(Kind::Nginx),
        added(Kind::Passthrough),
        added(Kind::Diarist),
        load(Kind::Diarist, |load| load.whole(0.99)),
        load(Kind::Diarist, cost),
        load(Kind::Nginx, cost),
    ];
    output(&format!("| {} |", cells.join(" | ")));
}
