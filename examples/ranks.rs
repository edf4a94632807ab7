//! What the ranks of a cluster have between them, and whether they stay together:
//!
//! ```sh
//! mpirun -n 4 --host a:2,b:2 target/release/examples/ranks [SECONDS [TIMEOUT]]
//! ```
//! Measures latency, bandwidth and the rate of small messages, then sums 1 MiB over all ranks again and again for SECONDS (2),
//! and tells how fast and with how much of a core. A rank that says nothing for TIMEOUT seconds (10) ends them all.

use std::process::ExitCode;
use std::time::{Duration, Instant};
use tidemill::comms::{self, CommConfig, Communicator};
use tidemill::error::Result;

fn main() -> ExitCode {
    let number = |at: usize, usual: f64| std::env::args().nth(at).map_or(usual, |text| text.parse().expect("a number"));
    let (seconds, timeout_s) = (number(1, 2.0), number(2, 10.0));
    let config = CommConfig { timeout_s, ..CommConfig::default() };
    let result = comms::together(&config, |comm| work(comm, Duration::from_secs_f64(seconds)));
    let code = match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", error.sentence());
            ExitCode::from(error.exit_code())
        }
    };
    comms::leave();
    code
}

fn work(comm: &Communicator, length: Duration) -> Result<()> {
    let say = |text: String| {
        if comm.rank() == 0 {
            eprintln!("{text}");
        }
    };
    let Some(rates) = comm.measure(0)? else {
        say("one rank, alone; start with mpirun".to_owned());
        return Ok(());
    };
    say(format!(
        "{} ranks: latency {:.1} us, {:.1} MB/s, {:.0} small messages/s",
        comm.world(),
        rates.latency_s * 1e6,
        rates.bytes_per_s / 1e6,
        rates.messages_per_s
    ));
    let (start, mut sums, mut said) = (Instant::now(), 0u64, Instant::now());
    let mut gradient = vec![1f32; 1 << 18];
    loop {
        // Whether to go on is rank 0's word, carried by the sum itself.
        gradient.fill(1.0);
        gradient[0] = f32::from(u8::from(comm.rank() == 0 && start.elapsed() >= length));
        comm.sum(sums, &mut gradient)?;
        sums += 1;
        if said.elapsed() >= Duration::from_secs(1) {
            said = Instant::now();
            say(format!("{:5.1} s: {sums} sums", start.elapsed().as_secs_f64()));
        }
        if gradient[0] > 0.0 {
            break;
        }
    }
    let (ledger, seconds) = (comm.ledger().total(), start.elapsed().as_secs_f64());
    say(format!(
        "{:.2} ms a sum of 1 MiB; rank 0 waited {:.2} s, and {:.2} s for late peers; {:.1} MB out",
        seconds * 1e3 / sums as f64,
        ledger.waited.as_secs_f64(),
        ledger.imbalance.as_secs_f64(),
        ledger.sent_bytes as f64 / 1e6
    ));
    idle(comm, sums)
}

/// Tells what the thread that owns MPI takes of a core while nothing happens.
fn idle(comm: &Communicator, sequence: u64) -> Result<()> {
    comm.barrier(sequence)?;
    let (before, start) = (cpu_seconds(), Instant::now());
    std::thread::sleep(Duration::from_secs(1));
    if comm.rank() == 0 {
        let share = 100.0 * (cpu_seconds() - before) / start.elapsed().as_secs_f64();
        eprintln!("idle: {share:.1} % of a core");
    }
    comm.barrier(sequence + 1)
}

/// Processor time of this process so far, from Linux's `/proc`, in hundredths of a second.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    fields.iter().skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}
