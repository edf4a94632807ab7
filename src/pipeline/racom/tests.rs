//! Contributions that can be told apart: rank r's of batch b is one at index `r * BATCHES + b`, so what a rank has stepped by
//! says which it has applied, how often and when.

use super::*;
use crate::comms::CommConfig;
use crate::gradient::GradientMode;
use std::time::Duration;
use tch::{Device, Kind};
use tidemill_models::optimizer::{Optimizer, OptimizerConfig};
use tidemill_models::parameters::{Declarations, Draw, Init, ParameterId};

const BATCHES: usize = 90;

struct Ones;

impl Draw for Ones {
    fn uniform(&self, _: &str, _: u64) -> f64 {
        1.0
    }
    fn normal(&self, _: &str, _: u64) -> f64 {
        1.0
    }
}

/// What a rank saw.
#[derive(Default)]
struct Seen {
    /// How often each contribution was applied, and at most how late.
    applied: Vec<f64>,
    oldest: usize,
    news: Vec<News>,
    values: Vec<f64>,
    controller: Option<Controller>,
    stopped_after: Option<usize>,
}

/// How a rank behaves.
#[derive(Clone, Copy)]
struct Habits {
    slowest_ms: u64,
    /// After this batch, this much is added to every parameter of rank 1.
    noise: Option<(usize, f64)>,
    /// Rank 2 asks to stop after this batch.
    stop: Option<usize>,
    sync_every: usize,
}

struct Rank {
    racom: Racom,
    parameters: Parameters,
    optimizer: Optimizer,
    x: ParameterId,
    ranks: usize,
    seen: Seen,
    times: Timeline,
}

impl Rank {
    fn new(comm: &Communicator, config: &GradientConfig) -> Rank {
        let mut declare = Declarations::default();
        let count = (comm.world() * BATCHES) as i64;
        let x = declare.add("x", &[count], Init::Constant(1.0));
        let parameters = declare.build(Kind::Double, Device::Cpu, &Ones);
        let optimizer = Optimizer::new(OptimizerConfig::default(), &parameters);
        let seen = Seen { applied: vec![0.0; count as usize], ..Seen::default() };
        let racom = Racom::new(config, comm.clone());
        Rank { racom, parameters, optimizer, x, ranks: comm.world(), seen, times: Timeline::default() }
    }

    /// Steps by the gradient at hand, and notes what was in it.
    fn step(&mut self, batch: usize) {
        let gradient = Vec::<f64>::try_from(self.parameters.grads()).expect("flat");
        for (at, part) in gradient.iter().enumerate().filter(|&(_, &part)| part != 0.0) {
            self.seen.applied[at] += part;
            self.seen.oldest = self.seen.oldest.max(batch.saturating_sub(at % BATCHES));
        }
        self.optimizer.step(&mut self.parameters, 1e-4);
        self.parameters.zero_grads();
    }

    fn sync(&mut self, reason: &'static str, batch: usize) {
        let gathered = self.racom.gather(&mut self.parameters, &mut self.times).expect("peers");
        assert_ne!(gathered, Gathered::NotFinite);
        if gathered == Gathered::Rest {
            self.step(batch);
        }
        self.racom.average(&mut self.parameters, &mut self.optimizer, reason).expect("peers");
        assert_eq!(self.racom.here, vec![self.racom.position; self.ranks]);
    }

    fn train(&mut self, rank: usize, habits: Habits) {
        self.racom.begin(0);
        let mut word = 77 * rank as u64 + 1;
        for batch in 0..BATCHES {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            std::thread::sleep(Duration::from_micros(
                1000 * habits.slowest_ms * (word >> 33) % (1 + 1000 * habits.slowest_ms),
            ));
            let own = Tensor::zeros([(self.ranks * BATCHES) as i64], (Kind::Double, Device::Cpu));
            let _ = own.get((rank * BATCHES + batch) as i64).fill_(1.0);
            self.parameters.accumulate(&[self.x], &[own]);
            let stop = rank == 2 && habits.stop.is_some_and(|at| batch >= at);
            let said = Word { loss: 1.0 + batch as f64, stop, drift: (0.5, 1.0), ..Word::default() };
            assert!(self.racom.contribute(said, &mut self.parameters, &mut self.times).expect("peers"));
            self.step(batch);
            if let Some((_, noise)) = habits.noise.filter(|&(at, _)| rank == 1 && at == batch) {
                tch::no_grad(|| drop(self.parameters.values().shallow_clone().g_add_scalar_(noise)));
            }
            if self.racom.syncs_here() {
                self.sync(DIVERGENCE, batch);
            }
            if (batch + 1).is_multiple_of(habits.sync_every) {
                self.sync("checkpoint", batch);
            }
            if self.racom.stops_here().is_some() {
                self.seen.stopped_after = Some(batch + 1);
                break;
            }
        }
        let last = self.racom.position - 1;
        self.sync("epoch", last);
        self.seen.news = self.racom.take_news();
        self.seen.values = Vec::try_from(self.parameters.values().detach()).expect("flat");
        self.seen.controller = Some(self.racom.controller().clone());
    }
}

fn run(ranks: usize, config: &GradientConfig, habits: Habits) -> Vec<Seen> {
    let comms = Communicator::local_poisoned(ranks, &CommConfig::default());
    std::thread::scope(|scope| {
        let runs: Vec<_> = comms
            .into_iter()
            .map(|comm| {
                scope.spawn(move || {
                    let mut rank = Rank::new(&comm, config);
                    rank.train(comm.rank(), habits);
                    comm.finish().expect("every rank is done");
                    rank.seen
                })
            })
            .collect();
        runs.into_iter().map(|run| run.join().expect("a rank's own words")).collect()
    })
}

fn config(period: u32, max_staleness: u32, divergence_bound: f64) -> GradientConfig {
    GradientConfig { mode: GradientMode::Racom, period, max_staleness, divergence_bound }
}

const CALM: Habits = Habits { slowest_ms: 1, noise: None, stop: None, sync_every: usize::MAX };

fn check(seen: &[Seen], batches: usize, max_staleness: u32) {
    for (rank, one) in seen.iter().enumerate() {
        for (at, &times) in one.applied.iter().enumerate() {
            let expected = if at % BATCHES < batches { 1.0 } else { 0.0 };
            assert_eq!(times, expected, "rank {rank}: contribution {} of rank {}", at % BATCHES, at / BATCHES);
        }
        assert!(one.oldest <= max_staleness as usize, "{} batches old, {max_staleness} allowed", one.oldest);
        assert!(one.controller.as_ref().expect("done").staleness_max <= u64::from(max_staleness));
        assert_eq!((&one.values, &one.news), (&seen[0].values, &seen[0].news), "all ranks end alike");
        let losses = one.news.iter().filter_map(|news| match news {
            News::Batch { loss, .. } => Some(*loss),
            _ => None,
        });
        let drifts = one.news.iter().filter_map(|news| match news {
            News::Batch { drift, .. } => Some(drift.1),
            _ => None,
        });
        assert_eq!(drifts.sum::<f64>(), (seen.len() * batches) as f64);
        let told: Vec<f64> = (0..batches).map(|batch| seen.len() as f64 * (1.0 + batch as f64)).collect();
        assert_eq!(losses.collect::<Vec<_>>(), told, "each batch's loss, summed over the ranks, in order");
    }
}

/// The ledger: whatever the period does, whoever is slow, and with forced syncs in between.
#[test]
fn each_contribution_is_applied_once_on_each_rank() {
    for ranks in [2, 3, 4] {
        for (period, max_staleness) in [(1, 0), (1, 4), (2, 2), (4, 16), (8, 400)] {
            for (slowest_ms, sync_every) in [(0, 25), (1, usize::MAX)] {
                let habits = Habits { slowest_ms, sync_every, ..CALM };
                let seen = run(ranks, &config(period, max_staleness, f64::INFINITY), habits);
                check(&seen, BATCHES, max_staleness);
                // a bound that every exchange breaks
                let seen = run(ranks, &config(period, max_staleness, 1e-12), habits);
                check(&seen, BATCHES, max_staleness);
                let forced = seen[0].controller.as_ref().expect("done").forced;
                assert!(forced > 0 || max_staleness == 0, "{ranks} {period} {max_staleness}: {forced}");
            }
        }
    }
}

/// Gradients that agree lengthen the period, and that loses nothing either.
#[test]
fn an_adapted_period_loses_nothing() {
    let config = config(2, 16, f64::INFINITY);
    let seen = run(3, &config, CALM);
    check(&seen, BATCHES, 16);
    // one-hot gradients are at right angles: they do not agree
    assert!(
        seen[0].news.iter().any(|news| matches!(news, News::Period(_, change) if change.to == 1)),
        "{:?}",
        seen[0].news
    );
}

/// Noise in one rank's parameters is found, mended by a sync after a batch that all agree on, and logged.
#[test]
fn noise_forces_a_sync_and_divergence_is_under_the_bound_after() {
    let habits = Habits { noise: Some((30, 0.2)), ..CALM };
    let seen = run(3, &config(4, 16, 0.02), habits);
    check(&seen, BATCHES, 16);
    let synced: Vec<(usize, &str, f64)> = seen[0]
        .news
        .iter()
        .filter_map(|news| match news {
            News::Synced { batch, reason, divergence } => Some((*batch, *reason, *divergence)),
            _ => None,
        })
        .collect();
    let [(batch, reason, before), (end, last, after)] = synced[..] else { panic!("{synced:?}") };
    assert!(reason == DIVERGENCE && (31..=31 + 32).contains(&batch) && before > 0.02, "{synced:?}");
    assert!((end, last) == (BATCHES, "epoch") && after < 0.02, "{synced:?}");
    let counts = seen[0].controller.as_ref().expect("done");
    assert!(counts.forced == 1 && counts.divergence_max > 0.02);
}

/// A rank's wish to stop stops all after one and the same batch, soon.
#[test]
fn all_stop_after_the_same_batch() {
    for (period, max_staleness) in [(1, 0), (4, 16)] {
        let seen = run(3, &config(period, max_staleness, f64::INFINITY), Habits { stop: Some(20), ..CALM });
        let stopped = seen[0].stopped_after.expect("stops");
        assert!(seen.iter().all(|one| one.stopped_after == Some(stopped)));
        assert!((21..=21 + 2 * max_staleness as usize).contains(&stopped), "after {stopped} batches");
        check(&seen, stopped, max_staleness);
    }
}

/// A gradient that is no number is refused by the rank that has it, before anyone else hears of it.
#[test]
fn what_is_not_finite_is_refused() {
    let comm = Communicator::local(2, &CommConfig::default()).remove(0);
    let mut rank = Rank::new(&comm, &config(1, 4, 0.02));
    rank.racom.begin(0);
    let poison = Tensor::full([(2 * BATCHES) as i64], f64::NAN, (Kind::Double, Device::Cpu));
    rank.parameters.accumulate(&[rank.x], &[poison]);
    let mut contribute = |loss| {
        let word = Word { loss, ..Word::default() };
        rank.racom.contribute(word, &mut rank.parameters, &mut rank.times).expect("nobody is asked")
    };
    assert!(!contribute(1.0) && !contribute(f64::NAN));
    assert!(rank.racom.flight.is_none() && rank.racom.position == 0);
}
