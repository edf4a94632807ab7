//! Ratios of what was just measured to `benches/baseline.json`, and writing that file.
//!
//! Criterion leaves its estimates below the target folder; the medians there are what is compared. `TIDEMILL_BASELINE=write`
//! replaces the committed file by them.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// The committed file.
#[derive(Debug, Serialize, Deserialize)]
struct Baseline {
    /// Processor and its threads.
    machine: String,
    /// Day, in UTC.
    date: String,
    /// Median nanoseconds by kernel.
    nanoseconds: BTreeMap<String, f64>,
}

/// Prints, or writes the baseline if that is asked for.
#[allow(clippy::print_stdout, reason = "a benchmark's result")]
pub(crate) fn compare() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/baseline.json");
    let found = Baseline { machine: machine(), date: today(), nanoseconds: medians() };
    if std::env::var("TIDEMILL_BASELINE").is_ok_and(|what| what == "write") {
        let text = serde_json::to_string_pretty(&found).expect("plain values") + "\n";
        std::fs::write(&path, text).expect("a writable folder");
        println!("wrote {}", path.display());
        return;
    }
    let Ok(text) = std::fs::read_to_string(&path) else {
        println!("there is no {}: make bench-quick BASELINE=write", path.display());
        return;
    };
    let baseline: Baseline = serde_json::from_str(&text).expect("a baseline that this program wrote");
    println!("\nagainst {} of {}", baseline.machine, baseline.date);
    if baseline.machine != found.machine {
        println!("this machine is another: {}", found.machine);
    }
    println!("{:24} {:>12} {:>12} {:>7}", "kernel", "baseline us", "now us", "ratio");
    for (name, now) in &found.nanoseconds {
        match baseline.nanoseconds.get(name) {
            Some(then) => println!("{name:24} {:12.1} {:12.1} {:7.2}", then / 1e3, now / 1e3, now / then),
            None => println!("{name:24} {:>12} {:12.1}", "-", now / 1e3),
        }
    }
    println!("ratio: time now over the baseline's, below 1 is faster");
}

/// Where criterion keeps its estimates.
fn estimates() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    target.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("target")).join("criterion")
}

fn medians() -> BTreeMap<String, f64> {
    let folders = std::fs::read_dir(estimates()).into_iter().flatten().flatten();
    folders.filter_map(|folder| Some((folder.file_name().into_string().ok()?, median(&folder.path())?))).collect()
}

fn median(folder: &Path) -> Option<f64> {
    let text = std::fs::read_to_string(folder.join("new/estimates.json")).ok()?;
    let estimates: serde_json::Value = serde_json::from_str(&text).ok()?;
    estimates["median"]["point_estimate"].as_f64()
}

fn machine() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{}, {threads} threads", name.unwrap_or("an unknown processor"))
}

/// Today's date by the proleptic Gregorian calendar.
fn today() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let days = i64::try_from(seconds / 86_400).unwrap_or(0) + 719_468; // since 0000-03-01
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, year) = if month < 10 { (month + 3, year) } else { (month - 9, year + 1) };
    format!("{:04}-{month:02}-{day:02}", year + era * 400)
}
