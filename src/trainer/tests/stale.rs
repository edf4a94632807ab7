//! `pipeline.staleness > 0`: within its bound, nothing lost of the state, and back to the last parameter commit when a batch is
//! refused.

use super::exact::config;
use super::streams;
use crate::config::Config;
use crate::stats::Seen;
use crate::trainer::commits::Syncing;
use crate::trainer::{Console, PhiloxDraw, Trainer};
use std::time::Duration;
use tch::Tensor;
use tidemill_models::input::{Embedded, MailInput, ModelInput, PairInput, Scored};
use tidemill_models::model::{Mode, Model, StateSpec};
use tidemill_models::parameters::Parameters;
use tidemill_models::tgn::{Dtype, FeatureDims, Tgn};
use tidemill_models::{optimizer::Optimizer, optimizer::OptimizerConfig};

fn stale(staleness: u32, max_batches: usize) -> Config {
    let mut config = config(16, max_batches);
    config.pipeline.staleness = staleness;
    config
}

/// Constant parameters, so that the state depends on nothing but the order of commits.
fn frozen(staleness: u32, max_batches: usize) -> Config {
    let mut config = stale(staleness, max_batches);
    (config.train.lr, config.model.tgn.dtype) = (0.0, Dtype::F64);
    config
}

/// Largest difference between two runs' memory rows and mails' payloads.
fn distance(a: &Trainer, b: &Trainer) -> f64 {
    let [a, b] = [a, b].map(|trainer| trainer.pipeline.memory().read_all());
    assert_eq!((&a.last_update, &a.counts, &a.mails), (&b.last_update, &b.counts, &b.mails));
    let difference = |a: &Tensor, b: &Tensor| (a - b).abs().max().double_value(&[]);
    difference(&a.rows, &b.rows).max(difference(&a.payload, &b.payload))
}

#[test]
fn measured_staleness_stays_within_its_bound_and_is_there() {
    for staleness in [0, 1, 2, 4] {
        let mut trainer = Trainer::over(stale(staleness, 0), streams::small()).expect("valid");
        trainer.hooks.on_batch(Box::new(|_| std::thread::sleep(Duration::from_millis(2)))); // the readers get ahead
        trainer.train_epoch().expect("trains");
        let batches = trainer.batches() as u64;
        assert_eq!((trainer.history.batch as u64, trainer.uncommitted.len()), (batches, 0));
        let times = trainer.pipeline.timeline();
        for what in [Seen::State, Seen::Parameters] {
            let histogram = times.staleness(what);
            assert!(histogram.len() <= staleness as usize + 1, "{what:?}: {histogram:?} for {staleness}");
            assert_eq!(histogram.iter().sum::<u64>(), batches, "{what:?} for {staleness}");
        }
        let late: u64 = times.staleness(Seen::State)[1..].iter().sum();
        assert_eq!(late > 0, staleness > 0, "reads are ahead of commits exactly if they may be");
    }
}

/// Endpoints are read again at the commit, so no update is lost: with constant parameters the state is that of a serial run.
#[test]
fn no_commit_is_lost() {
    let mut exact = Trainer::over(frozen(0, 0), streams::small()).expect("valid");
    exact.train_epoch().expect("trains");
    for staleness in [1, 4] {
        let mut trainer = Trainer::over(frozen(staleness, 0), streams::small()).expect("valid");
        trainer.hooks.on_batch(Box::new(|_| std::thread::sleep(Duration::from_millis(1))));
        trainer.train_epoch().expect("trains");
        let distance = distance(&trainer, &exact);
        assert!(distance < 1e-12, "staleness {staleness}: {distance:e}");
    }
}

/// TGN whose loss of one call is not a number.
struct Poisoned {
    model: Tgn,
    calls_left: usize,
}

impl Model for Poisoned {
    fn spec(&self) -> StateSpec {
        self.model.spec()
    }
    fn parameters(&self) -> &Parameters {
        self.model.parameters()
    }
    fn parameters_mut(&mut self) -> &mut Parameters {
        self.model.parameters_mut()
    }
    fn embed(&self, input: &ModelInput, mode: Mode) -> Embedded {
        self.model.embed(input, mode)
    }
    fn apply_mail(&self, memory: &Tensor, mail: &MailInput) -> Tensor {
        self.model.apply_mail(memory, mail)
    }
    fn score(&mut self, z: &Tensor, pairs: &PairInput) -> Scored {
        let scored = self.model.score(z, pairs);
        let poison = self.calls_left == 0;
        self.calls_left = self.calls_left.wrapping_sub(1);
        Scored { loss: if poison { f64::NAN } else { scored.loss }, ..scored }
    }
    fn logits(&self, z: &Tensor, pairs: &PairInput) -> (Tensor, Tensor) {
        self.model.logits(z, pairs)
    }
    fn backward(&mut self, embedded: Embedded, grad_z: &Tensor) {
        self.model.backward(embedded, grad_z);
    }
    fn encode_mail_time(&self, dt: &Tensor) -> Tensor {
        self.model.encode_mail_time(dt)
    }
}

/// A batch that is refused leaves the state of the last parameter commit, whatever was in flight behind it, and the run can go on.
#[test]
fn a_refused_batch_and_those_in_flight_leave_no_trace() {
    for (staleness, bad) in [(1, 5), (2, 5), (4, 9), (4, 0)] {
        let poisoned = |config: &Config, stream: &tidemill_data::EventStream, device| {
            let features = FeatureDims { edge: stream.feature_dim() as i64, node: stream.node_feature_dim() as i64 };
            let model = Tgn::new(&config.model.tgn, features, &PhiloxDraw::new(config.seed), device)?;
            Ok(Box::new(Poisoned { model, calls_left: bad }) as Box<dyn Model>)
        };
        let mut trainer = Trainer::with_model(frozen(staleness, 0), streams::small(), poisoned).expect("valid");
        let error = trainer.train_epoch().expect_err("a loss that is no number");
        assert!(matches!(error, crate::Error::NonFinite { what: "loss", batch, .. } if batch == bad), "{error}");
        assert_eq!((trainer.history.batch, trainer.uncommitted.len()), (bad, 0));
        assert_eq!(trainer.sync.stage().optimizer().steps(), bad as u64);
        if bad > 0 {
            let mut before = Trainer::over(frozen(staleness, bad), streams::small()).expect("valid");
            before.train_epoch().expect("trains");
            assert!(distance(&trainer, &before) < 1e-12);
        }
        trainer.train_epoch().expect("goes on behind the last commit");
        let mut whole = Trainer::over(frozen(0, 0), streams::small()).expect("valid");
        whole.train_epoch().expect("trains");
        assert!(distance(&trainer, &whole) < 1e-12);
    }
}

/// A worker of the sync stage that panics ends the run with its own words, and not with a hang.
#[test]
fn a_panic_of_the_sync_worker_is_the_runs() {
    let mut trainer = Trainer::over(stale(2, 0), streams::small()).expect("valid");
    let other = Trainer::over(Config { model: small_model(), ..stale(2, 0) }, streams::small()).expect("valid");
    let optimizer = Optimizer::new(OptimizerConfig::default(), other.model.parameters());
    trainer.sync = Syncing::Here(crate::pipeline::sync::SyncStage::new(
        optimizer,
        1e-3,
        None,
        None,
        crate::comms::Communicator::alone(),
    ));
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| trainer.train_epoch().map(drop)));
    let words = panic.expect_err("moments of another model");
    let words = words.downcast_ref::<String>().expect("words");
    assert!(words.contains("out of range"), "{words}");
}

fn small_model() -> crate::config::ModelConfig {
    let mut model = config(16, 0).model;
    (model.tgn.memory_dim, model.tgn.time_dim, model.tgn.embedding_dim) = (4, 4, 4);
    model
}

/// A checkpoint is a barrier: a run that was stopped goes on from it and makes every batch once.
#[test]
fn a_stopped_run_goes_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut config = stale(2, 0);
    (config.train.epochs, config.train.checkpoint_every) = (2, 5);
    let console = Console { quiet: true, ..Console::default() };
    let stop = console.stop.clone();
    let mut trainer = Trainer::over(config.clone(), streams::small()).expect("valid");
    let mut batches = 0;
    trainer.hooks.on_batch(Box::new(move |_| {
        batches += 1;
        if batches == 7 {
            stop.stop();
        }
    }));
    trainer.start_run(Some(&folder.path().join("run")), "", console).expect("starts");
    assert!(matches!(trainer.fit(), Err(crate::Error::Stopped { batch: 7, .. })));
    let mut resumed = Trainer::over(config, streams::small()).expect("valid");
    resumed.resume_run(&folder.path().join("run"), Console { quiet: true, ..Console::default() }).expect("resumes");
    let summary = resumed.fit().expect("trains");
    assert_eq!(resumed.history.batches, 2 * resumed.batches() as u64);
    assert_eq!(resumed.sync.stage().optimizer().steps(), resumed.history.batches);
    let read = summary.staleness.state.iter().sum::<u64>();
    assert_eq!(read, resumed.history.batches - 7, "those of the second program");
}
