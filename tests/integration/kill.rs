//! A run that is killed again and again, and each time goes on, ends where one that never stopped ends.

use crate::command::Workspace;
use serde_json::Value;
use std::process::{Child, Stdio};
use std::time::Duration;

/// SIGKILLs in one run; `TIDEMILL_KILLS` asks for more.
fn kills() -> u32 {
    std::env::var("TIDEMILL_KILLS").map_or(4, |text| text.parse().expect("a number"))
}

const RUN: &str = "train run.toml --quiet";

fn workspace() -> Workspace {
    let place = Workspace::new();
    match std::env::var("TIDEMILL_KILL_DATA") {
        Ok(path) => {
            std::fs::copy(path, place.path("events")).expect("the stream named by TIDEMILL_KILL_DATA");
        }
        Err(_) => drop(place.succeed("generate events --events 12000 --nodes 600 --features 8 --seed 3 --quiet")),
    }
    place.write(
        "run.toml",
        "[data]\npath = \"events\"\n[model]\ntime_encoder = \"learned\"\n[train]\nepochs = 2\nlr = 1e-3\ncheckpoint_every = 20\nlog_every = 1\n",
    );
    place
}

fn summary(place: &Workspace, run: &str) -> Value {
    let text = std::fs::read_to_string(place.path(run).join("summary.json")).expect("a summary");
    serde_json::from_str(&text).expect("json")
}

/// Waits until the run has trained about `batches` batches more than `from`, or has ended; true if it still runs.
fn let_it_train(child: &mut Child, place: &Workspace, from: usize, batches: usize) -> bool {
    let lines = || std::fs::read_to_string(place.path("killed/metrics.jsonl")).map_or(0, |text| text.lines().count());
    loop {
        if child.try_wait().expect("a child").is_some() {
            return false;
        }
        if lines() >= from + batches {
            return true;
        }
        std::thread::sleep(Duration::from_millis(3));
    }
}

#[test]
fn killed_and_resumed_is_never_killed() {
    let place = workspace();
    place.succeed(&format!("{RUN} --out whole"));
    let whole = summary(&place, "whole");
    let total = std::fs::read_to_string(place.path("whole/metrics.jsonl")).expect("metrics").lines().count();
    let mut command = format!("{RUN} --out killed");
    let (mut killed, mut word) = (0, 12345u64);
    while killed < kills() {
        let from = std::fs::read_to_string(place.path("killed/metrics.jsonl")).map_or(0, |text| text.lines().count());
        let mut child = place.command(&command).stderr(Stdio::null()).stdout(Stdio::null()).spawn().expect("starts");
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let batches = 1 + (word >> 33) as usize % (total / kills() as usize).clamp(2, 120);
        if !let_it_train(&mut child, &place, from, batches) {
            break;
        }
        child.kill().expect("SIGKILL"); // anywhere: in a batch, in a checkpoint, in validation
        child.wait().expect("a child");
        killed += 1;
        command = "train --resume killed --quiet".into(); // before its first checkpoint it begins anew
    }
    let last = place.run(&command);
    assert_eq!(last.code, 0, "{}", last.err);
    let resumed = summary(&place, "killed");
    eprintln!("{killed} kills; state {} and {}", whole["state_hash"], resumed["state_hash"]);
    assert!(killed > 0, "the run ended before it was killed");
    for key in ["state_hash", "sample_hash"] {
        assert_eq!(resumed[key], whole[key], "{key}");
    }
    assert_eq!(resumed["test"]["ap"], whole["test"]["ap"]);
}
