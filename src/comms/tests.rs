//! Ranks as threads: order, matching, sums, the ledger, and what a lost rank does to the others.

use super::*;
use crate::byte_size::ByteSize;
use crate::error::{Error, Loss, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

const WORLDS: [usize; 4] = [1, 2, 3, 4];

fn config(bucket_bytes: u64) -> CommConfig {
    CommConfig { bucket_bytes: ByteSize(bucket_bytes), ..CommConfig::default() }
}

/// Runs `work` on every rank, each a thread; what each returned, by rank.
fn on_ranks<T: Send>(comms: Vec<Communicator>, work: impl Fn(Communicator) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = comms.into_iter().map(|comm| scope.spawn(move || work(comm))).collect();
        threads.into_iter().map(|thread| thread.join().expect("the rank's own asserts hold")).collect()
    })
}

/// Runs `work` on every world, plain and poisoned, and lets all ranks finish.
fn check(bucket_bytes: u64, work: impl Fn(&Communicator) -> Result<()> + Sync) {
    for world in WORLDS {
        for comms in [
            Communicator::local(world, &config(bucket_bytes)),
            Communicator::local_poisoned(world, &config(bucket_bytes)),
        ] {
            on_ranks(comms, |comm| work(&comm).and_then(|()| comm.finish()).expect("no rank is lost"));
        }
    }
}

fn tag(purpose: Purpose, sequence: u64) -> Tag {
    Tag { purpose, sequence }
}

/// Bytes that tell who sent which message to whom.
fn payload(from: usize, to: usize, sequence: u64, length: usize) -> Vec<u8> {
    let seed = (from * 31 + to * 7) as u64 + sequence;
    (0..length as u64).map(|i| (i.wrapping_mul(seed + 1) >> 3) as u8).collect()
}

/// Values whose sum depends on the order of adding.
fn values(rank: usize, length: usize) -> Vec<f32> {
    (0..length)
        .map(|i| ((i * 2_654_435_761 + rank * 40_503) % 1_000_003) as f32 * 10f32.powi((rank % 5) as i32 - 2))
        .collect()
}

#[test]
fn messages_are_matched_by_tag_in_whatever_order_they_are_taken() {
    const SEQUENCES: u64 = 50;
    check(1 << 20, |comm| {
        let purposes = [Purpose::Fetch, Purpose::Commit, Purpose::DelegateGradient];
        for to in 0..comm.world() {
            for sequence in 0..SEQUENCES {
                for purpose in purposes {
                    let length = 10 * purpose as usize + sequence as usize;
                    comm.send(to, tag(purpose, sequence), payload(comm.rank(), to, sequence, length))?;
                }
            }
        }
        for from in (0..comm.world()).rev() {
            for sequence in (0..SEQUENCES).rev() {
                for purpose in purposes {
                    let length = 10 * purpose as usize + sequence as usize;
                    let received = comm.receive(from, tag(purpose, sequence))?;
                    assert_eq!(received.bytes, payload(from, comm.rank(), sequence, length));
                }
            }
        }
        Ok(())
    });
}

#[test]
fn messages_of_one_tag_keep_their_order() {
    check(1 << 20, |comm| {
        let (next, previous) = ((comm.rank() + 1) % comm.world(), (comm.rank() + comm.world() - 1) % comm.world());
        for i in 0..200u32 {
            comm.send(next, tag(Purpose::Sync, 5), i.to_le_bytes().to_vec())?;
        }
        for i in 0..200u32 {
            assert_eq!(comm.receive(previous, tag(Purpose::Sync, 5))?.bytes, i.to_le_bytes());
        }
        assert_eq!(comm.try_receive(previous, tag(Purpose::Sync, 5))?, None);
        comm.barrier(0)?; // a rank that has finished already would be an error above
        Ok(())
    });
}

#[test]
fn big_and_empty_messages_pass() {
    check(1 << 20, |comm| {
        let lengths = [0, 1, 4095, 3 << 20];
        for to in comm.peers() {
            for (sequence, &length) in lengths.iter().enumerate() {
                let bytes = payload(comm.rank(), to, sequence as u64, length);
                comm.send(to, tag(Purpose::Migration, sequence as u64), bytes)?;
            }
        }
        for from in comm.peers() {
            for (sequence, &length) in lengths.iter().enumerate() {
                let received = comm.receive(from, tag(Purpose::Migration, sequence as u64))?;
                assert!(received.bytes == payload(from, comm.rank(), sequence as u64, length));
            }
        }
        Ok(())
    });
}

#[test]
fn sums_add_in_the_order_of_the_ranks_and_are_the_same_bits_everywhere() {
    for (bucket_bytes, length) in [(64, 1000), (1 << 20, 1000), (1, 7), (64, 2), (64, 0), (4096, 1024)] {
        check(bucket_bytes, |comm| {
            let mut naive = values(0, length);
            for rank in 1..comm.world() {
                naive.iter_mut().zip(values(rank, length)).for_each(|(sum, value)| *sum += value);
            }
            let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
            let mut sums = values(comm.rank(), length);
            comm.sum(3, &mut sums)?;
            assert_eq!(bits(&sums), bits(&naive), "{length} values in buckets of {bucket_bytes} bytes");
            let wide: Vec<f64> = naive.iter().map(|&value| f64::from(value) / 3.0).collect();
            let mut twice = wide.clone();
            comm.sum(4, &mut twice)?;
            assert!(comm.world() > 2 || twice.iter().zip(&wide).all(|(t, w)| *t == w * comm.world() as f64));
            Ok(())
        });
    }
}

#[test]
fn started_sums_go_on_side_by_side_and_end_in_any_order() {
    check(256, |comm| {
        let start = |sequence: u64| comm.start_sum(sequence, vec![(sequence + comm.rank() as u64) as f64; 500]);
        let (first, second, mut third) = (start(1)?, start(2)?, start(3)?);
        let ranks = (0..comm.world()).sum::<usize>() as f64;
        let sum = |sequence: u64| vec![ranks + (comm.world() as u64 * sequence) as f64; 500];
        assert_eq!(second.wait()?, sum(2));
        // Without any wait each rank's calls alone bring the sum to its end.
        let start = Instant::now();
        while !third.progress()? {
            assert!(start.elapsed() < Duration::from_secs(60), "the sum makes progress");
            std::thread::yield_now();
        }
        assert_eq!((third.wait()?, first.wait()?), (sum(3), sum(1)));
        Ok(())
    });
}

#[test]
fn collectives_reach_every_rank() {
    check(1 << 20, |comm| {
        let (own, world) = (comm.rank(), comm.world());
        for root in 0..world {
            let mut bytes = vec![own as u8; 5];
            comm.broadcast(root, root as u64, &mut bytes)?;
            assert_eq!(bytes, vec![root as u8; 5]);
            let all: Vec<Vec<u8>> = (0..world).map(|rank| vec![rank as u8; rank]).collect();
            let gathered = comm.gather(root, root as u64, vec![own as u8; own])?;
            assert_eq!(gathered, if own == root { all.clone() } else { Vec::new() });
            assert_eq!(comm.all_gather(root as u64, vec![own as u8; own])?, all);
        }
        comm.agree("configuration", b"same")?;
        let version = [u8::from(own == 2)];
        let agreed = comm.agree("version", &version);
        match agreed {
            Ok(()) => assert!(world < 3),
            Err(error) => {
                assert!(error.sentence().contains("rank 2 was started with another version"), "{error}");
                assert_eq!(error.exit_code(), 2);
            }
        }
        Ok(())
    });
}

#[test]
fn nobody_leaves_a_barrier_before_the_last_has_come() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    for world in [2, 3, 4, 7] {
        let arrived = AtomicUsize::new(0);
        on_ranks(Communicator::local(world, &config(1 << 20)), |comm| {
            std::thread::sleep(Duration::from_millis(10 * comm.rank() as u64));
            arrived.fetch_add(1, Ordering::SeqCst);
            comm.barrier(0).unwrap();
            assert_eq!(arrived.load(Ordering::SeqCst), world);
            comm.finish().unwrap();
        });
    }
}

/// Rank 0 sends 100 and 20 bytes, rank 1 sums 1000 f32 with it: half of them there, half of them back.
#[test]
fn the_ledger_is_exact() {
    let ledgers = on_ranks(Communicator::local(2, &config(1 << 20)), |comm| {
        if comm.rank() == 0 {
            comm.send(1, tag(Purpose::Fetch, 0), vec![1; 100]).unwrap();
            comm.send(1, tag(Purpose::Fetch, 1), vec![1; 20]).unwrap();
            comm.send(0, tag(Purpose::Fetch, 1), vec![1; 20]).unwrap();
        } else {
            comm.receive(0, tag(Purpose::Fetch, 0)).unwrap();
            comm.receive(0, tag(Purpose::Fetch, 1)).unwrap();
        }
        comm.sum(0, &mut [1f32; 1000]).unwrap();
        let ledger = comm.ledger();
        comm.finish().unwrap();
        ledger
    });
    let counts = |rank: usize, purpose| {
        let account = ledgers[rank].of(purpose);
        [account.sent_bytes, account.sent_messages, account.received_bytes, account.received_messages]
    };
    assert_eq!(counts(0, Purpose::Fetch), [120, 2, 0, 0]);
    assert_eq!(counts(1, Purpose::Fetch), [0, 0, 120, 2]);
    for rank in 0..2 {
        assert_eq!(counts(rank, Purpose::Gradient), [4000, 2, 4000, 2]);
        assert_eq!(counts(rank, Purpose::Commit), [0; 4]);
    }
}

/// Each rank sends 2 (P - 1) / P of the values, whatever the buckets.
#[test]
fn a_sum_moves_the_least_it_can() {
    for world in WORLDS {
        let sent = on_ranks(Communicator::local(world, &config(4 * 120)), |comm| {
            comm.sum(0, &mut [1f32; 1200]).unwrap();
            let sent = comm.ledger().of(Purpose::Gradient).sent_bytes;
            comm.finish().unwrap();
            sent
        });
        assert_eq!(sent, vec![(2 * (world - 1) * 4 * 1200 / world) as u64; world]);
    }
}

#[test]
fn waiting_for_a_late_peer_is_imbalance() {
    let late = Duration::from_millis(60);
    let ledgers = on_ranks(Communicator::local(2, &config(1 << 20)), |comm| {
        if comm.rank() == 0 {
            std::thread::sleep(late);
            comm.send(1, tag(Purpose::Commit, 0), vec![0; 8]).unwrap();
        } else {
            let received = comm.receive(0, tag(Purpose::Commit, 0)).unwrap();
            assert!(received.waited >= late / 2 && received.sent.elapsed().unwrap() < late);
        }
        let ledger = comm.ledger();
        comm.finish().unwrap();
        ledger
    });
    let account = ledgers[1].of(Purpose::Commit);
    assert!(account.imbalance >= late / 2, "{account:?}");
    assert!(account.waited < account.imbalance, "{account:?}");
    assert_eq!(ledgers[0].total().imbalance, Duration::ZERO);
}

/// What ranks 0 and 2 end with when rank 1 does `work` while they wait for it.
fn errors_when_rank_1(work: impl Fn(Communicator) + Sync) -> Vec<Error> {
    let start = Instant::now();
    let errors = on_ranks(Communicator::local(3, &config(1 << 20)), |comm| {
        if comm.rank() == 1 {
            // A rank that dies takes its thread with it, not the test.
            let _ = catch_unwind(AssertUnwindSafe(|| work(comm)));
            return None;
        }
        let error = comm.receive(1, tag(Purpose::Fetch, 9)).expect_err("rank 1 never sends");
        assert_eq!(comm.send(1, tag(Purpose::Fetch, 9), vec![]).unwrap_err().sentence(), error.sentence());
        assert_eq!(comm.clone().finish().unwrap_err().sentence(), error.sentence());
        comm.abandon(&error);
        Some(error)
    });
    assert!(start.elapsed() < Duration::from_secs(10), "nobody waits out the timeout of a minute");
    errors.into_iter().flatten().collect()
}

#[test]
fn a_lost_rank_ends_the_others_with_an_error_that_names_it() {
    let check = |work: &(dyn Fn(Communicator) + Sync), expected: &str, exit_code: u8| {
        let errors = errors_when_rank_1(work);
        assert_eq!(errors.len(), 2);
        for error in errors {
            assert!(matches!(error, Error::PeerLost { rank: 1, .. }), "{error}");
            assert!(error.sentence().starts_with("rank 1 ") && error.sentence().contains(expected), "{error}");
            assert_eq!(error.exit_code(), exit_code);
        }
    };
    check(&|_| panic!("as a bug would (this panic is part of a test)"), "panicked", 1);
    check(&drop, "ended before the run did", 1);
    let bad_input = || Error::Usage { problem: "no such key".to_owned(), mend: "leave it".to_owned() };
    check(&|comm| comm.abandon(&bad_input()), "failed: no such key; leave it", 2);
}

#[test]
fn waiting_for_a_rank_that_has_finished_ends() {
    let errors = on_ranks(Communicator::local(2, &config(1 << 20)), |comm| {
        if comm.rank() == 1 {
            return comm.finish().expect_err("rank 0 fails");
        }
        let error = comm.receive(1, tag(Purpose::Fetch, 0)).expect_err("rank 1 has finished");
        comm.abandon(&error);
        error
    });
    for error in errors {
        assert!(matches!(error, Error::PeerLost { rank: 1, loss: Loss::Departed }), "{error}");
    }
}

#[test]
fn a_handle_serves_any_thread_of_its_rank() {
    fn shared<T: Clone + Send + Sync + 'static>() {}
    shared::<Communicator>();
    check(1 << 20, |comm| {
        std::thread::scope(|scope| {
            let sums = scope.spawn(|| {
                (0..50).try_for_each(|sequence| {
                    let mut one = [1.0f64];
                    comm.sum(sequence, &mut one).map(|()| assert_eq!(one[0], comm.world() as f64))
                })
            });
            for sequence in 0..50 {
                comm.barrier(sequence)?;
            }
            sums.join().expect("no panic")
        })
    });
}

#[test]
fn measured_rates_are_the_same_on_all_ranks() {
    for world in WORLDS {
        let rates = on_ranks(Communicator::local(world, &config(1 << 20)), |comm| {
            let rates = comm.measure(0).unwrap();
            comm.finish().unwrap();
            rates
        });
        assert_eq!(rates[0].is_some(), world > 1);
        for rate in rates.iter().flatten() {
            assert_eq!(Some(*rate), rates[0]);
            assert!(rate.latency_s > 0.0 && rate.bytes_per_s > 1e6 && rate.messages_per_s > 1e2, "{rate:?}");
        }
    }
}
