//! What follows the refusal of a changed request, in one table for status and stream alike.
//!
//! | what the refusal names ([`Blame`]) | the original goes out once | learned, if that was accepted |
//! |---|---|---|
//! | the question for usage | yes | this tenant's streams of the model are not asked any more |
//! | a template, roles, system messages, their order | yes | this tenant's block stands one placement lower for the model |
//! | a content filter | yes | counted for this block ([`super::manners`]) |
//! | the credential or a signature (401, 403) | yes | this tenant's requests are not changed for an hour |
//! | nothing of that | yes | nothing the first time; see below |
//! | that the prompt is too long | no | it is made shorter ([`super::overflow`]) |
//! | a quota, a rate, a failure behind a gateway | no | nothing: the refusal is the client's |
//!
//! A refusal without a reason may be a failure that the second attempt no longer met, so the first one moves
//! nothing. An upstream that refuses every change that way would cost two requests for ever: from the
//! second in a row on, for the same tenant and model, what was most likely at fault is left out: the
//! question for usage, where nothing else was changed or this model has never answered it, else the
//! place of the block. A changed request that is accepted begins the count anew.
//!
//! Where the original does not fit its model, the same block is tried one placement lower. If that is
//! accepted, no wording is needed to know what was at fault.
//!
//! Decides and learns; sends nothing. Called by [`super::ladder`] and [`super::overflow`].

use super::super::memory::{Memory, MemoryRequest};
use super::super::outgoing_request::OutgoingRequest;
use crate::wire::usage::Blame;

/// What an upstream refused of a request, other than its length.
#[derive(Debug)]
pub(super) struct DeclinedRequest {
    pub(super) outgoing: OutgoingRequest,
    /// What was at fault, as far as can be told.
    pub(super) fault: Fault,
    /// Whether the refusal named it.
    named: bool,
}

/// What of a changed request an upstream does not take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The question for usage.
    Usage,
    /// Where the block stands.
    Placement,
    /// What is said in it: the block's words, or the client's.
    Words,
    /// That anything was changed: it is signed.
    Change,
}

impl Fault {
    /// Whether the same block may be taken elsewhere, or without the question for usage.
    pub(super) fn can_move(self) -> bool {
        matches!(self, Self::Usage | Self::Placement)
    }
}

impl DeclinedRequest {
    /// `choice` was refused for what it holds.
    pub(super) fn new(
        memory: &Memory,
        request: &MemoryRequest,
        outgoing: &OutgoingRequest,
        blame: Blame,
    ) -> Self {
        let has_block = outgoing.block.is_some();
        let (fault, named) = match blame {
            Blame::Content => (Fault::Words, true),
            Blame::Credential => (Fault::Change, true),
            Blame::Usage if outgoing.asks_usage => (Fault::Usage, true),
            Blame::Placement if has_block => (Fault::Placement, true),
            _ => {
                // What this model has never answered is at fault before what moves the block.
                let unproven = !memory.capabilities.reports_usage(&request.model);
                let usage = outgoing.asks_usage && (!has_block || unproven);
                let fault = if usage {
                    Fault::Usage
                } else {
                    Fault::Placement
                };
                (fault, false)
            }
        };
        Self {
            fault,
            named,
            outgoing: outgoing.clone(),
        }
    }

    /// `accepted` was taken where this was not: what is learned from it.
    pub(super) fn learn(
        &self,
        memory: &Memory,
        request: &MemoryRequest,
        accepted: &OutgoingRequest,
    ) {
        let (capabilities, tenant_model) = (&memory.capabilities, request.tenant_model());
        let is_certain = self.named || accepted.block.is_some();
        if self.fault.can_move()
            && !is_certain
            && !capabilities.record_unexplained_refusal(tenant_model)
        {
            tracing::info!(
                "a changed request was refused without a reason, and the original accepted; nothing is \
                 learned of the first time"
            );
            return;
        }
        match (self.fault, &self.outgoing.block) {
            (Fault::Usage, _) => {
                tracing::info!(
                    "the upstream does not report usage in streams; it is not asked again"
                );
                capabilities.record_usage_refused(tenant_model);
            }
            (Fault::Placement, Some(block)) => {
                tracing::warn!(
                    placement = block.placement.name(),
                    "the upstream refused the block here; placement steps down for this tenant and model"
                );
                capabilities.record_refused_placement(tenant_model, block.placement);
            }
            // The client's own words were taken: it is not they that offend.
            (Fault::Words, _) if accepted.block.is_none() => self.record_filtered(memory, request),
            (Fault::Change, _) if !accepted.is_changed() => {
                tracing::warn!(
                    "a changed request was refused for its credential, and the original accepted: requests \
                     of this tenant are signed and stay as they are for an hour"
                );
                capabilities.record_signing(&request.identity.scope.tenant);
            }
            (Fault::Placement | Fault::Words | Fault::Change, _) => {}
        }
    }

    /// A content filter refused the words of the block.
    fn record_filtered(&self, memory: &Memory, request: &MemoryRequest) {
        if let Some(snapshot) = self.outgoing.snapshot() {
            tracing::info!(
                snapshot = snapshot.meta.id.0,
                "a content filter refused what the block says, and took the request without it"
            );
            memory
                .capabilities
                .record_filtered_snapshot(&request.model, snapshot.meta.id);
        }
    }
}
