//! Clients that dropped their beginning once, beside one that never did; and what such clients, or a flood, do to the
//! small requests of another tenant.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::client::Connection;
use crate::conversation::{Answer, Conversation, Outgoing};
use crate::load::{Load, flood, paced};
use crate::note;
use crate::report::{Finding, Goal};
use crate::rounds::Bench;
use crate::stand::{Diarist, Kind, Target};
use crate::statistics::Summary;

/// Messages of each conversation when it is measured.
const MESSAGES: usize = 2_000;
/// Bytes of each conversation when it begins: enough that its oldest messages are observed after two more turns. Memory
/// follows a client that drops messages only if they have been observed.
const BEGINNING: usize = 60_000;
/// The turn after which observations are waited for, and then clients drop their oldest messages, once.
const DROPS_AFTER: usize = 4;
/// Messages that it drops.
const DROPPED: usize = 12;
/// The longest time in which all clients grow. What they have reached by then is measured.
const GROWTH: Duration = Duration::from_mins(5);

/// Between two turns of each long client.
const TURN: Duration = Duration::from_millis(100);
/// Between two requests of each of four small conversations: 100 a second in all.
const SMALL_TURN: Duration = Duration::from_millis(40);
/// Requests of the flood, each second, and its connections.
const FLOOD: u32 = 2_000;
const FLOOD_CONNECTIONS: u32 = 64;

const STEADY: &str = "bench-tenant-1";
const DROPPERS: [&str; 3] = ["bench-tenant-2", "bench-tenant-3", "bench-tenant-4"];
const SMALL: &str = "bench-tenant-5";
const FLOODER: &str = "bench-tenant-6";

/// A conversation with its connection.
struct Client {
    connection: Connection,
    conversation: Conversation,
}

impl Client {
    async fn new(diarist: &Diarist, key: &'static str) -> anyhow::Result<Self> {
        Ok(Self {
            connection: Connection::open(diarist.address).await?,
            conversation: Conversation::grown(key, false, BEGINNING),
        })
    }

    /// One turn; its latency in microseconds.
    async fn turn(&mut self) -> anyhow::Result<f64> {
        let answer = Answer::at_once();
        let request = self.conversation.request(answer);
        let timing = self.connection.send(&request).await?;
        self.conversation.next_turn(answer);
        Ok(timing.whole)
    }
}

pub async fn neighbours(bench: &Bench) -> anyhow::Result<Vec<Finding>> {
    let diarist = bench.stand.diarist().await?;
    let messages = bench.arguments.count(MESSAGES);
    let mut steady = Client::new(&diarist, STEADY).await?;
    let mut droppers = Vec::new();
    for key in DROPPERS {
        droppers.push(Client::new(&diarist, key).await?);
    }
    let reached = grow(&diarist, &mut steady, &mut droppers, messages).await?;
    diarist.target().quiet().await?;

    let (mut ratios, mut plain, mut dropped) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.arguments.rounds() {
        let (mut never, mut once) = (Vec::new(), Vec::new());
        for _ in 0..bench.arguments.count(30) {
            never.push(steady.turn().await?);
            once.push(droppers[0].turn().await?);
        }
        let (never, once) = (Summary::new(&never).median, Summary::new(&once).median);
        ratios.push(once / never);
        plain.push(never / 1e3);
        dropped.push(once / 1e3);
    }
    let mut findings = vec![
        Finding::judged(
            format!("dropped its beginning once / never did, {reached} messages"),
            ratios,
            Goal::at_most(1.2, 1.05),
        ),
        Finding::plain(format!("never dropped, {reached} messages: p50 ms"), plain),
        Finding::plain(format!("dropped once, {reached} messages: p50 ms"), dropped),
    ];
    let droppers = droppers.into_iter().map(|client| client.conversation);
    findings.extend(beside(bench, &diarist, droppers.collect()).await?);
    Ok(findings)
}

/// A turn of each client in its order, until they have so many messages or the time is over. Returns the messages.
async fn grow(
    diarist: &Diarist,
    steady: &mut Client,
    droppers: &mut [Client],
    messages: usize,
) -> anyhow::Result<usize> {
    let begin = Instant::now();
    let mut turns = 0;
    while steady.conversation.len() < messages && begin.elapsed() < GROWTH {
        steady.turn().await?;
        for client in droppers.iter_mut() {
            client.turn().await?;
        }
        turns += 1;
        if turns == DROPS_AFTER {
            diarist.target().quiet().await?;
            for client in droppers.iter_mut() {
                client.conversation.drop_beginning(DROPPED);
            }
        }
    }
    let reached = steady.conversation.len();
    note(&format!(
        "  {reached} messages of {messages} after {} s",
        begin.elapsed().as_secs()
    ));
    Ok(reached)
}

/// The 99th percentile of another tenant: alone, beside the long clients, beside a flood.
async fn beside(
    bench: &Bench,
    diarist: &Diarist,
    mut droppers: Vec<Conversation>,
) -> anyhow::Result<Vec<Finding>> {
    let length = Duration::from_secs(bench.arguments.count(8) as u64);
    let tail = |load: &Load| load.whole(0.99);
    let (mut alone, mut long, mut flooded) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.arguments.rounds() {
        alone.push(tail(&small(diarist.address, length).await?));
        let clients = paced(diarist.address, &mut droppers, TURN, length * 2);
        let clients = async {
            if clients.await.is_ok() {
                std::future::pending::<()>().await;
            }
        };
        long.push(tail(
            &measured_beside(&diarist.target(), length, clients).await?,
        ));
        flooded.push(tail(&beside_flood(&diarist.target(), length).await?));
    }
    let ratios = |values: &[f64]| {
        let pairs = values.iter().zip(&alone);
        pairs.map(|(value, alone)| value / alone).collect()
    };
    let goal = Goal::at_most(2.0, 1.3);
    let micros = "another tenant's p99 µs";
    let mut findings = vec![
        Finding::judged(
            "another tenant's p99: beside three such clients / alone",
            ratios(&long),
            goal,
        ),
        Finding::judged(
            format!("another tenant's p99: beside {FLOOD} new requests a second / alone"),
            ratios(&flooded),
            goal,
        ),
        Finding::plain(format!("{micros}, alone"), alone),
        Finding::plain(format!("{micros}, beside three such clients"), long),
        Finding::plain(format!("{micros}, beside a flood"), flooded),
    ];
    findings.extend(flood_elsewhere(bench, diarist, length).await?);
    Ok(findings)
}

/// What the flood does to the same small requests on the other paths: part of it is the load generator's own.
async fn flood_elsewhere(
    bench: &Bench,
    diarist: &Diarist,
    length: Duration,
) -> anyhow::Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let targets = bench.stand.targets(diarist);
    for target in targets.iter().filter(|target| target.kind != Kind::Diarist) {
        let (mut alone, mut flooded) = (Vec::new(), Vec::new());
        for _ in 0..bench.arguments.rounds() {
            alone.push(small(target.address, length).await?.whole(0.99));
            flooded.push(beside_flood(target, length).await?.whole(0.99));
        }
        let name = target.kind.name();
        let micros = format!("another tenant's p99 µs, {name}");
        findings.push(Finding::plain(format!("{micros}, alone"), alone));
        findings.push(Finding::plain(format!("{micros}, beside a flood"), flooded));
    }
    Ok(findings)
}

/// Small requests beside new ones of another tenant.
async fn beside_flood(target: &Target<'_>, length: Duration) -> anyhow::Result<Load> {
    let count = u64::from(FLOOD) * length.as_secs();
    let requests = (0..count).map(|_| flooding()).collect();
    let flood = flood(target.address, FLOOD_CONNECTIONS, requests, FLOOD);
    measured_beside(target, length, flood).await
}

/// Small requests while `noise` runs, which ends with them.
async fn measured_beside(
    target: &Target<'_>,
    length: Duration,
    noise: impl Future<Output = ()>,
) -> anyhow::Result<Load> {
    let load = tokio::select! {
        load = small(target.address, length) => load,
        () = noise => anyhow::bail!("the noise ended before the measurement"),
    };
    target.quiet().await?;
    load
}

/// Four small conversations of another tenant.
async fn small(address: SocketAddr, length: Duration) -> anyhow::Result<Load> {
    let mut conversations: Vec<_> = (0..4)
        .map(|_| Conversation::grown(SMALL, false, 1_000))
        .collect();
    paced(address, &mut conversations, SMALL_TURN, length).await
}

fn flooding() -> Outgoing {
    Conversation::grown(FLOODER, false, 1_000).request(Answer::at_once())
}
