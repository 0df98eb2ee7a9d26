//! What the conversations of one user know of each other: published when one has learned something,
//! composed when another gets a snapshot.
//!
//! Only if the operator guarantees who the user is. Everything happens in the background; a request
//! only finds what is prepared. [`crate::memory::peer_memory`] chooses the excerpts.

use std::sync::Arc;

use jiff::tz::TimeZone;

use super::base::Base;
use super::failure::log_store_failure;
use super::settings::Settings;
use super::track::Track;
use crate::history::{Link, Scope};
use crate::memory::peer_memory::{ConversationBinding, Digest, digest, select_excerpts};
use crate::memory::render::peer_memory::{PeerConversation, peer_intro, section};
use crate::memory::{Node, PartId, PeerMemory, SnapshotCause, dates};
use crate::store::{NewSnapshot, StoreError};
use crate::tokens::TokenCounter;

/// The section of a block with peer memory.
#[derive(Debug)]
pub(super) struct PeerSection {
    /// Its text inside a block.
    pub(super) section: String,
    /// Its contents, not bound to a conversation yet.
    pub(super) peer_memory: PeerMemory,
}

/// Writes and reads what the conversations of one user know of each other.
#[derive(Clone)]
pub(super) struct PeerMemories {
    base: Base,
}

impl PeerMemories {
    pub(super) fn new(base: &Base) -> Self {
        Self { base: base.clone() }
    }

    /// The section for the next snapshot of `track`, bound to its conversation. `key` is its thread
    /// key, or else the key it began with; `last_confirmed` is its last confirmed message. If the
    /// store cannot be read, there is no section.
    pub(super) async fn section_for(
        &self,
        track: &Track,
        key: Option<&str>,
        last_confirmed: Option<Node>,
    ) -> Option<PeerSection> {
        let settings = self.base.settings();
        let budget = settings
            .peer_memory_tokens
            .filter(|_| track.allows_peer_memory)?;
        let zone = track.zone.as_ref().unwrap_or(&settings.zone);
        let key = key.or(track.thread_key());
        let own_lineages = track.lineages();
        let composed = self
            .compose(&track.scope, (&own_lineages, key), budget, zone)
            .await;
        let mut peer_section = composed.unwrap_or_else(|error| {
            log_store_failure(
                "the memory of other conversations could not be read",
                &error,
            );
            None
        })?;
        let last_confirmed = last_confirmed?;
        peer_section.peer_memory.binding = Some(ConversationBinding {
            link: last_confirmed.link,
            count: last_confirmed.count,
            key: key.map(str::to_owned),
        });
        Some(peer_section)
    }

    /// A section of at most `budget` tokens from the latest conversations, without the lineages
    /// `excluded` and those under `key`. `None` if there is nothing to say.
    async fn compose(
        &self,
        scope: &Scope,
        (excluded, key): (&[i64], Option<&str>),
        budget: u32,
        zone: &TimeZone,
    ) -> Result<Option<PeerSection>, StoreError> {
        let digests = self.base.store.peer_digests(scope, excluded, key).await?;
        if digests.is_empty() {
            return Ok(None);
        }
        let (counter, zone) = (Arc::clone(&self.base.counter), zone.clone());
        let written =
            tokio::task::spawn_blocking(move || write(&digests, budget, &zone, &*counter));
        Ok(written.await.unwrap_or_default())
    }

    /// Publishes the digest of `lineage`, whose log is `log`, and prepares the introduction for the
    /// user's next new conversation.
    pub(super) async fn publish_digest(
        &self,
        scope: &Scope,
        lineage: i64,
        log: &[PartId],
        budget: u32,
        settings: &Settings,
    ) -> Result<(), StoreError> {
        let parts = self.base.store.parts(scope, log).await?;
        let counter = Arc::clone(&self.base.counter);
        let written = tokio::task::spawn_blocking(move || {
            let texts: Vec<&str> = parts.iter().map(|part| part.body.text.as_str()).collect();
            digest(&texts, budget, |line| counter.count(line))
        });
        let Ok(text) = written.await else {
            return Ok(());
        };
        self.base
            .store
            .publish_digest(scope, lineage, &text)
            .await?;
        let no_exclusions = (&[][..], None);
        let Some(peer_section) = self
            .compose(scope, no_exclusions, budget, &settings.zone)
            .await?
        else {
            return Ok(());
        };
        let root = Link::root(scope);
        let new = NewSnapshot {
            to: root,
            to_count: 0,
            pin: None,
            parts: Vec::new(),
            tokens: 0,
            cause: SnapshotCause::PeerMemory,
            segments: peer_intro(peer_section.section),
            placement: settings.placement_name().to_owned(),
            peer_memory: Some(Arc::new(peer_section.peer_memory)),
            settings_json: serde_json::json!({ "other_conversations": budget }).to_string(),
            tip: root,
            tip_count: 0,
            eligible_now: true,
            at_ms: self.base.now_ms(),
        };
        let peer_intro = self.base.store.commit_snapshot(scope, &new).await?;
        // The first request that needs the text reads it. Most introductions are never sent.
        self.base.cache.add_snapshot_meta(scope, &peer_intro.meta);
        Ok(())
    }
}

fn write(
    digests: &[Digest],
    budget: u32,
    zone: &TimeZone,
    counter: &dyn TokenCounter,
) -> Option<PeerSection> {
    let remaining = budget.checked_sub(counter.count(&section(&[])))?;
    let chosen = select_excerpts(digests, remaining, |line| counter.count(line));
    let selected: Vec<(&Digest, &str)> = chosen
        .iter()
        .map(|(index, text)| (&digests[*index], text.as_str()))
        .collect();
    if selected.is_empty() {
        return None;
    }
    let conversations: Vec<PeerConversation<'_>> = selected
        .iter()
        .map(|(digest, text)| PeerConversation {
            title: digest.title.as_deref(),
            last_date: dates::date(digest.at_ms, zone),
            text,
        })
        .collect();
    let section = section(&conversations);
    let peer_memory = PeerMemory {
        lineages: selected.iter().map(|(digest, _)| digest.lineage).collect(),
        keys: selected
            .iter()
            .filter_map(|(digest, _)| digest.key.clone())
            .collect(),
        tokens: counter.count(&section),
        binding: None,
    };
    Some(PeerSection {
        section,
        peer_memory,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::Estimate;

    #[test]
    fn the_section_about_other_conversations_keeps_its_budget_and_names_them() {
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
        let peer_section = write(&digests, 1_500, &TimeZone::UTC, &Estimate).expect("something");
        assert_eq!(
            peer_section.peer_memory.lineages,
            [7, 8, 9],
            "the latest stands last"
        );
        assert_eq!(peer_section.peer_memory.keys, ["trip"]);
        assert!(
            peer_section.peer_memory.tokens <= 1_500,
            "{}",
            peer_section.peer_memory.tokens
        );
        assert!(
            peer_section.peer_memory.tokens > 1_000,
            "{}",
            peer_section.peer_memory.tokens
        );
        assert!(write(&digests, 100, &TimeZone::UTC, &Estimate).is_none());
    }
}
