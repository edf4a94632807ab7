//! Training under mpirun: P ranks equal one, a run that was killed goes on on another number of ranks, and one file of events
//! or configuration that differs is refused.

use crate::command::Workspace;
use serde_json::Value;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// f64 and a fixed time encoder: rounding does not grow.
const CONFIG: &str = "[data]\npath = \"events\"\n[model]\ndtype = \"f64\"\ntime_encoder = \"fixed\"\nmemory_dim = 16\ntime_dim = 16\n\
    embedding_dim = 16\n[train]\nepochs = 2\nbatch_size = 50\nlr = 1e-3\ncheckpoint_every = 10\nlog_every = 1\n\
    [partition]\nwindow_events = 500\nrebalance_above = 1.05\n";

fn workspace() -> Option<Workspace> {
    if Command::new("mpirun").arg("--version").stdout(Stdio::null()).status().is_err() {
        eprintln!("skipped: there is no mpirun");
        return None;
    }
    let place = Workspace::new();
    place.succeed("generate events --events 4000 --nodes 300 --features 8 --seed 3 --quiet");
    place.write("run.toml", CONFIG);
    Some(place)
}

/// `tidemill ARGUMENTS` on some ranks.
fn mpirun(place: &Workspace, ranks: usize, arguments: &str) -> Command {
    let mut command = Command::new("mpirun");
    let binary = env!("CARGO_BIN_EXE_tidemill");
    command.args(["-n", &ranks.to_string(), "--oversubscribe", "--bind-to", "none", binary]);
    command.args(arguments.split_whitespace()).current_dir(place.path(""));
    for variable in ["OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMIX_RANK", "OMP_WAIT_POLICY"] {
        command.env_remove(variable);
    }
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command
}

fn summary(place: &Workspace, run: &str) -> Value {
    let text = std::fs::read_to_string(place.path(run).join("summary.json")).expect("a summary");
    serde_json::from_str(&text).expect("json")
}

fn losses(place: &Workspace, run: &str) -> Vec<f64> {
    let text = std::fs::read_to_string(place.path(run).join("metrics.jsonl")).expect("metrics");
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("json"));
    lines.filter(|line| line["kind"] == "batch").map(|line| line["loss"].as_f64().expect("a loss")).collect()
}

fn assert_equal(place: &Workspace, many: &str, one: &str) {
    let [a, b] = [many, one].map(|run| summary(place, run));
    assert_eq!(a["sample_hash"], b["sample_hash"], "{many}");
    for split in ["val", "test"] {
        let [a, b] = [&a, &b].map(|summary| summary[split]["ap"].as_f64().expect("an AP"));
        assert!((a - b).abs() <= 1e-6, "{many}, {split}: {a} and {b}");
    }
    let [a, b] = [many, one].map(|run| losses(place, run));
    assert_eq!(a.len(), b.len(), "{many}");
    for (batch, (a, b)) in a.iter().zip(&b).enumerate() {
        assert!((a - b).abs() <= 1e-9, "{many}, loss of batch {batch}: {a} and {b}");
    }
}

#[test]
fn ranks_under_mpirun_equal_one_and_resume_on_others() {
    let Some(place) = workspace() else { return };
    place.succeed("train run.toml --quiet --out one");
    for ranks in [2, 3] {
        let out = format!("many-{ranks}");
        let done =
            mpirun(&place, ranks, &format!("train run.toml --quiet --out {out}")).output().expect("mpirun starts");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        assert_equal(&place, &out, "one");
        let summary = summary(&place, &out);
        assert_eq!(summary["ranks"], ranks);
        assert!(
            summary["comm"]["bytes_gradient"].as_u64() > Some(0) && summary["comm"]["rows_fetched"].as_u64() > Some(0)
        );
    }
    let mut child =
        mpirun(&place, 3, "train run.toml --quiet --out killed").stderr(Stdio::null()).spawn().expect("starts");
    let (checkpoint, started) = (place.path("killed/checkpoint/e0001-b000030/manifest.json"), Instant::now());
    while !checkpoint.exists() {
        assert!(started.elapsed() < Duration::from_secs(120), "no checkpoint in two minutes");
        assert!(child.try_wait().expect("a child").is_none(), "the run ended before it was killed");
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().expect("SIGKILL"); // of mpirun, whose ranks then end
    child.wait().expect("a child");
    std::thread::sleep(Duration::from_secs(2));
    let done = mpirun(&place, 2, "train --resume killed --quiet").output().expect("mpirun starts");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert_equal(&place, "killed", "one");
}

/// Asynchronous gradients: every batch is told of once, also by a run that was killed and went on, on another number of ranks.
#[test]
fn asynchronous_gradients_under_mpirun() {
    let Some(place) = workspace() else { return };
    const RACOM: &str = "--set gradient.mode=racom --set gradient.period=2 --set gradient.max_staleness=8";
    let start = |out: &str| mpirun(&place, 3, &format!("train run.toml --quiet --out {out} {RACOM}"));
    let done = start("whole").output().expect("mpirun starts");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let whole = summary(&place, "whole");
    let gradient = &whole["gradient"];
    assert_eq!(gradient["mode"], "racom");
    assert!(gradient["staleness_max"].as_u64() <= Some(8), "{gradient}");
    let batches = losses(&place, "whole").len() as u64;
    assert!(gradient["exchanges"].as_u64() > Some(batches / 16) && gradient["exchanges"].as_u64() <= Some(batches));
    let mut child = start("killed").stderr(Stdio::null()).spawn().expect("starts");
    let (checkpoint, started) = (place.path("killed/checkpoint/e0001-b000030/manifest.json"), Instant::now());
    while !checkpoint.exists() {
        assert!(started.elapsed() < Duration::from_secs(120), "no checkpoint in two minutes");
        assert!(child.try_wait().expect("a child").is_none(), "the run ended before it was killed");
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().expect("SIGKILL"); // of mpirun, whose ranks then end
    child.wait().expect("a child");
    std::thread::sleep(Duration::from_secs(2));
    let done = mpirun(&place, 2, "train --resume killed --quiet").output().expect("mpirun starts");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(losses(&place, "killed").len() as u64, batches);
    assert_eq!(summary(&place, "killed")["sample_hash"], whole["sample_hash"], "every batch was trained on once");
}

#[test]
fn threads_of_one_process_equal_one() {
    let place = Workspace::new();
    place.succeed("generate events --events 3000 --nodes 200 --seed 3 --quiet");
    place.write("run.toml", CONFIG);
    place.succeed("train run.toml --quiet --out one");
    place.succeed(
        "train run.toml --quiet --out many --ranks 4 --set partition.strategy=hash --set dependency.delegate=true",
    );
    assert_equal(&place, "many", "one");
    place.refuse("train run.toml --ranks 0", &["--ranks 0", "give 1 to"]);
    place.refuse("train run.toml --ranks 2 --set model.name=apan", &["do not cross ranks", "model.name"]);
}
