//! P ranks equal one in exact mode (algorithm page, section 10): the same samples, each training event primary on exactly one
//! rank, and, free-running in f64 with a fixed time encoder, the same losses, metrics and state up to rounding.

use super::streams;
use crate::comms::Communicator;
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
struct Outcome {
    losses: Vec<f64>,
    val_ap: f64,
    test_ap: f64,
    hash: SampleHash,
    primary: Vec<EventId>,
    rows_fetched: u64,
    owned: usize,
}

/// One epoch, then validation and test.
fn run_rank(config: &Config, stream: &EventStream, comm: Communicator) -> Outcome {
    let mut trainer =
        Trainer::over_on_rank(config.clone(), stream.clone(), comm.clone()).expect("a valid configuration");
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
    let owned = trainer.pipeline.memory().places().own_len();
    let val = trainer.score_split(&trainer.passes.val.clone()).expect("scores").metrics();
    let test = trainer.score_split(&trainer.passes.test.clone()).expect("scores").metrics();
    let losses = losses.lock().expect("unpoisoned").clone();
    let primary = primary.lock().expect("unpoisoned").clone();
    let rows_fetched = trainer.pipeline.counts().fetched;
    comm.finish().expect("every rank is done");
    Outcome { losses, val_ap: val.ap, test_ap: test.ap, hash, primary, rows_fetched, owned }
}

/// The run on `ranks` ranks of one process: each says the same of losses and metrics.
fn run(config: &Config, stream: &EventStream, ranks: usize) -> Outcome {
    if ranks == 1 {
        return run_rank(config, stream, Communicator::alone());
    }
    let comms = Communicator::local_poisoned(ranks, &config.comm);
    let outcomes: Vec<Outcome> = thread::scope(|scope| {
        let runs: Vec<_> = comms.into_iter().map(|comm| scope.spawn(|| run_rank(config, stream, comm))).collect();
        runs.into_iter().map(|run| run.join().expect("a rank's own words")).collect()
    });
    let mut whole = Outcome::default();
    for outcome in outcomes {
        if whole.losses.is_empty() {
            whole.losses = vec![0.0; outcome.losses.len()];
            (whole.val_ap, whole.test_ap) = (outcome.val_ap, outcome.test_ap);
        }
        assert_eq!((outcome.val_ap, outcome.test_ap), (whole.val_ap, whole.test_ap), "all ranks say the same");
        whole.losses.iter_mut().zip(&outcome.losses).for_each(|(sum, share)| *sum += share);
        whole.hash += outcome.hash;
        whole.primary.extend(outcome.primary);
        whole.rows_fetched += outcome.rows_fetched;
        whole.owned += outcome.owned;
    }
    whole
}

/// f64 and a fixed time encoder: rounding does not grow.
fn config(batch_size: usize, max_batches: usize) -> Config {
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

fn assert_equal(name: &str, many: &Outcome, one: &Outcome) {
    assert_eq!(many.hash, one.hash, "{name}: samples");
    let mut primary = many.primary.clone();
    primary.sort_unstable();
    assert_eq!(primary, one.primary, "{name}: each event is primary on one rank");
    assert_eq!(many.owned, one.owned, "{name}: each node has one owner");
    assert_eq!(many.losses.len(), one.losses.len());
    for (batch, (a, b)) in many.losses.iter().zip(&one.losses).enumerate() {
        assert!((a - b).abs() <= 1e-9, "{name}: loss of batch {batch}: {a} and {b}");
    }
    assert!((many.val_ap - one.val_ap).abs() <= 1e-6, "{name}: {} and {}", many.val_ap, one.val_ap);
    assert!((many.test_ap - one.test_ap).abs() <= 1e-6, "{name}: {} and {}", many.test_ap, one.test_ap);
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
                assert_equal(&format!("{strategy:?}, delegate {delegate:?}, {ranks} ranks"), &many, &one);
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

#[test]
fn inline_stages() {
    let mut config = config(16, 0);
    config.pipeline.serial = true;
    check(&streams::small(), &config, &[2], &[Strategy::Hash]);
}
