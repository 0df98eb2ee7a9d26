//! One observation: the end of the log and new history in, a chunk out.
//!
//! A range that is too long for one call is observed piece by piece and still makes one chunk: what
//! covers half a range covers nothing. Pieces that are written are kept in this process until the
//! chunk is, so a failed call repeats one piece; a crash repeats the calls of this one job. An empty
//! answer is asked for again once, then code covers what no model will speak about: a range must not
//! stand in the way of those after it.

mod beside;
mod draft;
mod fitting;

use std::sync::Arc;

use self::beside::{Beside, Log};
use self::draft::Draft;
pub(crate) use self::draft::{Drafts, Windows};
use super::ask::{self, ask};
use super::failure::{Failure, is_rejected_for_good};
use super::payload::Payload;
use super::{Phase, Settings, Shop, events};
use crate::llm::{CallError, Endpoint, Finish};
use crate::memory::observe::{self, ObserveInput, Outcome};
use crate::memory::prompt::{Attached, Prompt};
use crate::memory::{NewPart, PartKind, dates, render};
use crate::store::Job;

/// A model that finds less than this too long will take nothing. Tokens.
const LEAST_INPUT: u32 = 500;

/// What stands for a range in which nothing was said, so that what covers it is never empty.
const NOTHING_SAID: &str = "* 🟢 Nothing was said here.";

/// Calls the Observer for `job` and reads its answers.
pub(super) async fn observe(
    shop: &Shop,
    settings: &Settings,
    endpoint: &Endpoint,
    job: &Job,
) -> Result<NewPart, Failure> {
    let Some(payload) = Payload::from_json(&job.work.payload) else {
        // Not JSON any more; nothing in the row could be observed.
        return Err(Failure::Unreadable);
    };
    if payload.transcript.trim().is_empty() {
        // Only system messages, which code copies, or echoes of our own block: nothing to ask.
        let written = Written::by_code(&payload);
        return Ok(chunk(shop, job, &payload, written).await);
    }
    let phase = &settings.observation;
    let observing = Observing {
        shop,
        phase,
        endpoint,
        job,
        settings,
        payload: &payload,
        log: Log::before(shop, job, settings)
            .await
            .map_err(|error| Failure::store(&error))?,
        title: observing_title(shop, job, settings).await,
    };
    let most = settings.observer.max_input_tokens;
    let mut draft = match shop.drafts.take(job) {
        Some(draft) => draft,
        None => Draft::new(cut(shop, payload.transcript.clone(), most).await, most),
    };
    observing.as_known(&mut draft).await;
    let done = observing.all(&mut draft).await;
    observing.remember(&draft);
    if let Err(failure) = done {
        shop.drafts.keep(job, draft);
        return Err(failure);
    }
    let written = draft.finish();
    if let Some(title) = &written.title {
        entitle(shop, job, title).await;
    }
    Ok(chunk(shop, job, &payload, written).await)
}

/// What a range became.
#[derive(Debug, Default)]
struct Written {
    text: String,
    current_task: Option<String>,
    suggested_response: Option<String>,
    title: Option<String>,
    /// `code` where no model wrote any of it.
    model: String,
}

impl Written {
    fn by_code(payload: &Payload) -> Self {
        Self {
            text: payload.by_code.clone(),
            model: CODE.to_owned(),
            ..Self::default()
        }
    }
}

/// What a model said of a piece.
struct Said {
    outcome: Outcome,
    /// A limit of its output ended it.
    cut: bool,
    model: String,
}

/// The name of the author that is no model.
const CODE: &str = "code";

/// One job, and everything its calls have in common.
struct Observing<'a> {
    shop: &'a Shop,
    phase: &'a Phase,
    endpoint: &'a Endpoint,
    job: &'a Job,
    settings: &'a Settings,
    payload: &'a Payload,
    log: Log,
    /// See [`ObserveInput::title`].
    title: Option<String>,
}

impl Observing<'_> {
    /// Writes what is left of `draft`; stops at the first failure.
    async fn all(&self, draft: &mut Draft) -> Result<(), Failure> {
        while let Some(piece) = draft.next() {
            let (asked, came) = self.piece(draft, &piece).await;
            draft.asks(Some(asked));
            match came {
                Ok(said) if said.cut && said.outcome != Outcome::Degenerate => {
                    self.cut(draft, &piece, said).await?;
                }
                Ok(Said {
                    outcome:
                        Outcome::Observed {
                            text,
                            current_task,
                            suggested_response,
                            title,
                        },
                    model,
                    ..
                }) => {
                    draft.came_whole();
                    draft.written(Written {
                        text,
                        current_task: current_task
                            .filter(|_| self.settings.observer.hints.current_task),
                        suggested_response: suggested_response
                            .filter(|_| self.settings.observer.hints.suggested_response),
                        title: title.filter(|_| self.title.is_some()),
                        model,
                    });
                }
                Ok(_) | Err(CallError::Refused { .. }) => self.nothing(draft, &piece).await?,
                Err(CallError::TooLong { excess, .. }) => {
                    if !self.fitted(draft, &piece, excess).await
                        && !self.less_beside(draft, &piece).await
                        && !self.shorter(draft, &piece).await
                    {
                        self.nothing(draft, &piece).await?;
                    }
                }
                Err(error @ CallError::Rejected { .. }) if is_rejected_for_good(self.job) => {
                    tracing::warn!(
                        error = %error,
                        "the Observer's endpoint keeps rejecting a range; code covers it"
                    );
                    self.by_code(draft, &piece);
                }
                Err(error) => return Err(Failure::Call(error)),
            }
        }
        Ok(())
    }

    /// The question for `piece`.
    fn prompt(&self, draft: &Draft, piece: &str, beside: &Beside) -> Prompt {
        let attachments: Vec<Attached> = self
            .payload
            .attachments
            .iter()
            .filter(|attached| names(piece, &attached.name))
            .cloned()
            .collect();
        observe::prompt(&ObserveInput {
            transcript: piece,
            piece: draft.place(),
            earlier: &beside.earlier,
            stood: observe::Stood {
                task: self.log.task.as_deref(),
                response: self.log.response.as_deref(),
            },
            application: &beside.application,
            nonce: &super::nonce(),
            now_date: &dates::day(
                self.shop.clock.now_ms(),
                &self.payload.zone(&self.settings.zone),
            ),
            instruction: self.phase.instruction.as_deref(),
            focus: self.payload.focus.as_deref(),
            hints: self.settings.observer.hints,
            title: self.title.as_deref(),
            attachments: &attachments,
        })
    }

    /// Who was asked for `piece`, and what came of it.
    async fn piece(&self, draft: &Draft, piece: &str) -> (String, Result<Said, CallError>) {
        let prompt = self.prompt(draft, piece, &self.beside(draft, piece).await);
        let settings = ask::settings(self.shop, self.phase, self.job, &prompt).await;
        let asked = settings.model.clone();
        let reply = ask(self.shop, settings, self.endpoint, self.job, &prompt).await;
        let said = reply.map(|reply| {
            let cut = reply.finish == Finish::Length;
            let read = if cut {
                observe::read_cut
            } else {
                observe::read
            };
            Said {
                outcome: read(&reply.text, piece),
                cut,
                model: reply.model,
            }
        });
        (asked, said)
    }

    /// A limit of its output cut what the model `said` of `piece`, which covers a part of it: the halves
    /// are asked for instead, and that is charged, as all of it was shown. Where it is of no use to ask
    /// for less, what came whole stands before what code writes of all of it.
    async fn cut(&self, draft: &mut Draft, piece: &str, said: Said) -> Result<(), Failure> {
        let useful = draft.was_cut();
        if useful && self.shorter(draft, piece).await {
            tracing::debug!(
                model = %said.model,
                "the Observer's answer was cut by a limit of its output; it is shown less at a time"
            );
            if !self.job.has_row() {
                return Ok(());
            }
            let (store, tokens) = (&self.shop.store, super::count(self.shop, piece).await);
            return store
                .shown_again(self.job, tokens)
                .await
                .map_err(|error| Failure::store(&error));
        }
        tracing::warn!(
            tenant = %self.job.scope.tenant_label(),
            messages = self.job.work.span.to_count,
            model = %said.model,
            "the Observer's answers are cut by a limit of their length, however little it is shown: \
             code adds to what came whole. Allow it more (`max_output_tokens`, or the endpoint's own limit)"
        );
        let by_code = self.of_code(draft, piece);
        draft.written(match said.outcome {
            Outcome::Observed { text, .. } => Written {
                text: observe::join(&[text, by_code.text]),
                model: said.model,
                ..Written::default()
            },
            Outcome::Empty | Outcome::Degenerate => by_code,
        });
        while let Some(rest) = draft.next().filter(|_| !useful) {
            self.by_code(draft, &rest);
        }
        Ok(())
    }

    /// Nothing usable was said of `piece`. Of a whole range the job is given back and charged, as
    /// the Observer is shown it again; of one piece of several it is asked again at once, and that is
    /// charged here. While a client waits nobody is asked again.
    async fn nothing(&self, draft: &mut Draft, piece: &str) -> Result<(), Failure> {
        if draft.place() == (1, 1) {
            if self.job.empty_answers == 0 {
                return Err(Failure::Empty);
            }
        } else if self.job.has_row() && draft.ask_again() {
            let (store, tokens) = (&self.shop.store, super::count(self.shop, piece).await);
            return store
                .shown_again(self.job, tokens)
                .await
                .map_err(|error| Failure::store(&error));
        }
        self.by_code(draft, piece);
        Ok(())
    }

    /// Code writes what no model says of `piece`.
    fn by_code(&self, draft: &mut Draft, piece: &str) {
        let written = self.of_code(draft, piece);
        draft.written(written);
    }

    fn of_code(&self, draft: &Draft, piece: &str) -> Written {
        if draft.place() == (1, 1) {
            return Written::by_code(self.payload);
        }
        Written {
            text: observe::by_code(piece),
            model: CODE.to_owned(),
            ..Written::default()
        }
    }

    /// Cuts `piece`, and all after it, to half of what was too long; `false` where it is as small as
    /// it can be.
    async fn shorter(&self, draft: &mut Draft, piece: &str) -> bool {
        let tokens = super::count(self.shop, piece).await;
        let limit = draft.limit.min(tokens) / 2;
        if limit < LEAST_INPUT {
            return false;
        }
        draft.takes(limit);
        self.cut_to(draft, limit).await;
        true
    }

    async fn cut_to(&self, draft: &mut Draft, limit: u32) {
        let mut rest = Vec::new();
        for piece in draft.rest() {
            rest.extend(cut(self.shop, piece, limit).await);
        }
        draft.cut_to(limit, rest);
    }
}

/// Whether `text` holds the placeholder of the attachment `name`.
fn names(text: &str, name: &str) -> bool {
    let start = format!("[{name}");
    text.match_indices(&start)
        .any(|(at, _)| text[at + start.len()..].starts_with([']', ':']))
}

async fn cut(shop: &Shop, transcript: String, limit: u32) -> Vec<String> {
    let counter = Arc::clone(&shop.counter);
    let whole = transcript.clone();
    tokio::task::spawn_blocking(move || {
        observe::pieces(&transcript, limit, |text| counter.count(text))
    })
    .await
    .unwrap_or_else(|_| vec![whole])
}

async fn chunk(shop: &Shop, job: &Job, payload: &Payload, written: Written) -> NewPart {
    let mut text = render::chunk_text(&written.text, &payload.system);
    if text.trim().is_empty() {
        NOTHING_SAID.clone_into(&mut text);
    }
    NewPart {
        kind: PartKind::Chunk,
        span: job.work.span,
        tokens: super::weight(shop, &text).await,
        text,
        message_tokens: job.work.message_tokens,
        current_task: written.current_task,
        suggested_response: written.suggested_response,
        sources: Vec::new(),
        model: written.model,
        asked: false,
        stopgap: false,
        evidence: crate::memory::Evidence::default(),
    }
}

/// The title so far of the conversation that made the job due, where titles are asked for.
async fn observing_title(shop: &Shop, job: &Job, settings: &Settings) -> Option<String> {
    if !settings.observer.title {
        return None;
    }
    let title = shop.store.title(&job.scope, job.work.tip).await;
    // Without it the Observer finds a new one.
    Some(title.ok().flatten().unwrap_or_default())
}

/// Written before the chunk is: a title is no part of what is sent, and one that is lost with a
/// chunk would be found again only with the next.
async fn entitle(shop: &Shop, job: &Job, title: &str) {
    let (scope, tip) = (&job.scope, job.work.tip);
    let old = shop.store.title(scope, tip).await.ok().flatten();
    match shop.store.entitle(scope, tip, title).await {
        Ok(()) if old.as_deref() != Some(title) => {
            events::renamed(shop, job, old.as_deref(), title);
        }
        Ok(()) => {}
        Err(error) => tracing::debug!(error = %error, "a title could not be stored"),
    }
}
