//! `eval` through the binary: other protocols for a finished run, ranks, node classification; what a missing file is told.

use crate::command::{Said, Workspace, project};

/// The committed stream with labels, a small model trained on it, and its run folder `run`.
fn trained() -> Workspace {
    let place = Workspace::new();
    let rows = std::fs::read_to_string(project().join("tests/golden/bipartite.csv")).expect("the committed stream");
    let labelled =
        |(i, row): (usize, &str)| if i == 0 { format!("{row},state_label") } else { format!("{row},{}", i % 2) };
    let text: Vec<String> = rows.lines().enumerate().map(labelled).collect();
    place.write("events.csv", &text.join("\n"));
    let model = "[model]\nmemory_dim = 8\ntime_dim = 8\nembedding_dim = 8\n";
    place.write(
        "small.toml",
        &format!(
            "preset = \"dyglib-2023\"\n[data]\npath = \"events.csv\"\n{model}[train]\nepochs = 2\nbatch_size = 20\n"
        ),
    );
    place.succeed("train small.toml --quiet --out run --set threads=1");
    place
}

fn figures(said: &Said, row: &str) -> Vec<f64> {
    let line =
        said.out.lines().find(|line| line.trim_start().starts_with(row)).unwrap_or_else(|| panic!("{}", said.out));
    line.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

#[test]
fn a_run_is_scored_by_other_protocols() {
    let place = trained();
    let random = figures(&place.succeed("eval run --quiet"), "test ");
    assert_eq!(random.len(), 4);
    for kind in ["historical", "inductive"] {
        let said = place.succeed(&format!("eval run --quiet --set eval.negatives={kind}"));
        assert!(said.out.contains(&format!("+eval.negatives={kind}")), "named: {}", said.out);
        assert_ne!(figures(&said, "test "), random, "{kind}");
        assert_eq!(figures(&said, "test new").len(), 4, "new nodes have a pass of their own");
    }
    let said = place.succeed("eval run --quiet --set eval.negatives=tgb --set eval.mrr_events=9");
    let ranks = figures(&said, "test ");
    assert!(said.out.contains("MRR") && ranks.len() == 3 && ranks[0] > 0.0 && ranks[2] == 9.0, "{}", said.out);
    place.refuse("eval run --set model.layers=2", &["model.layers", "only eval.*"]);
    place.refuse("eval run --set eval.negatives=hard", &["eval.negatives", "historical"]);
}

#[test]
fn the_summary_tells_parts_and_node_classes() {
    let place = trained();
    let summary = || -> serde_json::Value {
        serde_json::from_str(&std::fs::read_to_string(place.path("run/summary.json")).expect("there")).expect("JSON")
    };
    let before = summary();
    for part in ["by_time", "by_degree"] {
        let parts = before["test"]["breakdown"][part].as_array().expect("parts");
        assert_eq!(parts.iter().map(|part| part["events"].as_u64().unwrap()).sum::<u64>(), 54, "{part}");
        assert!(parts.iter().all(|part| part["ap"].is_f64() && part["from"].is_f64()), "{parts:?}");
    }
    assert!(before.get("node_classification").is_none());
    let said = place.succeed("eval run --quiet --task node-classification --seeds 2");
    assert!(said.out.contains("of 54 test events") && figures(&said, "mean").len() == 2, "{}", said.out);
    let mut after = summary();
    let classes = after.as_object_mut().unwrap().remove("node_classification").expect("written");
    assert_eq!(classes["test_auc"].as_array().map(Vec::len), Some(2));
    assert_eq!(after, before, "nothing else changed");
}

#[test]
fn a_missing_file_says_where_to_get_it() {
    let place = Workspace::new();
    place.write("absent.toml", "[data]\npath = \"reddit.csv\"\n");
    place.refuse("train absent.toml", &["reddit.csv", "no such file", "http://snap.stanford.edu/jodie/reddit.csv"]);
    place.refuse("inspect data/wikipedia.csv.gz", &["http://snap.stanford.edu/jodie/wikipedia.csv"]);
    place.refuse("inspect mine.csv", &["mine.csv", "give the path of a file that exists"]);
}
