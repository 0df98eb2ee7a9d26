//! What the conversations of one user are told of each other: written down when one has learned
//! something, put together when another is to be told.
//!
//! Only where the operator vouches for who the user is; always in the background, by the recorder. A
//! request only finds what was prepared. What is chosen is decided by [`crate::memory::others`].

use std::sync::Arc;

use jiff::tz::TimeZone;

use super::recorder::failed;
use super::track::Track;
use super::{Settings, Shop};
use crate::history::{Link, Scope};
use crate::memory::others::{Bound, Digest, choose, digest};
use crate::memory::render::others::{Conversation, opener, section};
use crate::memory::{Cause, Node, Others, PartId, dates};
use crate::store::{NewSnapshot, StoreError};
use crate::tokens::TokenCounter;

/// What a conversation is told of the others.
#[derive(Debug)]
pub(super) struct Told {
    /// As it stands in a block.
    pub(super) section: String,
    /// What it holds; bound to nobody yet.
    pub(super) others: Others,
}

/// What the conversation of `track` is told of the others with its next snapshot, bound to it; it goes under
/// `key`, or else under the name it began with, and `settled` is the last message it has for good. What
/// cannot be read is not told.
pub(super) async fn of(
    shop: &Shop,
    track: &Track,
    key: Option<&str>,
    settled: Option<Node>,
) -> Option<Told> {
    let settings = shop.settings.now();
    let budget = settings.others.filter(|_| track.shared)?;
    let zone = track.zone.as_ref().unwrap_or(&settings.zone);
    let key = key.or(track.key());
    let own = track.lineages();
    let composed = compose(shop, &track.scope, (&own, key), budget, zone).await;
    let mut told = composed.unwrap_or_else(|error| {
        failed("what other conversations know could not be read", &error);
        None
    })?;
    let settled = settled?;
    told.others.bound = Some(Bound {
        link: settled.link,
        count: settled.count,
        key: key.map(str::to_owned),
    });
    Some(told)
}

/// What the latest conversations know, but for the lineages `but` and those under `key`, in at most
/// `budget` tokens; `None` where there is nothing to tell.
pub(super) async fn compose(
    shop: &Shop,
    scope: &Scope,
    (but, key): (&[i64], Option<&str>),
    budget: u32,
    zone: &TimeZone,
) -> Result<Option<Told>, StoreError> {
    let digests = shop.store.told(scope, but, key).await?;
    if digests.is_empty() {
        return Ok(None);
    }
    let (counter, zone) = (Arc::clone(&shop.counter), zone.clone());
    let written = tokio::task::spawn_blocking(move || write(&digests, budget, &zone, &*counter));
    Ok(written.await.unwrap_or_default())
}

fn write(
    digests: &[Digest],
    budget: u32,
    zone: &TimeZone,
    counter: &dyn TokenCounter,
) -> Option<Told> {
    let left = budget.checked_sub(counter.count(&section(&[])))?;
    let chosen = choose(digests, left, |line| counter.count(line));
    let told: Vec<(&Digest, &str)> = chosen
        .iter()
        .map(|(index, text)| (&digests[*index], text.as_str()))
        .collect();
    if told.is_empty() {
        return None;
    }
    let conversations: Vec<Conversation<'_>> = told
        .iter()
        .map(|(digest, text)| Conversation {
            title: digest.title.as_deref(),
            last: dates::date(digest.at_ms, zone),
            text,
        })
        .collect();
    let section = section(&conversations);
    let others = Others {
        lineages: told.iter().map(|(digest, _)| digest.lineage).collect(),
        keys: told
            .iter()
            .filter_map(|(digest, _)| digest.key.clone())
            .collect(),
        tokens: counter.count(&section),
        bound: None,
    };
    Some(Told { section, others })
}

/// Writes down what others may be told of `lineage`, whose log is `log`, and prepares what a
/// conversation of its user begins with from now on.
pub(super) async fn tell(
    shop: &Shop,
    scope: &Scope,
    lineage: i64,
    log: &[PartId],
    budget: u32,
    settings: &Settings,
) -> Result<(), StoreError> {
    let parts = shop.store.parts(scope, log).await?;
    let counter = Arc::clone(&shop.counter);
    let written = tokio::task::spawn_blocking(move || {
        let texts: Vec<&str> = parts.iter().map(|part| part.body.text.as_str()).collect();
        digest(&texts, budget, |line| counter.count(line))
    });
    let Ok(text) = written.await else {
        return Ok(());
    };
    shop.store.tell(scope, lineage, &text).await?;
    let everybody = (&[][..], None);
    let Some(told) = compose(shop, scope, everybody, budget, &settings.zone).await? else {
        return Ok(());
    };
    let root = Link::root(scope);
    let new = NewSnapshot {
        to: root,
        to_count: 0,
        pin: None,
        parts: Vec::new(),
        tokens: 0,
        cause: Cause::Others,
        segments: opener(told.section),
        placement: settings.placed().to_owned(),
        others: Some(Arc::new(told.others)),
        made_with: serde_json::json!({ "other_conversations": budget }).to_string(),
        tip: root,
        tip_count: 0,
        at_once: true,
        at_ms: shop.clock.now_ms(),
    };
    let opener = shop.store.commit_snapshot(scope, &new).await?;
    // Its text is read by the first request that wants it: most are never sent.
    shop.recall.learn(scope, &opener.meta);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::Estimate;

    #[test]
    fn what_is_told_stays_within_its_budget_and_names_whom_it_tells_of() {
        let text: String = (0..200)
            .map(|n| format!("* 🟡 (10:00) User said something about thing number {n}\n"))
            .collect();
        let digests: Vec<Digest> = (0..3)
            .map(|n| Digest {
                lineage: 9 - n,
                key: (n == 1).then(|| "trip".to_owned()),
                title: None,
                at_ms: 0,
                text: text.clone(),
            })
            .collect();
        let told = write(&digests, 1_500, &TimeZone::UTC, &Estimate).expect("something");
        assert_eq!(told.others.lineages, [7, 8, 9], "the latest stands last");
        assert_eq!(told.others.keys, ["trip"]);
        assert!(told.others.tokens <= 1_500, "{}", told.others.tokens);
        assert!(told.others.tokens > 1_000, "{}", told.others.tokens);
        assert!(write(&digests, 100, &TimeZone::UTC, &Estimate).is_none());
    }
}
