//! What must equal what, to the bit: the future changes nothing before it, units of time change nothing at all, a run that
//! was resumed is the run that never stopped, threads and repetition change nothing.

use super::streams::{self, Row};
use crate::config::Config;
use crate::trainer::{Console, Summary, Trainer};
use std::path::Path;
use std::sync::{Arc, Mutex};
use tidemill_data::negative::CandidateRule;
use tidemill_data::split::SplitBy;
use tidemill_data::stream::EventStream;

/// A small model, so that a test takes seconds; all random parts on.
pub(super) fn config(batch_size: usize, max_batches: usize) -> Config {
    let mut config = Config::default();
    let model = &mut config.model.tgn;
    (model.memory_dim, model.time_dim, model.embedding_dim) = (16, 16, 16);
    (config.train.batch_size, config.train.max_batches, config.train.epochs) = (batch_size, max_batches, 1);
    (config.train.lr, config.train.checkpoint_every) = (1e-3, 0);
    (config.split.by, config.train.negatives, config.eval.candidates) =
        (SplitBy::Count, CandidateRule::AllNodes, CandidateRule::AllNodes);
    config
}

/// Every training loss, then every score of the first `val_batches` batches of validation.
fn scores(config: &Config, stream: EventStream, val_batches: usize) -> (Vec<f64>, Vec<f64>) {
    let mut trainer = Trainer::over(config.clone(), stream).expect("a valid configuration");
    let losses = Arc::new(Mutex::new(Vec::new()));
    let seen = losses.clone();
    trainer.hooks.on_batch(Box::new(move |batch| seen.lock().expect("unpoisoned").push(batch.scored.loss)));
    trainer.train_epoch().expect("trains");
    let mut pass = trainer.passes.val.clone();
    pass.events = pass.events.iter().copied().take(val_batches * pass.batch_size).collect();
    let val = trainer.score_split(&pass).expect("scores");
    let val = val.iter().flat_map(|(_, positive, negatives)| std::iter::once(positive).chain(negatives.to_vec()));
    let losses = losses.lock().expect("unpoisoned").clone();
    (losses, val.collect())
}

/// Reverses who meets whom from event `border` on and moves those events' times; nodes, counts and order stay.
fn altered(stream: &EventStream, border: usize) -> EventStream {
    let mut rows: Vec<Row> = streams::rows(stream);
    let pairs: Vec<(u32, u32)> = rows[border..].iter().rev().map(|row| (row.0, row.1)).collect();
    let last = rows.last().expect("events").2;
    for (row, pair) in rows[border..].iter_mut().zip(pairs) {
        *row = (pair.0, pair.1, row.2 + (last - row.2) / 2);
    }
    streams::of_rows(&rows, stream, |t| t.to_string())
}

fn check_no_future(name: &str) {
    let Some(original) = streams::real(name) else { return };
    let (batch, batches) = (200, 12);
    let config = config(batch, batches);
    let plain = streams::of_rows(&streams::rows(&original), &original, |t| t.to_string());
    let (losses, val) = scores(&config, plain, 8);

    let border = 6; // of training
    let (other, _) = scores(&config, altered(&original, border * batch), 0);
    assert_eq!(losses[..border], other[..border], "{name}: training before the border");
    assert_ne!(losses[border..], other[border..], "{name}: events after the border were altered");

    let border = 3; // of validation
    let train = Trainer::over(config.clone(), original.clone()).expect("valid").split.train.len();
    let (same, other) = scores(&config, altered(&original, train + border * batch), 8);
    assert_eq!(losses, same, "{name}: training is before the border");
    assert_eq!(val[..2 * border * batch], other[..2 * border * batch], "{name}: validation before the border");
    assert_ne!(val[2 * border * batch..], other[2 * border * batch..], "{name}: events after the border were altered");
}

#[test]
fn no_future_wikipedia() {
    check_no_future("wikipedia.csv.gz");
}

#[test]
fn no_future_bitcoin_alpha() {
    check_no_future("bitcoin-alpha.csv.gz");
}

/// Copies in seconds (with decimals), milliseconds and microseconds give identical losses and scores, dropout and uniform
/// sampling included.
#[test]
fn units_of_time() {
    let Some(original) = streams::real("bitcoin-otc.csv.gz") else { return };
    let mut config = config(200, 10);
    config.sampler.strategy = crate::sampler::Strategy::Uniform;
    let microseconds: Vec<Row> = {
        let tick = original.tick();
        let whole = |t: i64| tick.nanoseconds(tidemill_data::id::Timestamp(t)) / 1000;
        // to the millisecond, so that it has an exact copy
        streams::rows(&original).into_iter().map(|(s, d, t)| (s, d, whole(t) / 1000 * 1000)).collect()
    };
    let decimals = |t: i64| format!("{}.{:06}", t / 1_000_000, t % 1_000_000);
    let seconds = scores(&config, streams::of_rows(&microseconds, &original, decimals), 10);
    for (unit, per) in [("ms", 1000), ("us", 1)] {
        let rows: Vec<Row> = microseconds.iter().map(|&(s, d, t)| (s, d, t / per)).collect();
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("copy.csv");
        let text: String = rows.iter().map(|(s, d, t)| format!("{s},{d},{t}\n")).collect();
        std::fs::write(&path, format!("src,dst,timestamp\n{text}")).expect("written");
        let data = tidemill_data::DataConfig { tick: Some(unit.to_owned()), ..tidemill_data::DataConfig::of(&path) };
        let copy = tidemill_data::load(&data, &mut |_| {}).expect("readable");
        assert_eq!(seconds, scores(&config, copy, 10), "{unit}");
    }
}

fn small_config() -> Config {
    let mut config = config(16, 0);
    (config.train.epochs, config.train.checkpoint_every, config.train.log_every) = (3, 5, 1);
    config
}

fn run(folder: &Path, config: Config) -> Summary {
    let mut trainer = Trainer::over(config, streams::small()).expect("valid");
    trainer.start_run(Some(folder), "", Console { quiet: true, ..Console::default() }).expect("starts");
    trainer.fit().expect("trains")
}

fn links(summary: &Summary) -> crate::eval::LinkMetrics {
    summary.test.as_ref().expect("a finished run").links
}

/// Stopped by a request after every possible batch, and gone on with, a run ends in the same state.
#[test]
fn resumed_is_uninterrupted() {
    let folder = tempfile::tempdir().expect("a folder");
    let whole = run(&folder.path().join("whole"), small_config());
    for stop_after in [1, 4, 5, 16, 17, 30, 40] {
        let path = folder.path().join(format!("stopped-{stop_after}"));
        let console = Console { quiet: true, ..Console::default() };
        let stop = console.stop.clone();
        let mut trainer = Trainer::over(small_config(), streams::small()).expect("valid");
        let mut batches = 0;
        trainer.hooks.on_batch(Box::new(move |_| {
            batches += 1;
            if batches == stop_after {
                stop.stop();
            }
        }));
        trainer.start_run(Some(&path), "", console).expect("starts");
        assert!(matches!(trainer.fit(), Err(crate::Error::Stopped { .. })), "stop after {stop_after}");
        drop(trainer);
        let mut resumed = Trainer::over(small_config(), streams::small()).expect("valid");
        resumed.resume_run(&path, Console { quiet: true, ..Console::default() }).expect("resumes");
        let summary = resumed.fit().expect("trains");
        assert_eq!(summary.state_hash, whole.state_hash, "stop after {stop_after}");
        assert_eq!(summary.sample_hash, whole.sample_hash, "stop after {stop_after}");
        assert_eq!(links(&summary), links(&whole), "stop after {stop_after}");
        let losses = |path: &Path| batch_losses(path);
        assert_eq!(losses(&path), losses(&folder.path().join("whole")), "stop after {stop_after}");
    }
}

/// (epoch, batch, loss) of every line of a run's metrics.
fn batch_losses(folder: &Path) -> Vec<(u64, u64, f64)> {
    let metrics = crate::trainer::metrics_log::read_metrics(&folder.join("metrics.jsonl")).expect("readable");
    let batches = metrics.iter().filter(|line| line["kind"] == "batch");
    let number = |line: &serde_json::Value, key: &str| line[key].as_u64().expect("a number");
    batches.map(|line| (number(line, "epoch"), number(line, "batch"), line["loss"].as_f64().expect("a loss"))).collect()
}

#[test]
fn two_runs_are_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let [a, b] = ["a", "b"].map(|name| run(&folder.path().join(name), small_config()));
    assert_eq!((links(&a), a.state_hash, a.sample_hash), (links(&b), b.state_hash, b.sample_hash));
    let mut other = small_config();
    other.seed = 1;
    assert_ne!(run(&folder.path().join("c"), other).sample_hash, b_hash(&folder.path().join("b")));
}

fn b_hash(folder: &Path) -> String {
    crate::trainer::run_folder::RunFolder::open(folder).expect("a run").read_summary().expect("a summary").sample_hash
}

/// The state after a batch does not depend on the negatives that were drawn for it.
#[test]
fn negatives_leave_no_trace() {
    let states = [1, 2].map(|seed| {
        let mut config = config(40, 6);
        (config.train.lr, config.model.tgn.dropout) = (0.0, 0.0);
        let mut trainer = Trainer::over(config, streams::small()).expect("valid");
        let nodes = trainer.stream.nodes();
        let negatives: Vec<_> =
            (0..trainer.split.train.len() as u32).map(|i| tidemill_data::NodeId(i * seed % nodes)).collect();
        trainer.passes.train.negatives = crate::pipeline::event::Negatives::Given(negatives.into());
        trainer.train_epoch().expect("trains");
        crate::trainer::state_hash::node_digests(&trainer.pipeline.memory().read_all())
    });
    assert_eq!(states[0], states[1]);
}

/// A loss that is not finite ends the run with parameters and state as they were before that batch.
#[test]
fn non_finite_loss_keeps_the_state_before() {
    let mut config = config(40, 6);
    config.train.lr = 1e30;
    let mut trainer = Trainer::over(config.clone(), streams::small()).expect("valid");
    let error = trainer.train_epoch().expect_err("diverges");
    let crate::Error::NonFinite { batch, .. } = error else { panic!("{error}") };
    assert!(batch > 0, "the first batch has finite weights");
    let left = trainer.state_hash().expect("alone");
    config.train.max_batches = batch;
    let mut before = Trainer::over(config, streams::small()).expect("valid");
    before.train_epoch().expect("finite up to there");
    let kept = before.state_hash().expect("alone");
    assert_eq!(left, kept);
}

/// Stages on workers of their own, with queues of any length, samples kept or made anew: the bits of the stages run inline.
#[test]
fn pipelined_is_serial() {
    let folder = tempfile::tempdir().expect("a folder");
    let run_with = |serial: bool, queue_max: usize, cache: bool| {
        let mut config = small_config();
        (config.pipeline.serial, config.pipeline.queue_max, config.sampler.cache) = (serial, queue_max, cache);
        run(&folder.path().join(format!("{serial}-{queue_max}-{cache}")), config)
    };
    let reference = run_with(true, 16, false);
    for (serial, queue_max) in [(true, 16), (false, 1), (false, 2), (false, 16)] {
        for cache in [true, false].into_iter().filter(|cache| *cache || !serial) {
            let other = run_with(serial, queue_max, cache);
            let what = format!("serial {serial}, queues of {queue_max}, cache {cache}");
            assert_eq!(
                (&other.state_hash, &other.sample_hash),
                (&reference.state_hash, &reference.sample_hash),
                "{what}"
            );
            assert_eq!(links(&other), links(&reference), "{what}");
        }
    }
}

/// The same on a real stream, with the whole model; a full epoch of the field's settings where `TIDEMILL_FULL` is set.
#[test]
fn pipelined_is_serial_wikipedia() {
    let Some(stream) = streams::real("wikipedia.csv.gz") else { return };
    let full = std::env::var_os("TIDEMILL_FULL").is_some();
    let hashes = |serial: bool, queue_max: usize, cache: bool| {
        let mut config = Config::default();
        (config.train.batch_size, config.train.checkpoint_every) = (200, 0);
        config.train.max_batches = if full { 0 } else { 8 };
        (config.pipeline.serial, config.pipeline.queue_max, config.sampler.cache) = (serial, queue_max, cache);
        let mut trainer = Trainer::over(config, stream.clone()).expect("valid");
        trainer.train_epoch().expect("trains");
        if !full {
            trainer.history.batch = 0; // a second epoch, from kept samples
            trainer.history.epoch = 2;
            trainer.train_epoch().expect("trains");
        }
        (trainer.state_hash().expect("alone"), trainer.history.sample_hash)
    };
    let reference = hashes(true, 16, false);
    for (queue_max, cache) in [(1, true), (2, false), (16, true), (16, false)] {
        assert_eq!(hashes(false, queue_max, cache), reference, "queues of {queue_max}, cache {cache}");
    }
}

/// From the second epoch on, no positive root of training and no root at all of validation is sampled.
#[test]
fn kept_samples_are_not_made_again() {
    let mut config = config(16, 0);
    config.train.epochs = 2;
    for layers in [1, 2] {
        (config.model.tgn.layers, config.sampler.neighbors) = (layers, vec![5; layers]);
        let mut trainer = Trainer::over(config.clone(), streams::small()).expect("valid");
        trainer.keep_training_samples();
        trainer.keep_validation_samples();
        let mut stage = crate::pipeline::event::EventStage::new(trainer.stream.clone(), None);
        let train = trainer.passes.train(2);
        for batch in 0..train.batches() {
            let before = stage.root_counts();
            let plan = stage.plan(&train, batch);
            let positives = &plan.sample.root_of[..2 * plan.events.len()];
            let distinct = 1 + u64::from(*positives.iter().max().expect("roots"));
            let after = stage.root_counts();
            assert!(after.1 - before.1 >= distinct && after.0 - before.0 <= plan.negatives.len() as u64);
        }
        let sampled = stage.root_counts().0;
        let val = trainer.passes.val.clone();
        (0..val.batches()).for_each(|batch| drop(stage.plan(&val, batch)));
        assert_eq!(stage.root_counts().0, sampled, "evaluation's negatives are kept, too");
    }
}

/// A stage that panics on its worker ends the run with its own words, and not with a hang.
#[test]
fn a_stages_panic_is_the_runs() {
    let mut trainer = Trainer::over(config(40, 6), streams::small()).expect("valid");
    trainer.passes.train.negatives =
        crate::pipeline::event::Negatives::Given(vec![tidemill_data::NodeId(0); 100].into());
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| trainer.train_epoch().map(drop)));
    let words = panic.expect_err("the third batch has no negatives");
    let words = words.downcast_ref::<String>().expect("words");
    assert!(words.contains("out of range"), "{words}");
}

/// A pass that is left in the middle leaves nothing behind: the next one starts afresh.
#[test]
fn a_pass_left_in_the_middle_is_forgotten() {
    let mut trainer = Trainer::over(config(16, 0), streams::small()).expect("valid");
    let pass = trainer.passes.train(1);
    let batches = pass.batches();
    trainer.pipeline.start(pass.clone(), 0..batches);
    assert!(trainer.pipeline.next_batch().expect("alone").is_some());
    trainer.pipeline.start(pass, 3..5);
    let seen: Vec<usize> = std::iter::from_fn(|| {
        let batch = trainer.pipeline.next_batch().expect("alone")?;
        let embedded = trainer.model.embed(&batch.input, tidemill_models::Mode::Eval);
        trainer.pipeline.commit_state(&batch, &embedded, &*trainer.model).expect("alone");
        Some(batch.plan.batch)
    })
    .collect();
    assert_eq!(seen, [3, 4]);
}
