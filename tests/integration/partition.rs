//! `tidemill partition`: a table for people, one JSON object for programs, a page for the eye.

use crate::command::Workspace;

fn place() -> Workspace {
    let place = Workspace::new();
    place.succeed("generate events.arrow --events 4000 --nodes 500 --seed 3 --quiet");
    let text = "[data]\npath = \"events.arrow\"\n[train]\nbatch_size = 100\n[partition]\nwindow_events = 950\n";
    place.write("c.toml", text);
    place
}

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).expect("one JSON object")
}

#[test]
fn every_strategy_is_measured_window_by_window() {
    let place = place();
    let report = json(&place.succeed("partition c.toml --ranks 3 --json").out);
    assert_eq!((report["ranks"].as_u64(), report["strategy"].as_str()), (Some(3), Some("fennel")));
    assert_eq!((report["events"].as_u64(), report["window_events"].as_u64()), (Some(2800), Some(1000)));
    let strategies = report["strategies"].as_array().expect("a list");
    let names: Vec<_> = strategies.iter().filter_map(|s| s["strategy"].as_str()).collect();
    assert_eq!(names, ["hash", "range", "degree", "fennel", "temporal"]);
    for strategy in strategies {
        let windows = strategy["windows"].as_array().expect("a list");
        let events: u64 = windows.iter().filter_map(|w| w["events"].as_u64()).sum();
        let load = windows.iter().flat_map(|w| w["load"].as_array().expect("a list"));
        assert_eq!((windows.len(), events, load.filter_map(|l| l.as_u64()).sum()), (3, 2800, 2800));
        let rows = |name: &str| strategy["rows"][name].as_f64().expect("a number");
        assert!(rows("versioned") <= rows("fetch_all") && rows("both") <= rows("owner_computes"), "{strategy}");
        assert!(rows("both") > 0.0 && rows("embeddings") > 0.0);
    }
    let cut = |strategy: usize| strategies[strategy]["cut_share"].as_f64().expect("a number");
    assert!(cut(3) < 0.7 * cut(0), "fennel cuts {}, hash {}", cut(3), cut(0));
}

#[test]
fn a_rank_alone_needs_nothing() {
    let report = json(&place().succeed("partition c.toml --ranks 1 --json").out);
    for strategy in report["strategies"].as_array().expect("a list") {
        assert_eq!((strategy["cut_share"].as_f64(), strategy["balance"].as_f64()), (Some(0.0), Some(1.0)));
        assert!(strategy["rows"].as_object().expect("a table").values().all(|rows| rows.as_f64() == Some(0.0)));
    }
}

#[test]
fn tables_and_a_page() {
    let place = place();
    let said = place.succeed("partition c.toml --ranks 2 --set partition.strategy=temporal --html page.html");
    assert!(said.out.contains("*temporal") && said.out.contains("fetch-all"), "{}", said.out);
    let page = std::fs::read_to_string(place.path("page.html")).expect("the page");
    assert!(page.starts_with("<!DOCTYPE html>") && page.trim_end().ends_with("</html>"));
    // five strategies, three windows, two ranks
    assert_eq!(page.matches("<title>window").count(), 30);
    assert!(!page.contains("http"), "nothing is loaded from elsewhere");
    place.refuse("partition c.toml --ranks 2 --html page.html", &["page.html exists already"]);
}

#[test]
fn bad_input_is_refused() {
    let place = place();
    for (arguments, words) in [
        ("partition c.toml --ranks 2 --set partition.window_events=0", "partition.window_events"),
        ("partition c.toml --ranks 2 --set partition.rebalance_above=0.5", "partition.rebalance_above"),
        ("partition nowhere.toml --ranks 2", "nowhere.toml"),
        ("partition c.toml --ranks 2 --set data.path=nowhere.csv", "nowhere.csv"),
    ] {
        place.refuse(arguments, &[words]);
    }
    for arguments in ["partition c.toml", "partition c.toml --ranks 0", "partition c.toml --ranks many"] {
        assert_eq!(place.run(arguments).code, 2, "{arguments}");
    }
}
