//! Scoring a pass without training: pairs, negative edges, candidate sets.

use super::Trainer;
use crate::error::Result;
use crate::eval::{self, Breakdown, SplitMetrics, SplitScores, StateBefore, SubsetMetrics};
use crate::pipeline::event::{Negatives, Pass};
use crate::pipeline::state::ReadyBatch;
use std::sync::Arc;
use std::time::Instant;
use tch::Tensor;
use tidemill_data::id::EventId;
use tidemill_models::input::PairInput;
use tidemill_models::model::{Mode, Model};

impl Trainer {
    /// Scores a pass without training; the state advances by its events.
    ///
    /// # Errors
    /// A score that is not finite.
    pub fn score_split(&mut self, pass: &Pass) -> Result<SplitScores> {
        let mut scores = SplitScores::default();
        let started = Instant::now();
        self.evaluate(pass, "evaluation", |model, z, batch| push_scores(&mut scores, model, z, batch))?;
        let mut scores = self.gather_scores(scores)?;
        scores.seconds = started.elapsed().as_secs_f64();
        Ok(scores)
    }

    /// Embeds a pass's roots batch by batch, with the parameters as they are; the state advances by its events.
    ///
    /// * `each`: the model, `[R, D_emb]` embeddings, and the batch that they are of.
    pub(super) fn evaluate(
        &mut self,
        pass: &Pass,
        label: &str,
        mut each: impl FnMut(&dyn Model, &Tensor, &ReadyBatch) -> Result<()>,
    ) -> Result<()> {
        let pass = &self.among_owners(pass);
        self.open_bar(label, pass, &(0..pass.batches()));
        self.pipeline.start(pass.clone(), 0..pass.batches());
        let mut events = 0;
        while let Some(batch) = self.pipeline.next_batch()? {
            let embedded = self.model.embed(&batch.input, Mode::Eval);
            self.pipeline.commit_state(&batch, &embedded, &*self.model)?;
            self.pipeline.commit_parameters();
            let z = self.pipeline.exchange_embeddings(&batch, &embedded.z)?;
            each(&*self.model, &z, &batch)?;
            events += batch.plan.all.len() as u64;
            self.advance_bar(events, None);
            self.log_queue_lengths()?;
        }
        self.close_bar();
        Ok(())
    }

    /// The best epoch's parameters, and the state that the validation split is scored from.
    pub(super) fn return_to_best(&mut self) -> Result<()> {
        self.restore_best()?;
        match self.config.eval.state {
            StateBefore::Trained => Ok(()),
            StateBefore::Replayed => self.replay_training(),
        }
    }

    /// Makes the state anew from the training events, with the parameters as they are.
    pub(super) fn replay_training(&mut self) -> Result<()> {
        self.pipeline.stop();
        self.pipeline.memory().reset();
        let pass = Pass { dropout: None, epoch: 0, ..without_negatives(&self.passes.train) };
        self.evaluate(&pass, "replay", |_, _, _| Ok(()))
    }

    /// Metrics of a split, scored from the state as it stands; new nodes too, the way the configuration asks.
    ///
    /// # Errors
    /// A score that is not finite.
    pub fn metrics_of(&mut self, pass: &Pass) -> Result<SplitMetrics> {
        let separate = self.config.eval.new_node == eval::NewNode::SeparatePass;
        let new_nodes = if separate { self.score_new_nodes_apart(pass)? } else { None };
        let scores = self.score_split(pass)?;
        let mut metrics = SplitMetrics::of(&scores, &self.stream, &self.split.new_nodes, self.config.eval.new_node);
        metrics.breakdown = Some(Breakdown::of(&scores, &self.stream));
        if separate {
            metrics.new_node = new_nodes;
        }
        Ok(metrics)
    }

    /// Scores the events that touch a new node from a copy of the state, which is dropped. Negative edges are then drawn from
    /// these events alone.
    fn score_new_nodes_apart(&mut self, pass: &Pass) -> Result<Option<SubsetMetrics>> {
        let touches_new = |&event: &_| eval::touches(&self.stream, &self.split.new_nodes, event);
        let events: Vec<EventId> = pass.events.iter().copied().filter(touches_new).collect();
        if events.is_empty() {
            return Ok(None);
        }
        let events: Arc<[EventId]> = events.into();
        let negatives = match &pass.negatives {
            Negatives::Edges(sampler) => Negatives::Edges(Arc::new(sampler.among(events.clone()))),
            other => other.clone(),
        };
        let (kept, owners) = (self.store_state()?, self.owners.clone());
        let scores = self.score_split(&Pass { events, negatives, cache: None, ..pass.clone() })?;
        self.put_state(&[&kept], owners)?;
        Ok(SubsetMetrics::of(&scores, |_| true))
    }
}

/// A pass whose events are embedded and scored against nothing.
pub(super) fn without_negatives(pass: &Pass) -> Pass {
    Pass { negatives: Negatives::Given(Arc::new([])), negatives_per_event: 0, ..pass.clone() }
}

fn push_scores(scores: &mut SplitScores, model: &dyn Model, z: &Tensor, batch: &ReadyBatch) -> Result<()> {
    let (plan, pairs) = (&batch.plan, &batch.pairs);
    if !plan.candidates.is_empty() {
        return rank(scores, model, z, batch);
    }
    if plan.negative_sources.is_empty() {
        let (positive, negative) = model.logits(z, pairs);
        scores.push(&plan.events, &positive, &negative)?;
        return Ok(());
    }
    let first = plan.sample.root_of.len() - plan.negative_sources.len();
    let sources = rows(plan.sample.root_of[first..].iter().copied(), z);
    let [seen, negative_seen] = match &pairs.seen {
        Some([own, negative]) => [Some(own), Some(negative)],
        None => [None, None],
    };
    let positive = logits(model, z, &pairs.source, &pairs.destination, seen);
    let negative = logits(model, z, &sources, &pairs.negative, negative_seen);
    scores.push(&plan.events, &positive, &negative)?;
    Ok(())
}

/// Logits of pairs, `[B]`.
///
/// * `seen`: as in [`PairInput::seen`], of these pairs.
fn logits(model: &dyn Model, z: &Tensor, source: &Tensor, destination: &Tensor, seen: Option<&Tensor>) -> Tensor {
    let negative = rows(std::iter::empty(), z);
    let (events, loss) = (source.size()[0] as f64, Default::default());
    let (source, destination) = (source.shallow_clone(), destination.shallow_clone());
    let seen = seen.map(|seen| [seen.shallow_clone(), seen.narrow(0, 0, 0)]);
    model.logits(z, &PairInput { source, destination, negative, events, loss, seen }).0
}

/// Ranks the events that have candidates. Sets that are smaller than the largest are filled up, and what fills them is ignored.
fn rank(scores: &mut SplitScores, model: &dyn Model, z: &Tensor, batch: &ReadyBatch) -> Result<()> {
    let (plan, b) = (&batch.plan, batch.plan.events.len());
    let root = |logical: usize| plan.sample.root_of[logical];
    let longest = plan.candidates.iter().copied().max().unwrap_or(0) as usize;
    let ranked: Vec<usize> = (0..b).filter(|&i| plan.candidates[i] > 0).collect();
    let mut first = 0;
    let mut candidates: Vec<u32> = Vec::with_capacity(ranked.len() * longest);
    let mut met: Vec<i64> = Vec::new(); // where the candidates are among all negatives of the batch
    for &i in &ranked {
        let own = plan.candidates[i] as usize;
        candidates.extend((first..first + own).map(|at| root(2 * b + at)));
        candidates.extend((own..longest).map(|_| root(b + i)));
        met.extend((0..longest).map(|at| (first + at.min(own - 1)) as i64));
        first += own;
    }
    let seen = batch.pairs.seen.as_ref().map(|[own, negative]| {
        let events = rows(ranked.iter().map(|&i| i as u32), z);
        let met = Tensor::from_slice(&met).to_device(z.device());
        [own.index_select(0, &events), negative.index_select(0, &met)]
    });
    let pairs = PairInput {
        source: rows(ranked.iter().map(|&i| root(i)), z),
        destination: rows(ranked.iter().map(|&i| root(b + i)), z),
        negative: rows(candidates.into_iter(), z),
        events: ranked.len() as f64,
        loss: Default::default(),
        seen,
    };
    let events: Vec<EventId> = ranked.iter().map(|&i| plan.events[i]).collect();
    let sizes: Vec<u32> = ranked.iter().map(|&i| plan.candidates[i]).collect();
    if events.is_empty() {
        let none = rows(std::iter::empty(), z);
        scores.push_ranked(b, &[], &none, &[], &none)?;
        return Ok(());
    }
    let (positive, negative) = model.logits(z, &pairs);
    scores.push_ranked(b, &events, &positive, &sizes, &negative)?;
    Ok(())
}

/// Row numbers on the device of the embeddings.
fn rows(numbers: impl Iterator<Item = u32>, z: &Tensor) -> Tensor {
    Tensor::from_slice(&numbers.map(i64::from).collect::<Vec<i64>>()).to_device(z.device())
}
