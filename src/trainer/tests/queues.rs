//! Queues that size themselves change nothing but time: the same bits whatever becomes of their lengths. And where stages wait for
//! other ranks, it shows.

use super::exact::config;
use super::streams;
use crate::comms::{Communicator, Purpose};
use crate::config::Config;
use crate::device::memory::MemoryProbe;
use crate::stats::{Stage, Stall};
use crate::trainer::metrics_log::read_metrics;
use crate::trainer::{Console, Trainer};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A control group of 100 MiB with so many in use.
fn write_group(folder: &Path, used_mib: u64) {
    let (max, current) = (100u64 << 20, used_mib << 20);
    std::fs::write(folder.join("memory.current.new"), current.to_string()).expect("written");
    std::fs::rename(folder.join("memory.current.new"), folder.join("memory.current")).expect("renamed");
    std::fs::write(folder.join("memory.max"), max.to_string()).expect("written");
    std::fs::write(folder.join("memory.stat"), "inactive_file 0\n").expect("written");
}

fn adaptive(every_s: f64, bounds: (usize, usize)) -> Config {
    let mut config = config(10, 0);
    (config.pipeline.adapt_every_s, config.pipeline.queue_min, config.pipeline.queue_max) =
        (every_s, bounds.0, bounds.1);
    config
}

#[test]
fn lengths_that_change_leave_every_bit_as_it_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut serial = config(10, 0);
    serial.pipeline.serial = true;
    let mut trainer = Trainer::over(serial, streams::small()).expect("valid");
    trainer.train_epoch().expect("trains");
    let expected = trainer.state_hash().expect("alone");
    for bounds in [(1, 1), (1, 4), (3, 64)] {
        let mut trainer = Trainer::over(adaptive(1e-9, bounds), streams::small()).expect("valid");
        let run = folder.path().join(format!("{}-{}", bounds.0, bounds.1));
        trainer.start_run(Some(&run), "queues", Console { quiet: true, ..Console::default() }).expect("a run");
        let group = folder.path().to_owned();
        write_group(&group, 97); // short of memory before the first plan is sent, however far ahead plans get later
        trainer.pipeline.queue_lengths().read_memory_by(MemoryProbe::of_group(&group));
        let seen = AtomicU64::new(0);
        trainer.hooks.on_batch(Box::new(move |_| {
            let batch = seen.fetch_add(1, Ordering::Relaxed);
            write_group(&group, if batch % 12 < 6 { 97 } else { 40 });
            std::thread::sleep(Duration::from_millis(1));
        }));
        trainer.train_epoch().expect("trains");
        assert_eq!(trainer.state_hash().expect("alone"), expected, "{bounds:?}");
        let lengths = trainer.pipeline.queue_lengths().in_force();
        assert!((bounds.0..=bounds.1).contains(&lengths[0]) && lengths[1] == 1, "{lengths:?}");
        drop(trainer);
        let metrics = read_metrics(&run.join("metrics.jsonl")).expect("readable");
        let changes: Vec<_> = metrics.iter().filter(|line| line["kind"] == "adapt").collect();
        assert_eq!(changes.iter().any(|line| line["cause"] == "short_of_memory"), bounds.1 > 1, "{changes:?}");
        for change in changes {
            assert!(change["queue"] == "plans" && change["epoch"] == 1 && change["from"] != change["to"], "{change}");
        }
    }
}

/// Two ranks, one of which is slow: the other's stages wait for messages, and all of it is on their accounts.
#[test]
fn waits_for_other_ranks_are_booked_where_they_happen() {
    let mut config = config(20, 6);
    (config.partition.window_events, config.train.lr) = (60, 1e-3);
    for serial in [false, true] {
        config.pipeline.serial = serial;
        std::thread::scope(|scope| {
            for comm in Communicator::local(2, &config.comm) {
                let config = config.clone();
                scope.spawn(move || wait_for_a_slow_rank(config, comm));
            }
        });
    }
}

fn wait_for_a_slow_rank(config: Config, comm: Communicator) {
    let rank = comm.rank();
    let mut trainer = Trainer::over_on_rank(config, streams::small(), comm.clone()).expect("a valid configuration");
    trainer.keep_trace();
    trainer.hooks.on_batch(Box::new(move |_| std::thread::sleep(Duration::from_millis(20 * rank as u64))));
    trainer.train_epoch().expect("trains");
    trainer.pipeline.stop();
    let times = trainer.pipeline.timeline();
    let booked: Duration = Stage::ALL.iter().map(|&stage| times.stall(stage, Stall::Network)).sum();
    let ledger = comm.ledger();
    let accounts = Purpose::OF_BATCHES.map(|purpose| ledger.of(purpose));
    let waited: Duration = accounts.iter().map(|account| account.waited + account.imbalance).sum();
    assert_eq!(booked, waited, "rank {rank}");
    if rank == 0 {
        assert!(booked > Duration::from_millis(60), "{booked:?} for a peer that sleeps 120 ms");
        let trace = times.chrome_trace();
        let events = trace["traceEvents"].as_array().expect("a list");
        assert!(events.iter().any(|event| event["name"] == "network" && event["cat"] == "wait"));
    }
    comm.finish().expect("every rank is done");
}
