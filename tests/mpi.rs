//! Ranks as processes: this binary starts itself under mpirun, a fresh one for each case, since MPI starts once in a process.

use std::io::Write;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use tidemill::comms::{self, CommConfig, Communicator, Purpose, Tag};
use tidemill::error::{Error, Result};
use tidemill::trainer::signals::StopRequest;

/// Names the part that a rank plays; not set in the process that runs the tests.
const PART: &str = "TIDEMILL_TEST_PART";

/// Seconds of silence after which a rank is lost in these tests.
const TIMEOUT: f64 = 3.0;

// --- The ranks ---------------------------------------------------------------------------------------------------------

/// Every rank of every case runs this test alone.
#[test]
fn rank() {
    let Ok(part) = std::env::var(PART) else { return };
    std::process::exit(if play(&part) == ExitCode::SUCCESS { 0 } else { 1 });
}

/// As `main` does: work, tell the error, take leave, end with its code.
fn play(part: &str) -> ExitCode {
    let result = comms::together(&CommConfig { timeout_s: TIMEOUT, ..CommConfig::default() }, |comm| {
        say(&format!("rank {} of {} is there", comm.rank(), comm.world()));
        act(part, comm)
    });
    let code = match result {
        Ok(()) => {
            say("done");
            0
        }
        Err(error) => {
            say(&format!("error: {}", error.sentence()));
            error.exit_code()
        }
    };
    comms::leave();
    std::process::exit(i32::from(code))
}

fn act(part: &str, comm: &Communicator) -> Result<()> {
    match part {
        "talk" => talk(comm),
        "disagree" => {
            comm.agree("configuration", b"same").and_then(|()| comm.agree("data", &[u8::from(comm.rank() == 1)]))
        }
        "busy" => busy(comm),
        "stop" => stop(comm),
        _ => {
            comm.barrier(0)?;
            if comm.rank() == 1 {
                return fall(part);
            }
            comm.receive(1, tag(Purpose::Fetch, 0)).map(|_| ())
        }
    }
}

/// Rank 1's end, while the others wait for its message.
fn fall(part: &str) -> Result<()> {
    match part {
        "fail" => Err(Error::Usage { problem: "the file has no rows".to_owned(), mend: "name another".to_owned() }),
        "panic" => panic!("as a bug would"),
        "die" => signal_self("KILL"),
        "freeze" => signal_self("STOP"),
        other => panic!("no part is called {other}"),
    }
}

fn signal_self(signal: &str) -> Result<()> {
    let status = Command::new("kill").args(["-s", signal, &std::process::id().to_string()]).status();
    assert!(status.expect("kill is installed").success());
    std::thread::sleep(Duration::from_secs(60));
    Ok(())
}

/// As one write: mpirun puts the rank's mark before each.
fn say(line: &str) {
    std::io::stderr().write_all(format!("{line}\n").as_bytes()).expect("mpirun reads");
}

fn tag(purpose: Purpose, sequence: u64) -> Tag {
    Tag { purpose, sequence }
}

fn payload(from: usize, to: usize, length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * (from + 3) / 7 + to) as u8).collect()
}

/// Everything that a communicator does, and the ledger of it.
fn talk(comm: &Communicator) -> Result<()> {
    const SMALL: u64 = 2000;
    // The last is long enough to travel in blocks.
    const BIG: [usize; 4] = [0, 70_000, 5 << 20, (32 << 20) + 1];
    let (own, world) = (comm.rank(), comm.world());
    let peers = || (0..world).filter(move |&rank| rank != own);
    let before = comm.ledger();
    for to in peers() {
        for (sequence, &length) in BIG.iter().enumerate() {
            comm.send(to, tag(Purpose::Migration, sequence as u64), payload(own, to, length))?;
        }
        for sequence in 0..SMALL {
            comm.send(to, tag(Purpose::Fetch, sequence), payload(own, to, sequence as usize % 100))?;
        }
        comm.send(to, tag(Purpose::Sync, 7), vec![1; 3 << 20])?;
        comm.send(to, tag(Purpose::Sync, 7), vec![2])?;
    }
    for from in peers() {
        for sequence in (0..SMALL).rev() {
            let received = comm.receive(from, tag(Purpose::Fetch, sequence))?;
            assert_eq!(received.bytes, payload(from, own, sequence as usize % 100));
        }
        for (sequence, &length) in BIG.iter().enumerate() {
            let received = comm.receive(from, tag(Purpose::Migration, sequence as u64))?;
            assert!(received.bytes == payload(from, own, length), "{length} bytes");
        }
        let (first, second) = (comm.receive(from, tag(Purpose::Sync, 7))?, comm.receive(from, tag(Purpose::Sync, 7))?);
        assert_eq!((first.bytes[0], second.bytes[0]), (1, 2));
    }
    let since = comm.ledger().since(&before);
    let (others, small) = (world as u64 - 1, (0..SMALL).map(|s| s % 100).sum::<u64>());
    let (fetch, moved) = (since.of(Purpose::Fetch), since.of(Purpose::Migration));
    assert_eq!([fetch.sent_bytes, fetch.received_bytes], [others * small; 2]);
    assert_eq!([fetch.sent_messages, fetch.received_messages], [others * SMALL; 2]);
    assert_eq!([moved.sent_bytes, moved.received_bytes], [others * BIG.iter().sum::<usize>() as u64; 2]);
    sums(comm)?;
    let mut word = vec![own as u8];
    comm.broadcast(world - 1, 0, &mut word)?;
    assert_eq!(word, [world as u8 - 1]);
    let ranks: Vec<Vec<u8>> = (0..world).map(|rank| vec![rank as u8]).collect();
    assert_eq!(comm.all_gather(0, vec![own as u8])?, ranks);
    assert_eq!(comm.gather(1, 0, vec![own as u8])?, if own == 1 { ranks } else { vec![] });
    comm.agree("version", b"0.1.0")
}

/// Sums have the bits of adding in the order of the ranks.
fn sums(comm: &Communicator) -> Result<()> {
    let values = |rank: usize| -> Vec<f32> {
        (0..700_001u64).map(|i| (i * 7919 % 10_007) as f32 * 10f32.powi(rank as i32 * 3)).collect()
    };
    let mut naive = values(0);
    (1..comm.world()).for_each(|rank| naive.iter_mut().zip(values(rank)).for_each(|(sum, value)| *sum += value));
    let pending = comm.start_sum(1, values(comm.rank()))?;
    let mut sum = values(comm.rank());
    comm.sum(2, &mut sum)?;
    assert!(sum == naive && pending.wait()? == naive);
    Ok(())
}

/// A rank that computes longer than the timeout is not silent.
fn busy(comm: &Communicator) -> Result<()> {
    if comm.rank() == 1 {
        let start = Instant::now();
        while start.elapsed().as_secs_f64() < 2.0 * TIMEOUT {
            std::thread::sleep(Duration::from_millis(10)); // no call reaches the communicator
        }
    }
    comm.barrier(0)
}

/// SIGUSR1 to mpirun reaches every rank.
fn stop(comm: &Communicator) -> Result<()> {
    let stop = StopRequest::on_signals(true).expect("handlers");
    comm.barrier(0)?;
    say("ready");
    while !stop.requested() {
        std::thread::sleep(Duration::from_millis(5));
    }
    Err(Error::Stopped { epoch: 1, batch: comm.rank(), run: "runs/1".into() })
}

// --- The tests ---------------------------------------------------------------------------------------------------------

/// What a case's ranks said and how mpirun ended.
struct Outcome {
    code: Option<i32>,
    said: Vec<String>,
    took: Duration,
}

impl Outcome {
    /// What one rank wrote, line by line.
    fn of(&self, rank: usize) -> Vec<&str> {
        let mark = format!("[1,{rank}]<stderr>:");
        self.said.iter().filter_map(|line| line.strip_prefix(&mark)).collect()
    }

    fn errors(&self, rank: usize) -> Vec<&str> {
        self.of(rank).into_iter().filter(|line| line.starts_with("error: ")).collect()
    }
}

fn mpirun(ranks: usize, part: &str, options: &[&str]) -> Command {
    let mut command = Command::new("mpirun");
    command.args(["-n", &ranks.to_string(), "--oversubscribe", "--bind-to", "none", "--tag-output"]).args(options);
    command.arg(std::env::current_exe().expect("this test")).args(["rank", "--exact", "--nocapture"]);
    command.env(PART, part).env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// Whether this is the process that runs the tests, on a host with mpirun.
fn can_start(test: &str) -> bool {
    if std::env::var_os(PART).is_some() {
        return false;
    }
    let found = Command::new("mpirun").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !found {
        eprintln!("{test} is skipped: there is no mpirun (install openmpi-bin)");
    }
    found
}

fn run(ranks: usize, part: &str, options: &[&str]) -> Outcome {
    let start = Instant::now();
    let output = mpirun(ranks, part, options).output().expect("mpirun starts");
    let said = String::from_utf8_lossy(&output.stderr).lines().map(str::to_owned).collect();
    Outcome { code: output.status.code(), said, took: start.elapsed() }
}

/// Runs a case in which all ranks end with one error.
fn check_loss(ranks: usize, part: &str, options: &[&str], survivors: &[usize], expected: &str) -> Outcome {
    let outcome = run(ranks, part, options);
    for &rank in survivors {
        let errors = outcome.errors(rank);
        assert_eq!(errors.len(), 1, "{part}: rank {rank} says one error\n{:#?}", outcome.said);
        assert!(errors[0].contains(expected), "{part}: rank {rank} says {}", errors[0]);
    }
    assert!(outcome.took < Duration::from_secs(20), "{part} took {:?}", outcome.took);
    outcome
}

#[test]
fn ranks_talk_and_finish() {
    if !can_start("ranks_talk_and_finish") {
        return;
    }
    for ranks in [2, 3] {
        let outcome = run(ranks, "talk", &[]);
        assert_eq!(outcome.code, Some(0), "{:#?}", outcome.said);
        for rank in 0..ranks {
            assert_eq!(outcome.of(rank), [&format!("rank {rank} of {ranks} is there"), "done"]);
        }
    }
    // Without shared memory between them.
    let outcome = run(2, "talk", &["--mca", "btl", "tcp,self"]);
    assert_eq!(outcome.code, Some(0), "{:#?}", outcome.said);
}

#[test]
fn one_rank_is_alone() {
    if can_start("one_rank_is_alone") {
        let outcome = run(1, "busy", &[]);
        assert_eq!((outcome.code, outcome.of(0)), (Some(0), vec!["rank 0 of 1 is there", "done"]));
    }
}

#[test]
fn a_busy_rank_is_not_silent() {
    if can_start("a_busy_rank_is_not_silent") {
        let outcome = run(2, "busy", &[]);
        assert_eq!(outcome.code, Some(0), "{:#?}", outcome.said);
        assert!(outcome.took.as_secs_f64() > 2.0 * TIMEOUT);
    }
}

#[test]
fn a_rank_with_other_data_is_named_by_all() {
    if can_start("a_rank_with_other_data_is_named_by_all") {
        let outcome = check_loss(3, "disagree", &[], &[0, 1, 2], "rank 1 was started with another data than rank 0");
        assert_eq!(outcome.code, Some(2));
    }
}

#[test]
fn an_error_or_a_panic_of_one_rank_ends_all() {
    if can_start("an_error_or_a_panic_of_one_rank_ends_all") {
        let outcome = check_loss(3, "fail", &[], &[0, 2], "rank 1 failed: the file has no rows; name another");
        assert_eq!(outcome.errors(1), ["error: the file has no rows; name another"]);
        assert_eq!(outcome.code, Some(2));
        assert_ne!(check_loss(3, "panic", &[], &[0, 2], "rank 1 panicked").code, Some(0));
    }
}

/// mpirun itself ends a run whose rank was killed; told not to, as when it can not know, the others find out by themselves.
#[test]
fn a_killed_rank_is_named_by_the_others() {
    if can_start("a_killed_rank_is_named_by_the_others") {
        for transport in ["vader,self", "tcp,self"] {
            check_loss(3, "die", &["--enable-recovery", "--mca", "btl", transport], &[0, 2], "rank 1 ");
        }
        assert_ne!(run(2, "die", &[]).code, Some(0));
    }
}

#[test]
fn a_frozen_rank_is_named_by_the_others() {
    if can_start("a_frozen_rank_is_named_by_the_others") {
        let outcome = check_loss(3, "freeze", &[], &[0, 2], "rank 1 gave no sign of life for");
        assert_eq!(outcome.code, Some(1));
    }
}

#[test]
fn sigusr1_to_mpirun_stops_all_ranks() {
    use std::io::{BufRead, BufReader};
    if !can_start("sigusr1_to_mpirun_stops_all_ranks") {
        return;
    }
    let mut child = mpirun(3, "stop", &[]).spawn().expect("mpirun starts");
    let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines().map(|line| line.expect("text"));
    let mut said = Vec::new();
    while said.iter().filter(|line: &&String| line.ends_with("ready")).count() < 3 {
        said.push(lines.next().expect("all ranks get ready"));
    }
    let sent = Command::new("kill").args(["-s", "USR1", &child.id().to_string()]).status();
    assert!(sent.expect("kill is installed").success());
    said.extend(lines);
    let outcome = Outcome { code: child.wait().expect("mpirun").code(), said, took: Duration::ZERO };
    assert_eq!(outcome.code, Some(3), "{:#?}", outcome.said);
    for rank in 0..3 {
        assert!(outcome.errors(rank)[0].contains("stopped on request"), "{:#?}", outcome.said);
    }
}
