//! Grids of runs and their table; runs beside a baseline.

use crate::command::Workspace;
use serde_json::Value;
use std::process::Stdio;
use std::time::{Duration, Instant};

const CONFIG: &str = "[data]\npath = \"events\"\n[model]\nmemory_dim = 8\ntime_dim = 8\nembedding_dim = 8\n[train]\nepochs = 1\n\
    batch_size = 100\n";

fn workspace() -> Workspace {
    let place = Workspace::new();
    place.succeed("generate events --events 1000 --nodes 80 --seed 3 --quiet");
    place.write("run.toml", CONFIG);
    place
}

fn summary(place: &Workspace, run: &str) -> Value {
    let text = std::fs::read_to_string(place.path(run).join("summary.json")).expect("a summary");
    serde_json::from_str(&text).expect("json")
}

#[test]
fn a_grid_is_one_table_and_goes_on_where_it_was() {
    let place = workspace();
    let sweep = "sweep run.toml --set train.lr=1e-3,1e-2 --set train.negatives=all_nodes --seeds 2 --jobs 2";
    let said = place.succeed(sweep);
    let lines: Vec<&str> = said.out.lines().collect();
    assert!(lines[0].starts_with("| train.lr | val.ap | test.ap | epochs.last.loss |"), "{}", said.out);
    assert_eq!(lines.len(), 4, "{}", said.out);
    assert!(lines[2].starts_with("| 1e-3 | 0.") && lines[2].contains(" ± "), "{}", said.out);
    assert!(said.err.contains("4 runs, 0 of them finished before"), "{}", said.err);
    let folder = place.path("sweeps/run");
    assert_eq!(std::fs::read_to_string(folder.join("sweep.md")).expect("the table"), said.out);
    let csv = std::fs::read_to_string(folder.join("sweep.csv")).expect("the table");
    let aps: Vec<f64> = ["lr=1e-3_seed=0", "lr=1e-3_seed=1"]
        .map(|run| summary(&place, &format!("sweeps/run/{run}"))["test"]["ap"].as_f64().expect("an AP"))
        .to_vec();
    let fields: Vec<&str> = csv.lines().nth(1).expect("a row").split(',').collect();
    assert_eq!((fields[0], fields[1], fields[2]), ("1e-3", "2", "2"), "{csv}");
    let mean: f64 = fields[6].parse().expect("the mean of test.ap");
    assert!((mean - (aps[0] + aps[1]) / 2.0).abs() < 1e-12, "{csv}");
    assert_eq!(std::fs::read_to_string(folder.join("runs.csv")).expect("runs").lines().count(), 5);

    // One run lost its end, another all but its configuration: both come out as before, the others are not touched.
    let hash = |run: &str| summary(&place, &format!("sweeps/run/{run}"))["state_hash"].clone();
    let before = [hash("lr=1e-3_seed=0"), hash("lr=1e-2_seed=1")];
    std::fs::remove_file(folder.join("lr=1e-3_seed=0/summary.json")).expect("there");
    std::fs::remove_file(folder.join("lr=1e-2_seed=1/summary.json")).expect("there");
    std::fs::remove_dir_all(folder.join("lr=1e-2_seed=1/checkpoint")).expect("there");
    let untouched =
        std::fs::metadata(folder.join("lr=1e-3_seed=1/summary.json")).expect("there").modified().expect("a time");
    let more = place.succeed(
        &format!("{sweep} --columns test.ap,stages.gradient.busy_s,device").replace("1e-3,1e-2", "1e-3,1e-2,1e-4"),
    );
    assert!(more.err.contains("6 runs, 2 of them finished before"), "{}", more.err);
    assert_eq!([hash("lr=1e-3_seed=0"), hash("lr=1e-2_seed=1")], before);
    assert_eq!(
        std::fs::metadata(folder.join("lr=1e-3_seed=1/summary.json")).expect("there").modified().expect("a time"),
        untouched
    );
    let lines: Vec<&str> = more.out.lines().collect();
    assert_eq!(
        (lines[0], lines.len()),
        ("| train.lr | test.ap | stages.gradient.busy_s | device |", 5),
        "{}",
        more.out
    );
    assert!(lines[4].starts_with("| 1e-4 | 0.") && lines[4].ends_with(" | cpu |"), "{}", more.out);

    place.refuse(
        &format!("{sweep} --set train.batch_size=50"),
        &["lr=1e-3_seed=0 holds a run with another configuration", "--out"],
    );
    place.refuse("sweep run.toml --set train.lr=1e-3,oops", &["train.lr"]);
    place.refuse("sweep run.toml --set train.lr=1e-3,1e-3", &["names 1e-3 twice"]);
    place.refuse("sweep nowhere.toml --set train.lr=1e-3", &["nowhere.toml"]);
}

#[test]
fn a_run_that_fails_stops_nothing_and_is_named() {
    let place = workspace();
    let said = place.run("sweep run.toml --set train.lr=1e30,1e-3 --out grid --quiet");
    assert_eq!(said.code, 1, "{}{}", said.out, said.err);
    let lines: Vec<&str> = said.out.lines().collect();
    assert!(lines[0].ends_with(" | runs |") && lines[2].starts_with("| 1e30 | - | - |"), "{}", said.out);
    assert!(lines[2].ends_with("| 0 of 1, 1 failed |") && lines[3].ends_with("| 1 of 1 |"), "{}", said.out);
    assert!(
        lines[5].starts_with("- failed: lr=1e30_seed=0: the ") && lines[5].contains("is not finite"),
        "{}",
        said.out
    );
    let error = said.err.lines().last().expect("an error");
    assert!(error.starts_with("error: 1 of 2 runs failed, the first of them lr=1e30_seed=0"), "{}", said.err);
    assert_eq!(summary(&place, "grid/lr=1e-3_seed=0")["ranks"], 1);
    place.refuse("sweep run.toml --set train.lr=1e30,1e-3 --out grid --ranks 2", &["holds a run with 1 ranks"]);
}

#[test]
fn ranks_show_what_crossed() {
    let place = workspace();
    let said = place.succeed("sweep run.toml --set partition.strategy=hash,fennel --ranks 2 --out grid --quiet");
    let head = said.out.lines().next().expect("a head");
    for column in ["comm.bytes_total", "comm.bytes_gradient", "comm.rows_fetched"] {
        assert!(head.contains(column), "{head}");
    }
    assert!(!head.contains("replay.events"), "{head}");
    assert_eq!(summary(&place, "grid/strategy=hash_seed=0")["ranks"], 2);
}

/// SIGTERM to the sweep has its runs checkpoint; the same command goes on.
#[test]
fn a_sweep_that_is_stopped_goes_on() {
    let place = workspace();
    let longer = "--set train.epochs=9 --set train.patience=0 --set train.checkpoint_every=7 --quiet";
    let sweep = format!("sweep run.toml --set train.lr=1e-3,1e-2 --out grid {longer}");
    let mut child = place.command(&sweep).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("starts");
    let (checkpoint, started) = (place.path("grid/lr=1e-3_seed=0/checkpoint"), Instant::now());
    while !checkpoint.exists() {
        assert!(started.elapsed() < Duration::from_secs(60), "nothing happens");
        assert!(child.try_wait().expect("a child").is_none(), "the sweep ended before it was stopped");
        std::thread::sleep(Duration::from_millis(5));
    }
    let killed = std::process::Command::new("kill").arg(child.id().to_string()).status().expect("kill");
    assert!(killed.success());
    let output = child.wait_with_output().expect("a child");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("goes on from grid"), "{said}");
    assert!(!place.path("grid/lr=1e-3_seed=0/summary.json").exists() && !place.path("grid/lr=1e-2_seed=0").exists());
    place.succeed(&sweep);
    place.succeed(&format!("train run.toml --set train.lr=1e-3 --out whole {longer}"));
    let [a, b] = ["grid/lr=1e-3_seed=0", "whole"].map(|run| summary(&place, run)["sample_hash"].clone());
    assert_eq!(a, b);
    assert_eq!(summary(&place, "grid/lr=1e-2_seed=0")["epochs"].as_array().map(Vec::len), Some(9));
}

#[test]
fn a_run_says_how_far_it_is_from_its_baseline() {
    let place = workspace();
    place.succeed("train run.toml --quiet --out exact");
    let said = place.succeed("train run.toml --quiet --out same --baseline exact");
    assert!(said.out.contains(" from exact (tidemill+"), "{}", said.out);
    assert!(
        said.out.contains("test AP") && said.out.contains("+0.0000") && said.out.contains("seconds an epoch"),
        "{}",
        said.out
    );
    let distance = &summary(&place, "same")["distance"];
    assert_eq!(
        (&distance["val_ap"], &distance["test_ap"], &distance["loss"]),
        (&Value::from(0.0), &Value::from(0.0), &Value::from(0.0))
    );
    assert!(distance["seconds"].as_f64() > Some(0.0) && distance["bytes_total"].is_null(), "{distance}");
    assert!(summary(&place, "exact").get("distance").is_none());

    place.succeed("train run.toml --quiet --out two --ranks 2");
    place.succeed("train run.toml --quiet --out far --ranks 2 --set train.lr=1e-2 --baseline two");
    let (far, two) = (summary(&place, "far"), summary(&place, "two"));
    let ap = |summary: &Value| summary["test"]["ap"].as_f64().expect("an AP");
    assert_eq!(far["distance"]["test_ap"].as_f64(), Some(ap(&far) - ap(&two)));
    let bytes = |summary: &Value| summary["comm"]["bytes_total"].as_f64().expect("bytes");
    assert_eq!(far["distance"]["bytes_total"].as_f64(), Some(bytes(&far) / bytes(&two)));

    place.refuse("train run.toml --quiet --out no --baseline nowhere", &["nowhere"]);
    std::fs::create_dir(place.path("half")).expect("made");
    std::fs::copy(place.path("exact/config.toml"), place.path("half/config.toml")).expect("copied");
    place.refuse("train run.toml --quiet --out no --baseline half", &["half", "summary"]);
    place.refuse(
        "train run.toml --quiet --out no --baseline exact --set split.train=0.6",
        &["another split", "--baseline"],
    );
    place.succeed("generate others --events 1500 --nodes 100 --seed 4 --quiet");
    for ranks in [1, 2] {
        let other = format!("train run.toml --quiet --out no --baseline exact --set data.path=others --ranks {ranks}");
        place.refuse(&other, &["another dataset", "--baseline"]);
    }
    assert!(!place.path("no").exists(), "a refused run leaves nothing");
}
