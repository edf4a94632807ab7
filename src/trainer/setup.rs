//! From a configuration to a trainer: stream, split, graphs, passes, model, state.

use super::calibrate::calibrate;
use super::commits::Syncing;
use super::{History, Hooks, Trainer};
use super::{costs, family};
use crate::comms::{Communicator, Ledger};
use crate::config::{Config, ModelName};
use crate::dependency::{Costs, Policy};
use crate::device::{self, GpuSum};
use crate::error::{Error, Result};
use crate::eval::NegativeKind;
use crate::gradient::GradientMode;
use crate::graph::Tcsr;
use crate::memory::{NodeMemory, StateShape};
use crate::partition::Rank;
use crate::pipeline::Pipeline;
use crate::pipeline::commit::MailRule;
use crate::pipeline::event::{Among, Dropout, EventStage, Negatives, Pass, RankedEvents};
use crate::pipeline::gather::Gather;
use crate::pipeline::replay::Replayer;
use crate::pipeline::state::{StateReader, StateWriter};
use crate::pipeline::sync::{SyncStage, Word};
use crate::pipeline::workers::Stages;
use crate::sampler::Sampler;
use crate::sampler::{SameBatch, Strategy};
use crate::setting::Auto;
use sha2::{Digest, Sha256};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;
use tidemill_data::id::EventId;
use tidemill_data::negative::{
    CandidateRule, CandidateSets, EdgeRule, EdgeSampler, NegativeSampler, Scored, sample_events,
};
use tidemill_data::philox::{Key, Purpose};
use tidemill_data::split::Split;
use tidemill_data::stream::EventStream;
use tidemill_models::model::{MailKeeping, MailTargets, Model, Payload, StateSpec};
use tidemill_models::optimizer::{Optimizer, OptimizerConfig};
use tidemill_models::parameters::Draw;

/// The passes that a run makes over its stream.
pub struct Passes {
    pub(super) train: Pass,
    /// The validation events.
    pub val: Pass,
    /// The test events.
    pub test: Pass,
}

impl Passes {
    /// The pass over the training events of one epoch, from 1.
    pub fn train(&self, epoch: u32) -> Pass {
        Pass { epoch, ..self.train.clone() }
    }

    fn new(config: &Config, stream: &EventStream, split: &Split, spec: &StateSpec, ranks: usize) -> Result<Passes> {
        let all: Arc<[EventId]> = (0..stream.len() as u32).map(EventId).collect();
        let whole = Arc::new(Tcsr::build(stream, &all));
        let training = if split.masked == 0 { whole.clone() } else { Arc::new(Tcsr::build(stream, &split.train)) };
        let sampler = |graph| {
            let tick = stream.meta().tick;
            let reads_neighbors = spec.layers > 0;
            Arc::new(match reads_neighbors {
                true => Sampler::new(&config.sampler, graph, tick),
                false => Sampler::without_neighbors(graph, tick),
            })
        };
        let edges = |events: &[EventId]| family::edge_memory(spec, config, stream, split, events);
        let (met_in_training, met_later) = (edges(&split.train), edges(&all));
        let (seen_in_training, seen_later) = (sampler(training), sampler(whole));
        let avoid = config.train.avoid_positive;
        for (name, events) in [("validation", split.val.len()), ("test", split.test.len())] {
            if events == 0 {
                tracing::warn!(
                    "the {name} split is empty: its metrics are not numbers; change split.train and split.val"
                );
            }
        }
        let negatives = |rule, scored, key| {
            let sampler = NegativeSampler::new(stream, split, rule, scored, avoid, key)?;
            if avoid && sampler.candidates() == 1 {
                return Err(one_candidate());
            }
            Ok(Negatives::Drawn(Arc::new(sampler)))
        };
        let eval_key = Key::new(config.eval.negative_seed, Purpose::EvalNegative);
        let evaluation = |range: &Range<u32>, scored| -> Result<Pass> {
            Ok(Pass {
                events: range.clone().map(EventId).collect(),
                batch_size: config.eval_batch_size(),
                sampler: seen_later.clone(),
                cache: None,
                negatives: match config.eval.negatives {
                    NegativeKind::Random => negatives(&config.eval.candidates, scored, eval_key)?,
                    NegativeKind::Historical => negative_edges(stream, split, EdgeRule::Historical, &all, eval_key),
                    NegativeKind::Inductive => negative_edges(stream, split, EdgeRule::Inductive, &all, eval_key),
                    NegativeKind::Tgb => ranked(config, stream, split, (range, scored), spec)?,
                },
                negatives_per_event: 1,
                seed: config.seed,
                epoch: 0,
                dropout: None,
                mail: MailRule::of(spec),
                edges: met_later.clone(),
                partition: None,
            })
        };
        let train_key = Key::new(config.seed, Purpose::TrainNegative);
        let train = Pass {
            events: split.train.clone(),
            batch_size: config.train.batch_size,
            sampler: seen_in_training.clone(),
            cache: None,
            negatives: negatives(&config.train.negatives, Scored::Train, train_key)?,
            negatives_per_event: 1,
            seed: config.seed,
            epoch: 1,
            dropout: (spec.dropout > 0.0).then_some(Dropout { p: spec.dropout, heads: spec.heads as usize }),
            mail: MailRule::of(spec),
            edges: met_in_training,
            partition: None,
        };
        let train = match ranks {
            1 => train,
            _ => train.partitioned(stream, ranks, &config.partition, None),
        };
        Ok(Passes { train, val: evaluation(&split.val, Scored::Val)?, test: evaluation(&split.test, Scored::Test)? })
    }
}

impl Trainer {
    /// Loads the stream and makes ready for the first batch.
    ///
    /// # Errors
    /// A configuration, file, split or device that can not be used.
    pub fn new(config: Config) -> Result<Trainer> {
        Trainer::on_rank(config, Communicator::alone())
    }

    /// As [`Trainer::new`], on one of several ranks; each must be given the same configuration and data.
    ///
    /// # Errors
    /// As [`Trainer::new`], a rank that was given something else, and a lost peer.
    pub fn on_rank(config: Config, comm: Communicator) -> Result<Trainer> {
        let stream = tidemill_data::load(&config.data, &mut |notice| tracing::info!("{notice}"))?;
        Trainer::over_on_rank(config, stream, comm)
    }

    /// As [`Trainer::new`], over a stream at hand; `[data]` then only rules the time origin.
    ///
    /// # Errors
    /// As [`Trainer::new`].
    pub fn over(config: Config, stream: EventStream) -> Result<Trainer> {
        Trainer::over_on_rank(config, stream, Communicator::alone())
    }

    /// As [`Trainer::on_rank`], over a stream at hand.
    ///
    /// # Errors
    /// As [`Trainer::on_rank`].
    pub fn over_on_rank(config: Config, stream: EventStream, comm: Communicator) -> Result<Trainer> {
        Trainer::build(config, stream, comm, family::make)
    }

    /// As [`Trainer::over`], with a model of the caller's own; `[model]` is then whatever `make` makes of it.
    ///
    /// # Errors
    /// As [`Trainer::new`], and what `make` refuses.
    pub fn with_model(
        config: Config,
        stream: EventStream,
        make: impl FnOnce(&Config, &EventStream, tch::Device) -> Result<Box<dyn Model>>,
    ) -> Result<Trainer> {
        Trainer::build(config, stream, Communicator::alone(), |config, stream, _, device| make(config, stream, device))
    }

    fn build(
        mut config: Config,
        stream: EventStream,
        comm: Communicator,
        make: impl FnOnce(&Config, &EventStream, &Split, tch::Device) -> Result<Box<dyn Model>>,
    ) -> Result<Trainer> {
        config.validate()?;
        let device = device::select(&config.device)?;
        let threads = device::set_threads(config.threads, config.pipeline.intra_op);
        let split = Split::new(&stream, &config.split)?;
        let model = make(&config, &stream, &split, device)?;
        let spec = model.spec();
        if comm.world() > 1 {
            can_be_shared(&config, &spec)?;
            comm.agree("configuration", config.fixed_on_resume().to_toml().as_bytes())?;
            comm.agree("data", stream.hash().as_bytes())?;
        }
        if comm.rank() == 0 {
            without_effect(&config, &spec, comm.world()).iter().for_each(|words| tracing::warn!("{words}"));
        }
        let passes = Passes::new(&config, &stream, &split, &spec, comm.world())?;
        let memory = NodeMemory::new(state_shape(&spec, &stream, device), config.data.time_origin.of(&stream));
        let gather = Gather { stream: stream.clone(), shape: memory.shape() };
        let reader = StateReader::new(gather.clone(), &*model, config.train.loss);
        if comm.world() > 1 && tau_cache(&config, &spec) != Auto::Value(0.0) {
            config.calibration = calibrate(config.calibration, &comm, CALIBRATION, &gather, &*model)?;
        }
        let among = (comm.world() > 1).then(|| among(&config, &spec, &comm, memory.shape(), &stream));
        let replayer = Replayer::new(&config.replay, config.gradient.mode == GradientMode::Racom);
        let writer = StateWriter::new(gather, &*model, &reader, replayer);
        let stages = Stages { event: EventStage::new(stream.clone(), among), reader };
        let train = &config.train;
        let optimizer =
            OptimizerConfig { kind: train.optimizer, weight_decay: train.weight_decay, ..Default::default() };
        let optimizer = Optimizer::new(optimizer, model.parameters());
        let sync = SyncStage::new(optimizer, train.lr, train.lr_schedule, train.clip_norm, comm.clone());
        let sync = sync.exchanging(&config.gradient);
        let sync = match comm.world() {
            1 => sync,
            _ if sync.racom().is_some() => sync,
            _ => sync.between_gpus(GpuSum::connect(&comm, device, GPU_COLLECTIVES)?),
        };
        let history = History::start(passes.train.batches(), train.epochs);
        let pipeline = Pipeline::new(&config.pipeline, stages, writer, memory, &config.sync, comm.clone());
        let pipeline = match sync.racom() {
            Some(_) => pipeline.with_gradient_lag(config.gradient.max_staleness as usize),
            None => pipeline,
        };
        Ok(Trainer {
            set_up: comm.ledger(),
            config,
            stream,
            split,
            passes,
            model,
            pipeline,
            sync: Syncing::Here(sync),
            uncommitted: VecDeque::new(),
            lap: Instant::now(),
            history,
            best: None,
            comm,
            trained: Ledger::default(),
            collectives: 0,
            agreed: Word::default(),
            owners: None,
            device,
            threads,
            hooks: Hooks::default(),
            run: None,
        })
    }
}

/// Numbers of the collectives that connect GPUs, apart from the trainer's own.
const GPU_COLLECTIVES: u64 = 1 << 40;
/// Numbers of those of the calibration.
const CALIBRATION: u64 = 1 << 41;

/// Refuses what one rank alone can do.
fn can_be_shared(config: &Config, spec: &StateSpec) -> Result<()> {
    let refused = |problem: &str, mend: &str| {
        Err(Error::Usage { problem: problem.to_owned(), mend: format!("{mend}, or start one rank") })
    };
    let endpoints = matches!(spec.mail_targets, MailTargets::Endpoints | MailTargets::Nobody);
    let pairs = matches!(spec.payload, Payload::Pair | Payload::PairSum);
    if !endpoints || pairs || spec.mail_keeping != MailKeeping::UntilApplied {
        return refused(
            "mails that go to neighbors do not cross ranks yet",
            "set model.name to \"tgn\", \"jodie\", \"dyrep\" or \"tgat\"",
        );
    }
    if config.model.name == ModelName::Edgebank {
        return refused("the memory of edges is not shared among ranks yet", "choose a model that is trained");
    }
    if config.eval.negatives != NegativeKind::Random {
        return refused(
            "negative edges and candidate sets are not scored on several ranks yet",
            "set eval.negatives to \"random\" and score the run anew afterwards (tidemill eval)",
        );
    }
    Ok(())
}

/// What was asked for and changes nothing, in a sentence each.
fn without_effect(config: &Config, spec: &StateSpec, ranks: usize) -> Vec<String> {
    let follows = config.dependency.tau_cache != Auto::Value(0.0);
    let asked = [
        (follows, "dependency.tau_cache"),
        (config.sync.gates(), "sync.eps_grad"),
        (config.replay.prunes(), "replay.l_max"),
        (config.gradient.mode == GradientMode::Racom, "gradient.mode"),
    ];
    let stateless = spec.mail_targets == MailTargets::Nobody;
    let reason = |key: &str| match key {
        _ if ranks == 1 => Some("there is one rank".to_owned()),
        "gradient.mode" => None,
        _ if stateless => Some(format!("{} keeps no rows that could differ between ranks", config.model.name.name())),
        "dependency.tau_cache" if spec.payload != Payload::MemoryRow => {
            let name = config.model.name.name();
            Some(format!("{name}'s mails carry embeddings and can not be replayed, so all rows are fetched"))
        }
        "replay.l_max" if !follows => Some("nothing is replayed while dependency.tau_cache is 0".to_owned()),
        _ => None,
    };
    let said = asked.into_iter().filter(|(asked, _)| *asked);
    said.filter_map(|(_, key)| Some(format!("{key} has no effect: {}", reason(key)?))).collect()
}

/// What a rank's plans are made with.
fn among(config: &Config, spec: &StateSpec, comm: &Communicator, shape: StateShape, stream: &EventStream) -> Among {
    let (costs, weights) = costs::of(config, spec, shape, stream);
    Among {
        me: Rank(comm.rank() as u16),
        delegate: config.delegate(),
        weights,
        writes: spec.mail_targets != MailTargets::Nobody,
        costs,
        policy: policy(config, tau_cache(config, spec), costs),
    }
}

/// The threshold up to which remote rows are cached: none is where there are none, or a rank alone can not make what mails carry.
fn tau_cache(config: &Config, spec: &StateSpec) -> Auto<f64> {
    match (spec.payload, spec.mail_targets) {
        (_, MailTargets::Nobody) => Auto::Value(0.0),
        (Payload::MemoryRow, _) => config.dependency.tau_cache,
        _ => Auto::Value(0.0),
    }
}

/// How a rank's rows are followed and gated, unless all are fetched as soon as they are needed.
fn policy(config: &Config, tau: Auto<f64>, costs: Costs) -> Option<Policy> {
    let gated = config.sync.gates();
    let stale = !config.pipeline.serial && config.pipeline.staleness > 0;
    let drifts = config.replay.prunes() || stale || config.gradient.mode == GradientMode::Racom;
    let policy =
        Policy { tau, costs, gated, corrections: drifts.then_some(config.sync.cached_interval), looks_ahead: drifts };
    (policy.follows() || gated).then_some(policy)
}

/// Negative edges of the whole stream.
fn negative_edges(stream: &EventStream, split: &Split, rule: EdgeRule, all: &Arc<[EventId]>, key: Key) -> Negatives {
    let last = split.train.last().expect("a split has training events");
    Negatives::Edges(Arc::new(EdgeSampler::new(stream, all.clone(), stream.time(*last), rule, key)))
}

/// With more events than this, embedding each one's candidates takes long.
const MANY_RANKED: usize = 1000;

/// Candidate sets of a split's events, or of some of them.
fn ranked(
    config: &Config,
    stream: &EventStream,
    split: &Split,
    (range, scored): (&Range<u32>, Scored),
    spec: &StateSpec,
) -> Result<Negatives> {
    let eval = &config.eval;
    let key = Key::new(eval.negative_seed, Purpose::EvalNegative).narrow([0, 0, 0, 2]);
    let events: Vec<EventId> = range.clone().map(EventId).collect();
    let only =
        (eval.mrr_events > 0).then(|| sample_events(&events, eval.mrr_events, key.narrow([scored as u32, 0, 0, 0])));
    let sets = match &eval.candidates {
        CandidateRule::File(path) if path.extension().is_some_and(|e| e == "npz") => {
            CandidateSets::stored(stream, path, only.as_ref().unwrap_or(&events))?
        }
        rule => {
            let pool: Vec<_> = NegativeSampler::new(stream, split, rule, scored, false, key)?.iter().collect();
            CandidateSets::drawn(stream, split, pool, eval.candidates_per_event, key)
        }
    };
    let sampler = &config.sampler;
    let timeless = !spec.root_time && sampler.strategy == Strategy::Recent && sampler.same_batch == SameBatch::Hidden;
    if !timeless && only.is_none() && events.len() > MANY_RANKED {
        tracing::warn!(
            "each candidate of each of {} events is embedded; --set eval.mrr_events=500 ranks a sample",
            events.len()
        );
    }
    Ok(Negatives::Sets(Arc::new(RankedEvents { sets, only, timeless })))
}

fn one_candidate() -> Error {
    Error::Usage {
        problem: "there is one candidate destination, so no negative differs from the true one".to_owned(),
        mend: "set train.negatives and eval.candidates to \"all_nodes\", or train.avoid_positive to false".to_owned(),
    }
}

/// The shape of what is kept for a model.
pub(super) fn state_shape(spec: &StateSpec, stream: &EventStream, device: tch::Device) -> StateShape {
    StateShape {
        nodes: stream.nodes() as usize,
        memory_dim: spec.memory_dim,
        payload_dim: spec.payload_dim,
        code_dim: spec.stored_time_code,
        kind: spec.kind,
        device,
    }
}

/// Initial parameters: Philox words keyed by seed, name and index.
pub struct PhiloxDraw {
    seed: u64,
    /// The latest name's key: a parameter's elements are drawn one after another.
    latest: RefCell<(String, Key)>,
}

impl PhiloxDraw {
    /// The draws of a run's seed.
    pub fn new(seed: u64) -> PhiloxDraw {
        PhiloxDraw { seed, latest: RefCell::new((String::new(), PhiloxDraw::key_of(seed, ""))) }
    }

    fn key(&self, name: &str) -> Key {
        let mut latest = self.latest.borrow_mut();
        if latest.0 != name {
            *latest = (name.to_owned(), PhiloxDraw::key_of(self.seed, name));
        }
        latest.1
    }

    fn key_of(seed: u64, name: &str) -> Key {
        let digest = Sha256::digest(name.as_bytes());
        let word = |i: usize| u32::from_le_bytes(digest[4 * i..4 * i + 4].try_into().expect("four bytes"));
        Key::new(seed, Purpose::Parameter).narrow([word(0), word(1), word(2), word(3)])
    }
}

impl Draw for PhiloxDraw {
    fn uniform(&self, name: &str, index: u64) -> f64 {
        self.key(name).uniform(index)
    }

    fn normal(&self, name: &str, index: u64) -> f64 {
        self.key(name).normal(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_nothing_is_said() {
        let mut config = Config::default();
        let rows = StateSpec { mail_targets: MailTargets::Endpoints, ..StateSpec::default() };
        assert!(without_effect(&config, &rows, 1).is_empty());
        (config.dependency.tau_cache, config.gradient.mode) = (Auto::Value(1.0), GradientMode::Racom);
        assert!(without_effect(&config, &rows, 2).is_empty());
        let alone = without_effect(&config, &rows, 1);
        assert!(alone.len() == 2 && alone.iter().all(|words| words.ends_with("there is one rank")), "{alone:?}");
        let carried = StateSpec { payload: Payload::Embedding, ..rows.clone() };
        let words = without_effect(&config, &carried, 2);
        assert!(words.len() == 1 && words[0].contains("can not be replayed"), "{words:?}");
        let nobody = StateSpec { mail_targets: MailTargets::Nobody, ..rows };
        let words = without_effect(&config, &nobody, 2);
        assert!(words.len() == 1 && words[0].starts_with("dependency.tau_cache has no effect: tgn keeps"), "{words:?}");
    }
}
