//! P ranks equal one in exact mode (algorithm page, section 10): the same samples, each training event primary on exactly one
//! rank, and, free-running in f64 with a fixed time encoder, the same losses, metrics and state up to rounding.

use super::streams;
use crate::comms::{Communicator, Purpose};
use crate::config::Config;
use crate::partition::Strategy;
use crate::sampler::SampleHash;
use crate::setting::Auto;
use crate::trainer::Trainer;
use std::sync::{Arc, Mutex};
use std::thread;
use tidemill_data::id::EventId;
use tidemill_data::stream::EventStream;

/// What a run leaves: of one rank, or of all put together.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) losses: Vec<f64>,
    pub(super) val_ap: f64,
    pub(super) test_ap: f64,
    pub(super) scores: Vec<f64>,
    pub(super) hash: SampleHash,
    pub(super) primary: Vec<EventId>,
    pub(super) rows_fetched: u64,
    pub(super) owned: usize,
    pub(super) crossed: crate::pipeline::Crossed,
    pub(super) replayed: crate::pipeline::replay::ReplayCounts,
    pub(super) cached: u64,
    /// Bytes of rows pushed, corrected and carried by mails.
    pub(super) state_bytes: u64,
}

/// One epoch, then validation and test.
fn run_rank(config: &Config, stream: &EventStream, comm: Communicator, prepare: fn(&mut Trainer)) -> Outcome {
    let mut trainer =
        Trainer::over_on_rank(config.clone(), stream.clone(), comm.clone()).expect("a valid configuration");
    prepare(&mut trainer);
    let primary = Arc::new(Mutex::new(Vec::new()));
    let seen = primary.clone();
    let losses = Arc::new(Mutex::new(Vec::new()));
    let shares = losses.clone();
    trainer.hooks.on_batch(Box::new(move |batch| {
        seen.lock().expect("unpoisoned").extend(&batch.plan.events);
        shares.lock().expect("unpoisoned").push(batch.scored.loss);
    }));
    trainer.train_epoch().expect("trains");
    let hash = trainer.history.sample_hash;
    let state_bytes = state_bytes(&comm);
    let owned = trainer.pipeline.memory().places().own_len();
    let val = trainer.score_split(&trainer.passes.val.clone()).expect("scores");
    let mut test = trainer.passes.test.clone();
    test.events = test.events.iter().copied().take(2000).collect();
    test.cache = None;
    let test = trainer.score_split(&test).expect("scores");
    let all = val.iter().chain(test.iter());
    let scores = all.flat_map(|(_, positive, negatives)| std::iter::once(positive).chain(negatives.to_vec())).collect();
    let (val, test) = (val.metrics(), test.metrics());
    let losses = losses.lock().expect("unpoisoned").clone();
    let primary = primary.lock().expect("unpoisoned").clone();
    let counts = trainer.pipeline.counts();
    let (rows_fetched, cached) = (counts.fetched, counts.cached);
    let (crossed, replayed) = (trainer.pipeline.crossed(), trainer.pipeline.replayed());
    comm.finish().expect("every rank is done");
    Outcome {
        losses,
        val_ap: val.ap,
        test_ap: test.ap,
        scores,
        hash,
        primary,
        rows_fetched,
        owned,
        crossed,
        replayed,
        cached,
        state_bytes,
    }
}

fn state_bytes(comm: &Communicator) -> u64 {
    let ledger = comm.ledger();
    [Purpose::Fetch, Purpose::Commit, Purpose::Sync].into_iter().map(|purpose| ledger.of(purpose).sent_bytes).sum()
}

/// The run on `ranks` ranks of one process: each says the same of losses and metrics.
pub(super) fn run(config: &Config, stream: &EventStream, ranks: usize) -> Outcome {
    run_prepared(config, stream, ranks, |_| {})
}

/// As [`run`], each rank's trainer changed before it starts.
pub(super) fn run_prepared(config: &Config, stream: &EventStream, ranks: usize, prepare: fn(&mut Trainer)) -> Outcome {
    if ranks == 1 {
        return run_rank(config, stream, Communicator::alone(), prepare);
    }
    let comms = Communicator::local_poisoned(ranks, &config.comm);
    let outcomes: Vec<Outcome> = thread::scope(|scope| {
        let runs: Vec<_> =
            comms.into_iter().map(|comm| scope.spawn(move || run_rank(config, stream, comm, prepare))).collect();
        runs.into_iter().map(|run| run.join().expect("a rank's own words")).collect()
    });
    let mut whole = Outcome::default();
    for outcome in outcomes {
        if whole.losses.is_empty() {
            whole.losses = vec![0.0; outcome.losses.len()];
            (whole.val_ap, whole.test_ap) = (outcome.val_ap, outcome.test_ap);
            whole.scores.clone_from(&outcome.scores);
        }
        let bits = |outcome: &Outcome| [outcome.val_ap, outcome.test_ap].map(f64::to_bits);
        assert_eq!(bits(&outcome), bits(&whole), "all ranks say the same");
        whole.losses.iter_mut().zip(&outcome.losses).for_each(|(sum, share)| *sum += share);
        whole.hash += outcome.hash;
        whole.primary.extend(outcome.primary);
        whole.rows_fetched += outcome.rows_fetched;
        whole.owned += outcome.owned;
        whole.cached += outcome.cached;
        whole.state_bytes += outcome.state_bytes;
        whole.replayed.rows += outcome.replayed.rows;
        whole.replayed.lossless += outcome.replayed.lossless;
        whole.replayed.lossy += outcome.replayed.lossy;
        let drift = std::mem::take(&mut whole.crossed.drift);
        whole.crossed = outcome.crossed;
        whole.crossed.drift.add(&drift);
    }
    whole
}

/// f64 and a fixed time encoder: rounding does not grow.
pub(super) fn config(batch_size: usize, max_batches: usize) -> Config {
    let mut config = Config::default();
    let model = &mut config.model.tgn;
    (model.memory_dim, model.time_dim, model.embedding_dim) = (16, 16, 16);
    (model.dtype, model.time_encoder) =
        (tidemill_models::tgn::Dtype::F64, tidemill_models::time_encoder::TimeEncoding::Fixed);
    (config.train.batch_size, config.train.max_batches, config.train.epochs) = (batch_size, max_batches, 1);
    (config.train.lr, config.partition.window_events) = (1e-3, 5 * batch_size);
    config.pipeline.intra_op = 1;
    config
}

pub(super) fn assert_equal(name: &str, many: &Outcome, one: &Outcome) {
    assert_eq!(many.hash, one.hash, "{name}: samples");
    let mut primary = many.primary.clone();
    primary.sort_unstable();
    let mut expected = one.primary.clone();
    expected.sort_unstable();
    assert_eq!(primary, expected, "{name}: each event is primary on one rank");
    assert_eq!(many.owned, one.owned, "{name}: each node has one owner");
    assert_eq!(many.losses.len(), one.losses.len());
    for (batch, (a, b)) in many.losses.iter().zip(&one.losses).enumerate() {
        assert!((a - b).abs() <= 1e-9, "{name}: loss of batch {batch}: {a} and {b}");
    }
    assert_eq!(many.scores.len(), one.scores.len());
    for (at, (a, b)) in many.scores.iter().zip(&one.scores).enumerate() {
        assert!((a - b).abs() <= 1e-9, "{name}: score {at}: {a} and {b}");
    }
}

/// Every strategy, delegated or not, on 2, 3 and 4 ranks.
fn check(stream: &EventStream, config: &Config, ranks: &[usize], strategies: &[Strategy]) {
    let one = run(config, stream, 1);
    for &strategy in strategies {
        for delegate in [Auto::Value(false), Auto::Value(true), Auto::Auto] {
            for &ranks in ranks {
                let mut config = config.clone();
                (config.partition.strategy, config.dependency.delegate) = (strategy, delegate);
                let many = run(&config, stream, ranks);
                let name = format!("{strategy:?}, delegate {delegate:?}, {ranks} ranks");
                assert_equal(&name, &many, &one);
                for (a, b) in [(many.val_ap, one.val_ap), (many.test_ap, one.test_ap)] {
                    assert!((a - b).abs() <= 1e-6, "{name}: {a} and {b}");
                }
                assert!(many.rows_fetched > 0 || delegate == Auto::Value(true));
            }
        }
    }
}

const ALL: [Strategy; 2] = [Strategy::Hash, Strategy::Fennel];

#[test]
fn small_stream() {
    check(&streams::small(), &config(16, 0), &[2, 3, 4], &ALL);
}

#[test]
fn small_stream_with_features_and_evictions() {
    let stream = streams::small().with_random_features(6, 7).expect("room");
    let mut config = config(16, 0);
    config.partition.rebalance_above = 1.02;
    for cache in [0, 4_000] {
        config.dependency.cache_bytes = crate::byte_size::ByteSize(cache);
        check(&stream, &config, &[3], &[Strategy::Hash, Strategy::Range]);
    }
}

#[test]
fn two_layers_and_uniform_samples() {
    let mut config = config(16, 6);
    config.sampler.strategy = crate::sampler::Strategy::Uniform;
    config.sampler.neighbors = vec![5, 3];
    config.model.tgn.layers = 2;
    check(&streams::small(), &config, &[3], &[Strategy::Hash]);
}

#[test]
fn mean_aggregator_and_stored_message_time() {
    let mut config = config(16, 0);
    config.model.tgn.aggregator = tidemill_models::message::Aggregator::Mean;
    config.model.tgn.message_time = tidemill_models::message::MessageTime::Stored;
    check(&streams::small(), &config, &[2], &[Strategy::Hash]);
}

/// DyRep: what mails carry is an embedding, which comes from where its root is embedded and can not be replayed.
#[test]
fn mails_of_embeddings() {
    use tidemill_models::{dyrep::Score, message::Aggregator};
    let stream = streams::small().with_random_features(6, 7).expect("room");
    for (score, aggregator) in [(Score::Memory, Aggregator::Last), (Score::Attention, Aggregator::Mean)] {
        let mut config = config(16, 0);
        config.model.name = crate::config::ModelName::Dyrep;
        (config.model.dyrep.score, config.model.tgn.aggregator) = (score, aggregator);
        (config.partition.rebalance_above, config.dependency.tau_cache) = (1.02, Auto::Value(1.0));
        config.partition.strategy = Strategy::Range;
        let one = run(&config, &stream, 1);
        for (ranks, delegate) in [(2, Auto::Value(true)), (3, Auto::Value(false)), (3, Auto::Auto)] {
            config.dependency.delegate = delegate;
            let many = run(&config, &stream, ranks);
            // Not their AP: rows that nobody touched score the same but for rounding, and it hangs on which comes first.
            assert_equal(&format!("{score:?}, delegate {delegate:?}, {ranks} ranks"), &many, &one);
            assert!(many.cached == 0 && many.replayed == Default::default() && many.state_bytes > 0);
        }
    }
}

/// A split may hold no event: there is nothing to share out then, and nothing to score.
#[test]
fn a_split_without_events() {
    let mut config = config(16, 3);
    (config.split.train, config.split.val) = (0.9, 0.1);
    let stream = streams::small();
    let (one, many) = (run(&config, &stream, 1), run(&config, &stream, 2));
    assert_equal("no test events", &many, &one);
    assert!(many.test_ap.is_nan() && one.test_ap.is_nan());
}

#[test]
fn inline_stages() {
    let mut config = config(16, 0);
    config.pipeline.serial = true;
    check(&streams::small(), &config, &[2], &[Strategy::Hash]);
}

/// What the one-rank run says of a batch, to be followed by others.
struct Step {
    state: crate::memory::NodeState,
    parameters: tch::Tensor,
    loss: f64,
    gradient: tch::Tensor,
}

/// The one-rank run's batches, each with state and parameters as they were before it; the last has only these.
fn leading_steps(config: &Config, stream: &EventStream, batches: usize) -> Vec<Step> {
    let mut config = config.clone();
    (config.pipeline.serial, config.train.max_batches) = (true, batches);
    let mut leader = Trainer::over(config, stream.clone()).expect("a valid configuration");
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = told.clone();
    leader.hooks.on_batch(Box::new(move |batch| {
        let gradient = batch.parameters.grads().copy();
        tell.lock().expect("unpoisoned").push((batch.scored.loss, gradient));
    }));
    let mut steps = Vec::new();
    for batch in 0..=batches {
        let state = match batch {
            0 => None, // the epoch starts from empty memory
            _ => Some(leader.pipeline.memory().read_all()),
        };
        let state = state.unwrap_or_else(|| leader.pipeline.memory().read_all());
        let parameters = leader.model.parameters().values().detach().copy();
        let (mut loss, mut gradient) = (f64::NAN, parameters.zeros_like());
        if batch < batches {
            leader.train_until(batch + 1).expect("trains");
            (loss, gradient) = told.lock().expect("unpoisoned").pop().expect("a batch");
        }
        steps.push(Step { state, parameters, loss, gradient });
    }
    steps
}

/// Largest distances of a rank's batches from the leader's, as parts of the norms: gradient, committed rows.
fn follow(config: &Config, stream: &EventStream, comm: Communicator, steps: &[Step]) -> (Vec<f64>, f64, f64) {
    let mut config = config.clone();
    (config.pipeline.serial, config.train.max_batches) = (true, steps.len() - 1);
    let mut trainer = Trainer::over_on_rank(config, stream.clone(), comm.clone()).expect("a valid configuration");
    let told = Arc::new(Mutex::new((f64::NAN, None, Vec::new())));
    let tell = told.clone();
    trainer.hooks.on_batch(Box::new(move |batch| {
        let gradient = batch.parameters.grads().copy();
        *tell.lock().expect("unpoisoned") = (batch.scored.loss, Some(gradient), batch.plan.commit.nodes.clone());
    }));
    let distance = |a: &tch::Tensor, b: &tch::Tensor| {
        let norm = |t: &tch::Tensor| t.norm().to_kind(tch::Kind::Double).double_value(&[]);
        norm(&(a - b)) / norm(b).max(1e-30)
    };
    let (mut losses, mut worst) = (Vec::new(), (0.0f64, 0.0f64));
    let pass = trainer.passes.train(1);
    trainer.pipeline.start_afresh(pass, 0..steps.len() - 1);
    for (number, step) in steps[..steps.len() - 1].iter().enumerate() {
        trainer.model.parameters_mut().set_values(&step.parameters).expect("the same model");
        {
            let mut memory = trainer.pipeline.memory();
            let own = memory.places().own(0..memory.places().own_len());
            let places: Vec<usize> = own.iter().map(|node| node.index()).collect();
            memory.overwrite(&own, &step.state.select(&places));
        }
        let batch = trainer.pipeline.next_batch().expect("peers").expect("a batch");
        let embedded = trainer.model.embed(&batch.input, tidemill_models::model::Mode::Train);
        trainer.pipeline.commit_state(&batch, &embedded, &*trainer.model).expect("peers");
        let z = trainer.pipeline.exchange_embeddings(&batch, &embedded.z).expect("peers");
        let scored = trainer.model.score(&z, &batch.pairs);
        let grad_z = trainer.pipeline.return_gradients(&batch, &scored.grad_z).expect("peers");
        let rows = embedded.rows.detach();
        trainer.model.backward(embedded, &grad_z);
        trainer.sync_batch(&batch, &scored, Some(&rows)).expect("peers");
        let (loss, gradient, nodes) = std::mem::replace(&mut *told.lock().expect("unpoisoned"), (0.0, None, vec![]));
        losses.push(loss);
        // In batch 0 all embeddings are one, and the true and the negative half of the gradient all but cancel: its norm is
        // no measure of its rounding, so the next batch's serves.
        let scale = &steps[number.max(1)].gradient;
        let gradient = gradient.expect("a gradient") - &step.gradient + scale;
        worst.0 = worst.0.max(distance(&gradient, scale));
        let places: Vec<usize> = nodes.iter().map(|node| node.index()).collect();
        if !nodes.is_empty() {
            let theirs = steps[number + 1].state.select(&places);
            let ours = trainer.pipeline.memory().read(&nodes);
            assert_eq!((&ours.last_update, &ours.mails), (&theirs.last_update, &theirs.mails), "batch {number}");
            worst.1 = worst.1.max(distance(&ours.rows, &theirs.rows)).max(distance(&ours.payload, &theirs.payload));
        }
    }
    comm.finish().expect("every rank is done");
    (losses, worst.0, worst.1)
}

/// Lock-step in f32: rows and parameters are the one-rank run's before each batch, copies that were pushed stay.
fn check_lock_step(name: &str, config: &Config, stream: &EventStream, ranks: usize, most: usize) {
    let batches = Trainer::over(config.clone(), stream.clone()).expect("a valid configuration").batches().min(most);
    let steps = leading_steps(config, stream, batches);
    let comms = Communicator::local_poisoned(ranks, &config.comm);
    let steps = Mutex::new(steps);
    let ends: Vec<(Vec<f64>, f64, f64)> = {
        // Tensors are not shared between threads: each rank gets copies of its own.
        let copies: Vec<Vec<Step>> = comms.iter().map(|_| copy_of(&steps.lock().expect("unpoisoned"))).collect();
        thread::scope(|scope| {
            let runs: Vec<_> = (comms.into_iter().zip(copies))
                .map(|(comm, steps)| scope.spawn(move || follow(config, stream, comm, &steps)))
                .collect();
            runs.into_iter().map(|run| run.join().expect("a rank's own words")).collect()
        })
    };
    let steps = steps.into_inner().expect("unpoisoned");
    let worst_loss = (0..batches)
        .map(|batch| {
            let sum: f64 = ends.iter().map(|end| end.0[batch]).sum();
            (sum - steps[batch].loss).abs() / steps[batch].loss.abs()
        })
        .fold(0.0, f64::max);
    let gradient = ends.iter().map(|end| end.1).fold(0.0, f64::max);
    let rows = ends.iter().map(|end| end.2).fold(0.0, f64::max);
    eprintln!(
        "{name}, {ranks} ranks, {batches} batches: loss {worst_loss:.1e}, gradient {gradient:.1e}, rows {rows:.1e}"
    );
    assert!(worst_loss <= 1e-5 && gradient <= 1e-5 && rows <= 1e-5, "{name}: {worst_loss} {gradient} {rows}");
}

fn copy_of(steps: &[Step]) -> Vec<Step> {
    let whole = |state: &crate::memory::NodeState| state.select(&(0..state.counts.len()).collect::<Vec<_>>());
    let copy = |step: &Step| Step {
        state: whole(&step.state),
        parameters: step.parameters.copy(),
        loss: step.loss,
        gradient: step.gradient.copy(),
    };
    steps.iter().map(copy).collect()
}

#[test]
fn lock_step() {
    let mut config = Config::default();
    let model = &mut config.model.tgn;
    (model.memory_dim, model.time_dim, model.embedding_dim) = (16, 16, 16);
    (config.train.batch_size, config.train.lr, config.partition.window_events) = (16, 1e-3, 48);
    config.pipeline.intra_op = 1;
    for delegate in [Auto::Value(false), Auto::Value(true), Auto::Auto] {
        config.dependency.delegate = delegate;
        check_lock_step(&format!("small, delegate {delegate:?}"), &config, &streams::small(), 3, 12);
    }
}

/// On real streams, where they are at hand: few batches, or with `TIDEMILL_PRODUCT=1` all of the acceptance, with
/// `TIDEMILL_PRODUCT=collegemsg` that stream's.
#[test]
fn real_streams() {
    let wanted = std::env::var("TIDEMILL_PRODUCT").unwrap_or_default();
    let all = !wanted.is_empty();
    let names = ["wikipedia.csv.gz", "collegemsg.csv.gz", "bitcoin-alpha.csv.gz"];
    for name in &names[..if all { 3 } else { 1 }] {
        if all && wanted != "1" && !name.starts_with(&wanted) {
            continue;
        }
        let Some(stream) = streams::real(name) else { return };
        for layers in if all { 1..=2 } else { 1..=1 } {
            let mut config = config(200, if all { 100 } else { 6 });
            (config.model.tgn.layers, config.sampler.neighbors) = (layers, vec![10; layers]);
            // Few batches leave many nodes untouched and their scores all alike but for the last bits, on which an AP hangs:
            // scores are compared, one by one.
            let share = |events: usize| events as f64 / stream.len() as f64;
            (config.split.by, config.split.train) =
                (tidemill_data::split::SplitBy::Count, share(200 * config.train.max_batches));
            (config.split.val, config.partition.window_events) = (share(2000), 5000);
            let one = run(&config, &stream, 1);
            let strategies = [Strategy::Fennel, Strategy::Hash, Strategy::Range, Strategy::Degree, Strategy::Temporal];
            for &strategy in &strategies[..if all { 5 } else { 1 }] {
                for delegate in [Auto::Value(false), Auto::Value(true), Auto::Auto] {
                    for ranks in if all { vec![2, 4] } else { vec![4] } {
                        (config.partition.strategy, config.dependency.delegate) = (strategy, delegate);
                        // a fifth of the whole state, so that copies are evicted
                        let state = u64::from(stream.nodes()) * 16 * 2 * 8;
                        let cache = if layers == 1 { state / 5 } else { 1 << 30 };
                        config.dependency.cache_bytes = crate::byte_size::ByteSize(cache);
                        let many = run(&config, &stream, ranks);
                        let what = format!("{name}, {layers} layers, {strategy:?}, {delegate:?}, {ranks} ranks");
                        let worst = many.losses.iter().zip(&one.losses).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                        let far = |(a, b): (&f64, &f64)| (a - b).abs();
                        let score = many.scores.iter().zip(&one.scores).map(far).fold(0.0, f64::max);
                        eprintln!("{what}: loss {worst:.1e}, scores {score:.1e}");
                        assert_equal(&what, &many, &one);
                    }
                }
            }
        }
        let mut config = Config::default();
        config.pipeline.intra_op = 1;
        for ranks in if all { vec![2, 4] } else { vec![4] } {
            check_lock_step(name, &config, &stream, ranks, if all { 300 } else { 30 });
        }
    }
}
