//! Rows that are followed, gated and pruned, against the exact run: replay with current inputs equals a fetch (algorithm page,
//! section 10.4), the gate and pruning show in the counts, and drift is measured.

use super::ranks::{Outcome, assert_equal, config, run, run_prepared};
use super::streams;
use crate::config::Config;
use crate::dependency::Calibration;
use crate::partition::Strategy;
use crate::setting::Auto;

/// Replay half as dear as a fetch on the small stream.
fn following(tau: Auto<f64>) -> Config {
    let mut config = config(16, 0);
    (config.partition.strategy, config.dependency.delegate) = (Strategy::Hash, Auto::Value(false));
    config.dependency.tau_cache = tau;
    config.calibration = Calibration { latency_s: 1e-4, bytes_per_s: 1e7, update_s: 2e-5 };
    config
}

fn distance(a: &Outcome, b: &Outcome) -> f64 {
    a.losses.iter().zip(&b.losses).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

#[test]
fn current_replay_equals_a_fetch() {
    for stream in [streams::small(), streams::small().with_random_features(6, 7).expect("room")] {
        let one = run(&config(16, 0), &stream, 1);
        let fetched = run(&following(Auto::Value(0.0)), &stream, 3);
        for (tau, delegate) in [
            (Auto::Value(0.3), Auto::Value(false)),
            (Auto::Value(0.6), Auto::Auto),
            (Auto::Auto, Auto::Value(false)),
            (Auto::Value(1.0), Auto::Value(true)),
            (Auto::Value(1.0), Auto::Value(false)),
        ] {
            for rebalance in [1.2, 1.02] {
                let mut config = following(tau);
                (config.dependency.delegate, config.partition.rebalance_above) = (delegate, rebalance);
                let many = run(&config, &stream, 3);
                let name = format!("tau {tau:?}, delegate {delegate:?}, rebalance {rebalance}");
                assert_equal(&name, &many, &one);
                assert!(many.replayed.rows > 0 && many.cached > 0, "{name}: something is replayed");
                if delegate == Auto::Value(false) {
                    assert!(many.state_bytes < fetched.state_bytes, "{name}: {}", many.state_bytes);
                }
                if (tau, rebalance) == (Auto::Value(1.0), 1.2) {
                    assert_eq!(many.state_bytes, 0, "{name}: every rank replays every event");
                }
            }
        }
    }
}

#[test]
fn replicas_share_the_room_with_copies() {
    let stream = streams::small();
    let one = run(&config(16, 0), &stream, 1);
    for cache in [0, 4_000, 9_000] {
        let mut config = following(Auto::Value(1.0));
        config.dependency.cache_bytes = crate::byte_size::ByteSize(cache);
        assert_equal(&format!("{cache} bytes"), &run(&config, &stream, 3), &one);
    }
}

/// Replay is work, not a copy of the answer.
#[test]
fn without_the_updates_scores_differ() {
    let (stream, config) = (streams::small(), following(Auto::Value(1.0)));
    let replayed = run(&config, &stream, 3);
    let idle = run_prepared(&config, &stream, 3, |trainer| trainer.pipeline.leave_replicas_as_they_are());
    assert!(distance(&replayed, &idle) > 1e-6);
}

#[test]
fn mean_aggregator_stored_message_time_and_two_layers() {
    let stream = streams::small();
    let variant = |mut config: Config| {
        config.model.tgn.aggregator = tidemill_models::message::Aggregator::Mean;
        config.model.tgn.message_time = tidemill_models::message::MessageTime::Stored;
        (config.model.tgn.layers, config.sampler.neighbors) = (2, vec![4, 3]);
        config
    };
    let one = run(&variant(config(16, 0)), &stream, 1);
    for tau in [Auto::Value(0.4), Auto::Value(1.0)] {
        assert_equal(&format!("tau {tau:?}"), &run(&variant(following(tau)), &stream, 2), &one);
    }
}

/// `lossy = false` is no pruning at all, as far as anyone can see.
#[test]
fn lossless_pruning_leaves_no_trace() {
    let stream = streams::small();
    let one = run(&config(16, 0), &stream, 1);
    let mut config = following(Auto::Value(1.0));
    (config.replay.l_max, config.replay.delta, config.replay.lossy) = (Auto::Value(4), 0.0, false);
    let pruned = run(&config, &stream, 3);
    assert_equal("lossless", &pruned, &one);
    assert!(pruned.replayed.lossless > 0 && pruned.replayed.lossy == 0);
}

#[test]
fn lossy_pruning_drifts_and_is_corrected() {
    let stream = streams::small();
    let mut config = following(Auto::Value(1.0));
    let exact = run(&config, &stream, 3);
    (config.replay.l_max, config.replay.delta) = (Auto::Value(6), 0.2);
    let seldom = run(&config, &stream, 3);
    assert!(seldom.replayed.lossy > 0 && seldom.crossed.drift.rows > 0);
    assert!(distance(&seldom, &exact) > 0.0 && seldom.crossed.drift.max > 0.0);
    config.sync.cached_interval = 1;
    let often = run(&config, &stream, 3);
    assert!(often.crossed.drift.by_age.len() <= 2, "corrected before the next batch: {:?}", often.crossed.drift);
    assert!(often.crossed.drift.rows > seldom.crossed.drift.rows);
}

#[test]
fn the_gate_opens_and_closes_by_the_norm() {
    let stream = streams::small();
    let exact = run(&following(Auto::Value(0.0)), &stream, 3);
    let mut config = following(Auto::Value(0.0));
    (config.sync.eps_grad, config.sync.relaxed_interval) = (Auto::Value(1e9), 5);
    let gated = run(&config, &stream, 3);
    let batches = exact.losses.len() as u64;
    assert_eq!((gated.crossed.open, gated.crossed.closed), (2, batches - 2), "closed as soon as a norm is known");
    assert_eq!(gated.crossed.refreshed, 2 + (batches - 2) / 5);
    assert!(gated.rows_fetched < exact.rows_fetched && gated.crossed.skipped > 0);
    assert!(gated.crossed.drift.max > 0.0 && distance(&gated, &exact) > 0.0, "{:?}", gated.crossed);
    let oldest = gated.crossed.drift.by_age.len() - 1;
    assert!((1..=5).contains(&oldest), "{oldest}: no copy is read for longer than the interval behind its owner");

    // Open for all: the same rows as in exact mode, and the same results.
    (config.sync.eps_grad, config.sync.relaxed_interval) = (Auto::Value(1e-30), 5);
    let open = run(&config, &stream, 3);
    assert_eq!((open.crossed.closed, open.rows_fetched), (0, exact.rows_fetched));
    assert_equal("open", &open, &exact);
    // A node's next owner does not know what the one before had sent.
    (config.sync.eps_grad, config.sync.relaxed_interval) = (Auto::Value(1e9), 2);
    config.partition.rebalance_above = 1.02;
    let moving = run(&config, &stream, 3);
    assert!(moving.crossed.skipped > 0 && moving.losses.len() == exact.losses.len());
    let mut both = following(Auto::Value(0.5));
    both.sync.eps_grad = Auto::Auto;
    let both = run(&both, &stream, 3);
    assert!(both.replayed.rows > 0 && both.crossed.closed > 0);
}

#[test]
fn inline_stages_and_stale_ones() {
    let stream = streams::small();
    let mut config = following(Auto::Value(0.5));
    config.sync.eps_grad = Auto::Value(1e9);
    let ahead = run(&config, &stream, 2);
    config.pipeline.serial = true;
    let inline = run(&config, &stream, 2);
    assert_eq!(distance(&ahead, &inline), 0.0, "the gate decides alike");
    assert_eq!((ahead.rows_fetched, ahead.state_bytes), (inline.rows_fetched, inline.state_bytes));
    (config.pipeline.serial, config.pipeline.staleness) = (false, 2);
    let stale = run(&config, &stream, 2);
    assert!(distance(&stale, &inline) < 0.5 && stale.replayed.rows > 0);
}
