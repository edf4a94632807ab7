//! `tidemill bench`: tables for people, one JSON object for programs.

use crate::command::Workspace;

fn number(json: &serde_json::Value, path: &str) -> f64 {
    json.pointer(path).and_then(serde_json::Value::as_f64).unwrap_or_else(|| panic!("{path} in {json}"))
}

fn place() -> Workspace {
    let place = Workspace::new();
    place.succeed("generate events.arrow --events 3000 --nodes 300 --features 4 --quiet");
    place.write("c.toml", "threads = 1\n[data]\npath = \"events.arrow\"\n[train]\nbatch_size = 100\n");
    place
}

#[test]
fn the_sampler_is_measured_on_one_core_and_on_all() {
    let place = place();
    let said = place.succeed("bench sampler c.toml --set sampler.strategy=uniform --json");
    let json: serde_json::Value = serde_json::from_str(&said.out).expect("one object");
    assert_eq!((json["events"].as_u64(), json["batches"].as_u64()), (Some(3000), Some(21)));
    for rate in ["/one_core", "/all_cores"] {
        // three ends an event, some of them at the same time
        let roots = number(&json, &format!("{rate}/roots"));
        assert!((2100.0..=6300.0).contains(&roots), "{roots}");
        let per_second = number(&json, &format!("{rate}/roots_per_s")) * number(&json, &format!("{rate}/seconds"));
        assert!((per_second / roots - 1.0).abs() < 1e-6);
    }
    let said = place.succeed("bench sampler c.toml");
    assert!(said.out.contains("roots/s/core") && said.out.contains("T-CSR"), "{}", said.out);
}

#[test]
fn the_step_is_measured_by_stage_and_against_the_machine() {
    let place = place();
    let said = place.succeed("bench step c.toml --json");
    let json: serde_json::Value = serde_json::from_str(&said.out).expect("one object");
    assert!((2.0..=21.0).contains(&number(&json, "/batches")));
    assert_eq!((number(&json, "/shapes/fanout/0"), json["stages"].as_array().map(Vec::len)), (10.0, Some(4)));
    assert!(number(&json, "/shapes/events") <= 100.0 && number(&json, "/shapes/roots/0") <= 300.0);
    assert!(number(&json, "/gflop_per_s") > 0.0 && number(&json, "/gemm_share") < 1.2);
    assert!(!place.path("runs").exists(), "a measurement leaves no run folder");
    place.refuse("bench step c.toml --set train.batch_size=0", &["train.batch_size"]);
}
