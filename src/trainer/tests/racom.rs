//! `gradient.mode = "racom"` in the loop: an all-reduce where every contribution is waited for, steps while exchanges are under
//! way, equal parameters where they must be, and an end for all.

use super::ranks::config;
use super::streams;
use crate::comms::Communicator;
use crate::config::{Config, GradientMode};
use crate::error::Loss;
use crate::stats::{Doing, Span, Stage};
use crate::trainer::metrics_log::read_metrics;
use crate::trainer::{Console, Summary, Trainer};
use crate::{Error, Result};
use std::path::Path;
use std::thread;
use std::time::Duration;

fn racom(period: u32, max_staleness: u32) -> Config {
    let mut config = config(16, 0);
    (config.gradient.mode, config.gradient.period) = (GradientMode::Racom, period);
    (config.gradient.max_staleness, config.train.log_every) = (max_staleness, 1);
    config
}

/// `work` on each of some ranks, threads of this process.
fn on_ranks<T: Send>(config: &Config, ranks: usize, work: impl Fn(Trainer) -> T + Sync) -> Vec<T> {
    let comms = Communicator::local_poisoned(ranks, &config.comm);
    thread::scope(|scope| {
        let run = |comm: Communicator| {
            let work = &work;
            scope.spawn(move || {
                let trainer = Trainer::over_on_rank(config.clone(), streams::small(), comm.clone()).expect("valid");
                let done = work(trainer);
                let _ = comm.finish(); // an error is the loss of a rank that `work` has told of
                done
            })
        };
        let runs: Vec<_> = comms.into_iter().map(run).collect();
        runs.into_iter().map(|run| run.join().expect("a rank's own words")).collect()
    })
}

/// A whole run in `folder`, of which the first rank's summary is told.
fn run(config: &Config, ranks: usize, folder: &Path) -> Summary {
    let fit = |mut trainer: Trainer| {
        trainer.start_run(Some(folder), "", Console { quiet: true, ..Console::default() }).expect("starts");
        let summary = trainer.fit().expect("trains");
        (summary, bits(&trainer))
    };
    let mut ends = on_ranks(config, ranks, fit);
    assert!(ends.iter().all(|(summary, values)| summary.state_hash == ends[0].0.state_hash && *values == ends[0].1));
    ends.swap_remove(0).0
}

fn bits(trainer: &Trainer) -> Vec<u64> {
    let values = Vec::<f64>::try_from(trainer.model.parameters().values().detach()).expect("flat");
    values.into_iter().map(f64::to_bits).collect()
}

fn losses(folder: &Path) -> Vec<f64> {
    let metrics = read_metrics(&folder.join("metrics.jsonl")).expect("readable");
    let batches = metrics.iter().filter(|line| line["kind"] == "batch");
    batches.map(|line| line["loss"].as_f64().expect("a loss")).collect()
}

/// Period 1 and every contribution waited for: losses, norms and scores of an all-reduce.
#[test]
fn waited_for_it_is_an_allreduce() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    for (ranks, clip_norm) in [(2, None), (3, Some(0.3))] {
        let mut config = racom(1, 0);
        (config.train.clip_norm, config.train.epochs) = (clip_norm, 2);
        let apart = run(&config, ranks, &at(&format!("apart-{ranks}")));
        config.gradient.mode = GradientMode::Allreduce;
        let together = run(&config, ranks, &at(&format!("together-{ranks}")));
        let [a, b] = ["apart", "together"].map(|name| losses(&at(&format!("{name}-{ranks}"))));
        assert_eq!(a.len(), b.len());
        let worst = a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(worst <= 1e-6, "losses differ by {worst:e}");
        let [a, b] = [&apart, &together].map(|summary| summary.test.clone().expect("scored").links.ap);
        assert!((a - b).abs() <= 1e-6, "{a} and {b}");
        assert_eq!((apart.gradient.mode.as_str(), apart.gradient.staleness_max), ("racom", 0));
        assert_eq!((together.gradient.mode.as_str(), apart.sample_hash), ("allreduce", together.sample_hash));
        assert_eq!(apart.gradient.exchanges, together.gradient.exchanges, "one for each batch");
    }
}

/// The buckets, and what of them starts early, change no bit.
#[test]
fn buckets_change_no_bit() {
    let folder = tempfile::tempdir().expect("a folder");
    let hashes = [0, 1 << 10, 1 << 20].map(|bytes| {
        let mut config = config(16, 0);
        config.comm.bucket_bytes = crate::byte_size::ByteSize(bytes);
        run(&config, 3, &folder.path().join(bytes.to_string())).state_hash
    });
    assert!(hashes[0] == hashes[1] && hashes[1] == hashes[2]);
}

/// On every rank some batch's forward or backward pass lies within the flight of an exchange of earlier batches.
#[test]
fn ranks_step_while_exchanges_are_under_way() {
    let traces = on_ranks(&racom(2, 16), 3, |mut trainer| {
        trainer.keep_trace();
        trainer.hooks.on_batch(Box::new(|_| thread::sleep(Duration::from_millis(2))));
        trainer.train_epoch().expect("trains");
        trainer.pipeline.timeline().spans().to_vec()
    });
    for (rank, spans) in traces.iter().enumerate() {
        let inside = |step: &Span, flight: &Span| {
            let (Doing::Batch(stepped), Doing::InFlight(exchanged)) = (step.what, flight.what) else { return false };
            stepped == exchanged + 1
                && flight.start <= step.start
                && step.start + step.length <= flight.start + flight.length
        };
        let flights = spans.iter().filter(|span| matches!(span.what, Doing::InFlight(_)));
        let steps = || spans.iter().filter(|span| span.stage == Stage::Gradient);
        let overlapped = flights.filter(|flight| steps().any(|step| inside(step, flight))).count();
        assert!(overlapped > 0, "rank {rank}");
    }
}

/// Parameters are equal at each checkpoint and at the end, and a run that goes on from one loses nothing.
#[test]
fn checkpoints_are_barriers_to_go_on_from() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("run");
    let mut config = racom(2, 8);
    (config.train.checkpoint_every, config.train.epochs) = (7, 2);
    let stopped = on_ranks(&config, 3, |mut trainer| {
        let console = Console { quiet: true, ..Console::default() };
        let (stop, first) = (console.stop.clone(), trainer.comm.rank() == 1);
        let mut batches = 0;
        trainer.hooks.on_batch(Box::new(move |_| {
            batches += 1;
            if first && batches == 3 {
                stop.stop();
            }
        }));
        trainer.start_run(Some(&path), "", console).expect("starts");
        let Err(Error::Stopped { batch, .. }) = trainer.fit() else { panic!("not stopped") };
        assert_eq!(trainer.history.batch, batch);
        (batch, bits(&trainer))
    });
    assert!(stopped.iter().all(|end| *end == stopped[0]), "all stop after one batch, alike");
    assert!((3..=3 + 2 * 8).contains(&stopped[0].0), "{}", stopped[0].0);
    let summaries = on_ranks(&config, 3, |mut trainer| {
        trainer.resume_run(&path, Console { quiet: true, ..Console::default() }).expect("resumes");
        assert_eq!(bits(&trainer), stopped[0].1);
        trainer.fit().expect("trains")
    });
    let batches = Trainer::over(config, streams::small()).expect("valid").batches();
    assert_eq!(losses(&path).len(), 2 * batches);
    assert!(summaries.iter().all(|summary| summary.state_hash == summaries[0].state_hash));
    assert!(summaries[0].gradient.staleness_max <= 8 && summaries[0].gradient.exchanges > 4);
}

/// Noise in one rank's parameters: found, logged, and gone after the sync.
#[test]
fn noise_in_one_rank_forces_a_logged_sync() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("run");
    let config = racom(1, 2);
    let bound = config.gradient.divergence_bound;
    on_ranks(&config, 3, |mut trainer| {
        let noisy = trainer.comm.rank() == 1;
        trainer.hooks.on_batch(Box::new(move |batch| {
            if noisy && batch.plan.batch == 4 {
                let values = batch.parameters.values().detach();
                tch::no_grad(|| drop(values.shallow_clone().g_add_(&(values.rand_like() * 0.1))));
            }
        }));
        trainer.start_run(Some(&path), "", Console { quiet: true, ..Console::default() }).expect("starts");
        trainer.train_epoch().expect("trains");
        let controller = trainer.sync.stage().racom().expect("racom").controller();
        assert!(controller.forced == 1 && controller.divergence_max > bound && controller.divergence <= bound);
    });
    let metrics = read_metrics(&path.join("metrics.jsonl")).expect("readable");
    let syncs: Vec<_> = metrics.iter().filter(|line| line["kind"] == "sync").collect();
    let forced = syncs.iter().find(|line| line["reason"] == "divergence").expect("logged");
    let batch = forced["batch"].as_u64().expect("a batch");
    assert!((5..=5 + 2 * 2).contains(&batch) && forced["divergence"].as_f64() > Some(bound), "{forced}");
    for line in syncs.iter().filter(|line| line["batch"].as_u64() > Some(batch)) {
        assert!(line["divergence"].as_f64() <= Some(bound), "{line}");
    }
}

/// A gradient that is no number on one rank ends the run on all, with exit code 1 and its own words.
#[test]
fn what_is_not_finite_ends_all_ranks() {
    let config = racom(2, 16);
    let ends: Vec<Result<()>> = on_ranks(&config, 3, |mut trainer| {
        let (comm, poisoned) = (trainer.comm.clone(), trainer.comm.rank() == 2);
        trainer.hooks.on_batch(Box::new(move |batch| {
            if poisoned && batch.plan.batch == 5 {
                let values = batch.parameters.values().detach();
                tch::no_grad(|| drop(values.shallow_clone().fill_(f64::NAN)));
            }
        }));
        let end = trainer.train_epoch().map(drop);
        comm.abandon(end.as_ref().expect_err("a gradient that is no number"));
        end
    });
    let mut refused = 0;
    for end in &ends {
        let error = end.as_ref().expect_err("as above");
        assert_eq!(error.exit_code(), 1);
        match error {
            Error::NonFiniteApart { batch: 6..=8, .. } => refused += 1, // rows of the poisoned rank poison others
            Error::PeerLost { loss: Loss::Failed { sentence, .. }, .. } => {
                assert!(sentence.contains("not finite in epoch 1"), "{sentence}");
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(refused > 0);
}

/// Delegation that nobody asked for would have ranks wait for each other; asked for, it is done.
#[test]
fn roots_are_delegated_only_if_asked_for() {
    use crate::setting::Auto;
    for (delegate, expected) in [(Auto::Auto, false), (Auto::Value(true), true)] {
        let mut config = racom(2, 16);
        config.dependency.delegate = delegate;
        let counts = on_ranks(&config, 2, |mut trainer| {
            trainer.train_epoch().expect("trains");
            trainer.pipeline.counts().delegated
        });
        assert_eq!(counts.iter().sum::<u64>() > 0, expected);
    }
}

/// Replicas and the gate beside it: nobody waits for a norm that is not told, and what is replayed with other weights is corrected.
#[test]
fn replay_and_the_gate_go_beside_it() {
    use crate::setting::Auto;
    for (tau_cache, eps_grad, staleness) in
        [(1.0, Auto::Value(0.0), 0), (0.0, Auto::Value(1e9), 0), (0.0, Auto::Auto, 2), (1.0, Auto::Value(1e9), 0)]
    {
        for serial in [false, true] {
            let mut config = racom(2, 4);
            (config.dependency.tau_cache, config.sync.eps_grad) = (Auto::Value(tau_cache), eps_grad);
            (config.pipeline.staleness, config.pipeline.serial) = (if serial { 0 } else { staleness }, serial);
            let ends = on_ranks(&config, 3, |mut trainer| {
                trainer.train_epoch().expect("trains");
                (bits(&trainer), trainer.history.batch, trainer.pipeline.crossed())
            });
            assert!(ends.iter().all(|end| (&end.0, end.1) == (&ends[0].0, ends[0].1)));
            let closed: u64 = ends.iter().map(|end| end.2.closed).sum();
            assert_eq!(closed > 0, eps_grad != Auto::Value(0.0), "{tau_cache} {eps_grad:?}");
            let gates: Vec<_> = ends.iter().map(|end| (end.2.open, end.2.closed, end.2.refreshed)).collect();
            assert!(gates.iter().all(|gate| *gate == gates[0]), "all gates alike: {gates:?}");
        }
    }
}
