//! What the proxy does after an answer: write down, advance, observe, reflect, prepare; in the order
//! in which the recorder and the workers of `jobs` do it.

use diarist::history::{History, Link, Scope};
use diarist::memory::advance::{Action, ChainState, JobState, SnapshotPlan, advance, early};
use diarist::memory::{
    NewPart, PartKind, PartMeta, Rendering, SnapshotCause, SnapshotId, SnapshotMeta, Span,
    message_tokens, record, render,
};
use diarist::tokens::TokenCounter as _;
use diarist::wire;

use super::conversation::{Request, digest_of};
use super::exchange::{Quarters, Shown, Used};
use super::planted::{self, Bug};
use super::proxy::{Proxy, Track, links};
use super::scripted_observer::Script;
use super::world::{Job, NewSnapshot};

/// The day of the first request.
const FIRST_DAY: jiff::civil::Date = jiff::civil::date(2026, 3, 1);

impl Proxy {
    pub fn record(
        &mut self,
        request: &Request,
        scope: &Scope,
        parsed: &wire::Request,
        history: &History,
        used: Used,
    ) {
        let Some(tip) = history.tip() else { return };
        let chain = links(history);
        let mut nodes = self.world.known(scope, &chain).nodes;
        let parent = nodes.last().map_or(Link::root(scope), |node| node.link);
        let spoken: Vec<_> = (0..history.len())
            .map(|index| parsed.plain_text(index).unwrap())
            .collect();
        let tokens: Vec<u32> = spoken[nodes.len()..]
            .iter()
            .map(|spoken| message_tokens::count_message(spoken, "m", &Quarters))
            .collect();
        let at_ms = 1_790_000_000_000 + 60_000 * i64::try_from(self.requests).unwrap();
        let new = record::new_nodes(history, nodes.len(), &tokens, at_ms, None);
        let confirm = record::confirm_nodes(&mut nodes, history.len());
        let contents = record::message_contents(scope, history, &nodes, &confirm);
        self.world.credit(scope, &contents);
        self.world.record(scope, parent, &new, &confirm, tip, used);
        self.tracks
            .retain(|track| track.scope != *scope || !chain.contains(track.chain.last().unwrap()));
        let track = Track {
            scope: scope.clone(),
            chain,
            digests: spoken.iter().map(digest_of).collect(),
            owner: request.owner.label(),
        };
        self.perform(&track, true);
        if self.has(Bug::EarlyThoughNotIdle) {
            self.activate_early(&track);
        }
        self.tracks.push(track);
        self.work();
    }

    /// Does what follows for a chain. The words of a range are only at hand with the request that
    /// carried them.
    fn perform(&mut self, track: &Track, words: bool) {
        for _ in 0..4 {
            let mut known = self.world.known(&track.scope, &track.chain);
            planted::before_advance(self.bug, &mut known);
            let path = ChainState {
                root: Link::root(&track.scope),
                nodes: &known.nodes,
                parts: &known.parts,
                snapshots: &known.snapshots,
                jobs: &known.work,
            };
            let mut changed = false;
            for step in advance(&path, &planted::policy(self.bug, self.policy)) {
                changed |= self.step(step, track, &known.parts, words);
            }
            if !changed {
                return;
            }
        }
    }

    /// Every conversation has been idle for so long that the provider has forgotten its prompt.
    pub fn fall_idle(&mut self) {
        let tracks = std::mem::take(&mut self.tracks);
        for track in &tracks {
            self.activate_early(track);
        }
        self.tracks = tracks;
    }

    fn activate_early(&mut self, track: &Track) {
        let known = self.world.known(&track.scope, &track.chain);
        let path = ChainState {
            root: Link::root(&track.scope),
            nodes: &known.nodes,
            parts: &known.parts,
            snapshots: &known.snapshots,
            jobs: &known.work,
        };
        if let Some(plan) = early(&path, &self.policy, SnapshotCause::Idle) {
            self.step(Action::Snapshot(plan), track, &known.parts, false);
        }
    }

    fn step(&mut self, step: Action, track: &Track, parts: &[PartMeta], words: bool) -> bool {
        let job = |kind, span: Span, message_tokens, sources| Job {
            scope: track.scope.clone(),
            owner: track.owner.clone(),
            kind,
            span,
            message_tokens,
            shown: track.digests[span.from_count..span.to_count].to_vec(),
            sources,
            due: self.requests + self.script.late,
            empty: 0,
            state: JobState::Fresh,
        };
        match step {
            Action::Observe {
                span,
                message_tokens,
            } => {
                if words
                    && self
                        .world
                        .offer(job(PartKind::Chunk, span, message_tokens, vec![]))
                {
                    self.shown.push(Shown {
                        owner: track.owner.clone(),
                        chain: track.digests[..span.to_count].to_vec(),
                        from: span.from_count,
                    });
                }
                false
            }
            Action::Reflect {
                sources,
                span,
                message_tokens,
                ..
            } => {
                if !self.has(Bug::NeverReflects) {
                    self.world
                        .offer(job(PartKind::Reflection, span, message_tokens, sources));
                }
                false
            }
            Action::Shorten {
                span,
                message_tokens,
                limit,
                plan,
            } => {
                if self.has(Bug::NeverReflects) || self.has(Bug::NeverShortens) {
                    return self.step(Action::Snapshot(plan), track, parts, words);
                }
                let job = job(PartKind::Reflection, span, message_tokens, plan.parts);
                // What code leaves is three quarters of what is too many.
                let share = (75 * limit / plan.tokens).min(99);
                let code = Script {
                    reflected: share,
                    ..self.script
                };
                let part = NewPart {
                    code_reflection: true,
                    ..self.write_by(code, &job)
                };
                self.world.commit_part(&job, part);
                true
            }
            Action::Snapshot(plan) => {
                let tip = (*track.chain.last().unwrap(), track.chain.len());
                debug_assert!(
                    plan.parts
                        .iter()
                        .all(|id| parts.iter().any(|p| p.id == *id))
                );
                !self.has(Bug::NeverActivates)
                    && self
                        .prepare(&track.scope, &plan, tip, false)
                        .is_some_and(|(_, new)| new)
            }
        }
    }

    pub fn prepare(
        &mut self,
        scope: &Scope,
        plan: &SnapshotPlan,
        (tip, length): (Link, usize),
        at_once: bool,
    ) -> Option<(SnapshotId, bool)> {
        // Days pass between requests, so dates that are counted anew do not stay the same.
        let rendering = Rendering {
            preamble: render::PREAMBLE_VERSION,
            as_of: FIRST_DAY.saturating_add(jiff::Span::new().days(self.requests as i64 / 2)),
        };
        let parts = self.world.freeze(scope, &plan.parts, rendering)?;
        let hints = parts.last().map(|last| render::Hints {
            current_task: last.body.current_task.as_deref(),
            suggested_response: last.body.suggested_response.as_deref(),
        });
        let segments = planted::segments(self.bug, &parts, rendering, (hints, plan.saved_tokens));
        let new = NewSnapshot {
            meta: SnapshotMeta {
                id: SnapshotId(-1),
                to: plan.to,
                to_count: plan.to_count,
                eligible_from: length,
                pin: plan.pin,
                parts: plan.parts.clone(),
                tokens: render::log_tokens(&segments, parts.len(), |it| Quarters.count(it)),
                cause: plan.cause,
                placement: String::new(),
                peer_memory: None,
            },
            segments,
            tip,
            at_once,
        };
        Some(self.world.commit_snapshot(scope, new))
    }

    /// Observer and Reflector do what is due, and whatever follows from it.
    pub fn work(&mut self) {
        loop {
            let due = self
                .world
                .jobs
                .iter()
                .position(|job| job.due <= self.requests && job.state != JobState::Abandoned);
            let Some(at) = due else { return };
            let job = self.world.jobs[at].clone();
            self.answers += 1;
            let every = self.script.empty_every;
            let empty = every > 0 && self.answers.is_multiple_of(every);
            if empty && job.empty == 0 {
                let waiting = &mut self.world.jobs[at];
                waiting.empty += 1;
                waiting.state = JobState::Retrying;
                waiting.due = self.requests + 1;
                if job.kind == PartKind::Chunk {
                    self.world.charge(&job.scope, job.message_tokens);
                }
                continue;
            }
            let fails = empty || !self.script.reflects();
            if fails && job.kind == PartKind::Reflection {
                self.world.jobs[at].state = JobState::Abandoned;
            } else {
                let body = self.write(&job);
                self.world.commit_part(&job, body);
            }
            let tracks = std::mem::take(&mut self.tracks);
            for track in tracks
                .iter()
                .filter(|track| track.scope == job.scope && track.chain.contains(&job.span.to))
            {
                self.perform(track, false);
            }
            self.tracks = tracks;
        }
    }

    fn write(&self, job: &Job) -> NewPart {
        self.write_by(self.script, job)
    }

    fn write_by(&self, script: Script, job: &Job) -> NewPart {
        let text = match job.kind {
            PartKind::Chunk => script.observe(&job.owner, &job.shown, job.message_tokens),
            PartKind::Reflection => {
                let sources: Vec<(String, u32)> = job
                    .sources
                    .iter()
                    .filter_map(|id| self.world.part(&job.scope, *id))
                    .map(|part| (part.body.text.clone(), part.body.tokens))
                    .collect();
                let tokens = sources.iter().map(|(_, tokens)| tokens).sum();
                let texts: Vec<String> = sources.into_iter().map(|(text, _)| text).collect();
                script.reflect(&job.owner, &texts, tokens)
            }
        };
        NewPart {
            kind: job.kind,
            span: job.span,
            tokens: planted::weigh(self.bug, &text),
            text,
            message_tokens: job.message_tokens,
            current_task: Some(format!("the task after {} messages", job.span.to_count)),
            suggested_response: None,
            sources: job.sources.clone(),
            model: "script".into(),
            requested: false,
            code_reflection: false,
            analysis: diarist::memory::PartAnalysis::default(),
        }
    }
}
