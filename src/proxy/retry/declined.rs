//! A declined request: which part of the change was at fault, and what is learned from it.
//!
//! A request is *declined* if the upstream refuses what it holds, not its length. What goes out next is the table
//! of [`super::attempt`]. If that is accepted, this is learned:
//!
//! | what the refusal names ([`Blame`]) | learned, for this tenant |
//! |---|---|
//! | the question for usage | streams of the model are not asked for usage any more |
//! | `prompt_cache_key`, `prompt_cache_breakpoint` | it is not added for the model any more |
//! | a template, roles, system messages, their order | the block stands one placement lower for the model |
//! | a content filter | a refusal of this block ([`super::super::capabilities`]) |
//! | the credential or a signature (401, 403) | requests are not changed for an hour |
//! | nothing of that | nothing the first time; see below |
//!
//! A refusal without a reason may be a failure that was over before the original was sent, so the first one
//! teaches nothing. But an upstream that refuses every change that way would cost two requests for ever. So from
//! the second one in a row on, for the same tenant and model, the most likely part is left out: the question
//! for usage, if nothing else was changed or the model has never reported usage; then a cache key, then a breakpoint,
//! that the model has never accepted; otherwise the placement. An
//! accepted change begins the count anew. If the same block was accepted one placement lower, the fault is
//! certain without any wording.
//!
//! Sends nothing. Called by [`super::sent_request`] and [`super::overflow`].

use super::super::capabilities::CacheAddition;
use super::super::memory::{Memory, MemoryRequest};
use super::super::outgoing_request::OutgoingRequest;
use crate::wire::usage::Blame;

/// A request that the upstream refused for what it holds.
#[derive(Debug)]
pub(super) struct DeclinedRequest {
    pub(super) outgoing: OutgoingRequest,
    /// What was at fault, as far as the refusal tells.
    pub(super) fault: Fault,
    /// Whether the refusal named it.
    named: bool,
}

/// The part of a change that the upstream does not accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The question for usage.
    Usage,
    /// What was added for the prompt cache.
    Cache(CacheAddition),
    /// The place of the block.
    Placement,
    /// The text: the block's, or the client's own.
    Words,
    /// Any change, because the request is signed.
    Change,
}

impl Fault {
    /// Whether the same block may be accepted at another placement, or without what was added beside it.
    pub(super) fn can_move(self) -> bool {
        matches!(self, Self::Usage | Self::Cache(_) | Self::Placement)
    }
}

impl DeclinedRequest {
    /// `outgoing` was declined; the refusal names `blame`.
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
            Blame::CacheKey if outgoing.has(CacheAddition::Key) => {
                (Fault::Cache(CacheAddition::Key), true)
            }
            Blame::CacheBreakpoint if outgoing.has(CacheAddition::Breakpoint) => {
                (Fault::Cache(CacheAddition::Breakpoint), true)
            }
            Blame::Placement if has_block => (Fault::Placement, true),
            _ => {
                // A question that this model never answered is blamed before the placement, which would move the block.
                let (capabilities, model) = (&memory.capabilities, &request.model);
                let unproven = !capabilities.reports_usage(model);
                let usage = outgoing.asks_usage && (!has_block || unproven);
                let unproven = |addition: &CacheAddition| {
                    outgoing.has(*addition) && !capabilities.accepts(*addition, model)
                };
                let addition = CacheAddition::ALL.into_iter().find(unproven);
                let fault = match addition {
                    _ if usage => Fault::Usage,
                    Some(addition) => Fault::Cache(addition),
                    None => Fault::Placement,
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

    /// The upstream accepted `accepted` after it declined this request: learns from both.
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
                "the upstream refused a changed request without a reason and accepted the original; nothing \
                 is learned from the first such refusal"
            );
            return;
        }
        match (self.fault, &self.outgoing.block) {
            (Fault::Usage, _) => {
                tracing::info!(
                    "the upstream refused a request that asks for usage in its stream; this tenant's streams of this \
                     model do not ask any more"
                );
                capabilities.record_usage_refused(tenant_model);
            }
            (Fault::Cache(addition), _) => {
                tracing::info!(
                    "the upstream refused {}; it is not added any more for this tenant and model",
                    addition.field()
                );
                capabilities.record_addition_refused(addition, tenant_model);
            }
            (Fault::Placement, Some(block)) => {
                capabilities.record_refused_placement(tenant_model, block.placement, self.named);
                if capabilities.placement(tenant_model).is_some() {
                    tracing::warn!(
                        placement = block.placement.name(),
                        "the upstream refused the block at this placement; it goes one placement lower for this tenant and model"
                    );
                } else {
                    tracing::warn!(
                        placement = block.placement.name(),
                        "the upstream refused the block at the last placement; requests of this tenant for this model go out \
                         without observations for an hour (bypass; reason=no_placement)"
                    );
                }
            }
            // The client's own text was accepted, so the block's text is at fault.
            (Fault::Words, _) if accepted.block.is_none() => self.record_filtered(memory, request),
            (Fault::Change, _) if !accepted.is_changed() => {
                tracing::warn!(
                    "the upstream refused a changed request for its credential and accepted the original: \
                     requests of this tenant are signed, and are not changed for an hour"
                );
                capabilities.record_signing(&request.identity.scope.tenant);
            }
            (Fault::Placement | Fault::Words | Fault::Change, _) => {}
        }
    }

    /// A content filter refused the text of the block.
    fn record_filtered(&self, memory: &Memory, request: &MemoryRequest) {
        if let Some(snapshot) = self.outgoing.snapshot() {
            tracing::info!(
                snapshot = snapshot.meta.id.0,
                "a content filter refused the text of the block and accepted the request without it"
            );
            memory
                .capabilities
                .record_filtered_snapshot(&request.model, snapshot.meta.id);
        }
    }
}
