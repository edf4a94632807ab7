//! Scores of a split and what is made of them.
//!
//! Scores are kept in event order and ranked at the end, so a metric does not depend on how a split was cut into batches but
//! for the means over batches, whose batches are the global ones. Logits are ranked, not probabilities: a sigmoid in f32
//! makes ties where there are none.

use super::breakdown::Breakdown;
use super::ranking::{Mrr, RankedEvent};
use super::{Average, LinkMetrics, LinkScores, NewNode, NonFiniteScore};
use serde::{Deserialize, Serialize};
use tch::Tensor;
use tidemill_data::id::EventId;
use tidemill_data::node_set::NodeSet;
use tidemill_data::stream::EventStream;

/// Logits of a split's events, batch by batch.
#[derive(Clone, Debug, Default)]
pub struct SplitScores {
    batches: Vec<BatchScores>,
    ranked: Vec<RankedEvent>,
    passed: usize,
    /// Seconds it took.
    pub seconds: f64,
}

/// Logits of one global batch.
#[derive(Clone, Debug)]
struct BatchScores {
    events: Vec<EventId>,
    positive: Vec<f64>,
    negative: Vec<f64>,
}

impl BatchScores {
    /// Every event with its logit and those of its negatives.
    fn rows(&self) -> impl Iterator<Item = (EventId, f64, &[f64])> {
        let per_event = self.negative.len() / self.events.len().max(1);
        let of = move |(i, &event): (usize, &EventId)| {
            (event, self.positive[i], &self.negative[i * per_event..(i + 1) * per_event])
        };
        self.events.iter().enumerate().map(of)
    }
}

impl SplitScores {
    /// Adds a batch.
    ///
    /// * `positive`: `[B]` logits. * `negative`: `[B * n]` logits, event after event.
    ///
    /// # Errors
    /// A logit that is not finite.
    pub fn push(&mut self, events: &[EventId], positive: &Tensor, negative: &Tensor) -> Result<(), NonFiniteScore> {
        let batch = BatchScores { events: events.to_vec(), positive: values(positive), negative: values(negative) };
        LinkScores::new().push(&batch.positive, &batch.negative)?;
        self.batches.push(batch);
        Ok(())
    }

    /// The scores as bytes: of each batch the numbers of events and negatives, events, logits.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for batch in &self.batches {
            let counts = [batch.events.len() as u64, batch.negative.len() as u64];
            bytes.extend_from_slice(bytemuck::cast_slice(&counts));
            bytes.extend_from_slice(bytemuck::cast_slice(&batch.events));
            bytes.extend_from_slice(bytemuck::cast_slice(&batch.positive));
            bytes.extend_from_slice(bytemuck::cast_slice(&batch.negative));
        }
        bytes
    }

    /// Scores from [`SplitScores::to_bytes`].
    ///
    /// # Panics
    /// If the bytes are of something else.
    pub fn from_bytes(mut bytes: &[u8]) -> SplitScores {
        fn take<T: bytemuck::Pod>(bytes: &mut &[u8], count: usize) -> Vec<T> {
            let (taken, rest) = bytes.split_at(count * size_of::<T>());
            *bytes = rest;
            bytemuck::allocation::pod_collect_to_vec(taken)
        }
        let mut batches = Vec::new();
        while !bytes.is_empty() {
            let counts = take::<u64>(&mut bytes, 2);
            batches.push(BatchScores {
                events: take(&mut bytes, counts[0] as usize),
                positive: take(&mut bytes, counts[0] as usize),
                negative: take(&mut bytes, counts[1] as usize),
            });
        }
        SplitScores { batches, ..SplitScores::default() }
    }

    /// Scores of one pass from several ranks, each with its share of every global batch, as one rank would have them.
    pub fn merged(ranks: Vec<SplitScores>) -> SplitScores {
        let batches = ranks.first().map_or(0, |scores| scores.batches.len());
        let merge = |at: usize| {
            let shares = || ranks.iter().map(|scores| &scores.batches[at]);
            let mut rows: Vec<(EventId, f64, &[f64])> = shares().flat_map(BatchScores::rows).collect();
            rows.sort_unstable_by_key(|(event, ..)| *event);
            BatchScores {
                events: rows.iter().map(|row| row.0).collect(),
                positive: rows.iter().map(|row| row.1).collect(),
                negative: rows.iter().flat_map(|row| row.2).copied().collect(),
            }
        };
        SplitScores { batches: (0..batches).map(merge).collect(), ..SplitScores::default() }
    }

    /// Adds a batch whose events were ranked within candidate sets; only the ranks are kept.
    ///
    /// * `passed`: events of the batch, ranked or not. * `events`: those ranked, `[B]`. * `positive`: `[B]` logits.
    /// * `candidates`: size of each set, `[B]`. * `negative`: `[B * n]` logits, n for each event, those beyond its set's size
    ///   ignored.
    ///
    /// # Errors
    /// A logit that is not finite.
    pub fn push_ranked(
        &mut self,
        passed: usize,
        events: &[EventId],
        positive: &Tensor,
        candidates: &[u32],
        negative: &Tensor,
    ) -> Result<(), NonFiniteScore> {
        self.passed += passed;
        let (positive, negative) = (values(positive), values(negative));
        let per_event = negative.len() / events.len().max(1);
        for (i, &event) in events.iter().enumerate() {
            let rivals = &negative[i * per_event..][..candidates[i] as usize];
            self.ranked.push(RankedEvent::new(event, positive[i], rivals)?);
        }
        Ok(())
    }

    /// Events that passed through the state, scored or not.
    pub fn events(&self) -> usize {
        self.passed + self.batches.iter().map(|batch| batch.events.len()).sum::<usize>()
    }

    /// The mean reciprocal rank of all events that were ranked; `None` if none was.
    pub fn mrr(&self) -> Option<Mrr> {
        self.mrr_where(|_| true)
    }

    /// The mean reciprocal rank of the ranked events that satisfy a condition.
    pub fn mrr_where(&self, keep: impl Fn(EventId) -> bool) -> Option<Mrr> {
        Mrr::of(self.ranked.iter().filter(|ranked| keep(ranked.event)).map(|ranked| ranked.reciprocal))
    }

    /// Every event that was scored or ranked.
    pub fn scored_events(&self) -> impl Iterator<Item = EventId> {
        let batches = self.batches.iter().flat_map(|batch| batch.events.iter().copied());
        batches.chain(self.ranked.iter().map(|ranked| ranked.event))
    }

    /// Every event with its logit and those of its negatives, in event order.
    pub fn iter(&self) -> impl Iterator<Item = (EventId, f64, &[f64])> {
        self.batches.iter().flat_map(BatchScores::rows)
    }

    /// AP and AUC of all events.
    pub fn metrics(&self) -> LinkMetrics {
        self.metrics_where(|_| true).unwrap_or_default()
    }

    /// AP and AUC of the events that satisfy a condition, with their own negatives; `None` if there are none.
    pub fn metrics_where(&self, keep: impl Fn(EventId) -> bool) -> Option<LinkMetrics> {
        let mut all = LinkScores::new();
        for batch in &self.batches {
            let per_event = batch.negative.len() / batch.events.len().max(1);
            let (mut positive, mut negative) = (Vec::new(), Vec::new());
            for (i, _) in batch.events.iter().enumerate().filter(|(_, event)| keep(**event)) {
                positive.push(batch.positive[i]);
                negative.extend_from_slice(&batch.negative[i * per_event..(i + 1) * per_event]);
            }
            all.push(&positive, &negative).expect("scores were checked as they came");
        }
        (all.positives() > 0).then(|| all.finish())
    }
}

/// What a split's scores give.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SplitMetrics {
    /// All events.
    #[serde(flatten)]
    pub links: LinkMetrics,
    /// Events with a node that training did not see.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub new_node: Option<SubsetMetrics>,
    /// Mean reciprocal rank, where events were ranked one against many.
    #[serde(flatten)]
    pub mrr: Option<Mrr>,
    /// The same by time and by degree; left out while training.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub breakdown: Option<Breakdown>,
    /// Events.
    pub events: u64,
    /// Seconds it took.
    pub seconds: f64,
}

impl SplitMetrics {
    /// Metrics of a pass, new nodes among them if they are scored as a subset.
    pub fn of(scores: &SplitScores, stream: &EventStream, new_nodes: &NodeSet, rule: NewNode) -> SplitMetrics {
        let new_node = match rule {
            NewNode::Subset => SubsetMetrics::of(scores, |event| touches(stream, new_nodes, event)),
            NewNode::SeparatePass | NewNode::Off => None,
        };
        let (links, mrr) = (scores.metrics(), scores.mrr());
        SplitMetrics { links, new_node, mrr, breakdown: None, events: scores.events() as u64, seconds: scores.seconds }
    }

    /// What models are compared by: the mean reciprocal rank where there is one, else average precision, averaged as asked.
    pub fn score(&self, average: Average) -> f64 {
        match (self.mrr, average) {
            (Some(mrr), _) => mrr.mrr,
            (None, Average::Pooled) => self.links.ap,
            (None, Average::Batch) => self.links.ap_batch_mean,
        }
    }
}

/// Figures of some of a split's events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SubsetMetrics {
    /// AP and AUC.
    #[serde(flatten)]
    pub links: LinkMetrics,
    /// Mean reciprocal rank.
    #[serde(flatten)]
    pub mrr: Option<Mrr>,
}

impl SubsetMetrics {
    /// Figures of the events that satisfy a condition; `None` if none of them was scored.
    pub fn of(scores: &SplitScores, keep: impl Fn(EventId) -> bool) -> Option<SubsetMetrics> {
        let (links, mrr) = (scores.metrics_where(&keep), scores.mrr_where(&keep));
        (links.is_some() || mrr.is_some()).then(|| SubsetMetrics { links: links.unwrap_or_default(), mrr })
    }
}

/// Whether an endpoint of the event is among `nodes`.
pub fn touches(stream: &EventStream, nodes: &NodeSet, event: EventId) -> bool {
    nodes.contains(stream.source(event)) || nodes.contains(stream.destination(event))
}

fn values(tensor: &Tensor) -> Vec<f64> {
    Vec::try_from(tensor.to_kind(tch::Kind::Double).to_device(tch::Device::Cpu).contiguous().view([-1]))
        .expect("a flat f64 tensor on the CPU")
}
