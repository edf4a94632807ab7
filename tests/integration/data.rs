//! `generate`, `inspect` and `convert` through the binary.

use crate::command::Workspace;
use tidemill_data::id::EventId;
use tidemill_data::stream::EventStream;

#[test]
fn a_generated_stream_is_marked_and_repeatable() {
    let place = Workspace::new();
    let options = "--events 3000 --nodes 300 --features 4 --seed 5";
    let said = place.succeed(&format!("generate a.arrow {options}"));
    assert!(said.out.contains("synthetic, 3000 events") && said.out.contains("4 edge features"), "{}", said.out);
    place.succeed(&format!("generate b.arrow {options}"));
    place.succeed("generate c.arrow --events 3000 --nodes 300 --features 4 --seed 6");
    let open = |name| EventStream::open(&place.path(name)).expect("an event stream");
    let (a, b, c) = (open("a.arrow"), open("b.arrow"), open("c.arrow"));
    assert!(a.meta().synthetic);
    assert_eq!((a.len(), a.feature_dim()), (3000, 4));
    assert_eq!(a.hash(), b.hash());
    assert_ne!(a.hash(), c.hash());
    place.refuse("generate a.arrow", &["a.arrow exists already"]);
}

#[test]
fn inspect_tells_people_and_programs() {
    let place = Workspace::new();
    place.write("trips.csv", "src,dst,timestamp\n10,20,5\n20,10,3\n10,20,5\n30,30,9\n");
    let said = place.succeed("inspect trips.csv");
    assert!(said.out.contains('4') && said.out.contains("self-loops"), "{}", said.out);
    let said = place.succeed("inspect trips.csv --json");
    let value: serde_json::Value = serde_json::from_str(&said.out).expect("JSON on standard output");
    assert_eq!(value["events"], 4, "{value}");
    assert_eq!(value["nodes"], 3, "{value}");
    place.refuse("inspect nowhere.csv", &["nowhere.csv"]);
}

#[test]
fn a_bad_file_is_refused_with_its_row() {
    let place = Workspace::new();
    place.write("bad.csv", "src,dst,timestamp\n1,2,3\n1,2,soon\n");
    place.refuse("inspect bad.csv", &["bad.csv", "row 2", "timestamp"]);
    place.refuse("convert bad.csv out.arrow", &["row 2"]);
    assert!(!place.path("out.arrow").exists());
}

#[test]
fn convert_keeps_every_event_and_draws_features_on_request() {
    let place = Workspace::new();
    place.write("trips.csv", "src,dst,timestamp\n10,20,5.25\n20,10,3\n10,20,5.25\n30,30,9\n");
    let said = place.succeed("convert trips.csv plain.arrow");
    assert!(said.out.contains("4 events, 3 nodes, 0 edge features"), "{}", said.out);
    let plain = EventStream::open(&place.path("plain.arrow")).expect("an event stream");
    assert_eq!((plain.len(), plain.nodes()), (4, 3));
    assert!(!plain.meta().synthetic);
    assert_eq!(plain.row(EventId(0)), 1, "the first event is the file's second row");

    place.succeed("convert trips.csv one.arrow --random-features 3 --seed 1");
    place.succeed("convert plain.arrow same.arrow --random-features 3 --seed 1");
    place.succeed("convert trips.csv two.arrow --random-features 3 --seed 2");
    let features = |name| {
        let stream = EventStream::open(&place.path(name)).expect("an event stream");
        (0..4).flat_map(|event| stream.features(EventId(event)).to_vec()).collect::<Vec<f32>>()
    };
    assert_eq!(features("one.arrow").len(), 12);
    assert_eq!(features("one.arrow"), features("same.arrow"), "from csv or from the stream");
    assert_ne!(features("one.arrow"), features("two.arrow"));
    place.refuse("convert trips.csv plain.arrow", &["plain.arrow exists already"]);
}

#[test]
fn check_lists_faults_and_exits_2() {
    let place = Workspace::new();
    place.write("good.csv", "src,dst,timestamp\n1,2,3\n1,2,3\n");
    let said = place.succeed("check good.csv");
    assert!(said.out.contains("warning: good.csv, row 2") && said.out.contains("0 errors"), "{}", said.out);
    place.write("bad.csv", "src,dst,timestamp\n1,2,3\n,2,4\n1,2,soon\n");
    let said = place.run("check bad.csv --json");
    assert_eq!(said.code, 2, "{}", said.err);
    let value: serde_json::Value = serde_json::from_str(&said.out).expect("JSON on standard output");
    assert_eq!((&value["events"], &value["errors"][0]["count"]), (&1.into(), &1.into()), "{value}");
    // `train` says the same
    place.write("run.toml", "[data]\npath = \"bad.csv\"\n");
    let sentence = value["errors"][0]["places"][0]["sentence"].as_str().expect("a sentence");
    let trained = place.run("train run.toml");
    let words = sentence.split_once(", row").expect("a row").1;
    assert!(trained.code == 2 && trained.err.contains(words), "{}\n{sentence}", trained.err);
    place.refuse("check nowhere.csv", &["nowhere.csv", "no such file"]);
    let folder = place.run("check .");
    assert!(folder.code == 2 && folder.out.contains("this is a folder"), "{}{}", folder.out, folder.err);
}

#[test]
fn columns_are_mapped_on_the_command_line() {
    let place = Workspace::new();
    place.write("orders.csv", "when;shop;buyer\n2024-01-31T12:00:00Z;x;ann\n2024-01-31T12:00:01.5Z;y;bob\n");
    let sets = "--set data.columns.src=buyer --set data.columns.dst=shop --set data.columns.time=when";
    let said = place.succeed(&format!("convert orders.csv orders.arrow {sets}"));
    assert!(said.out.contains("2 events, 4 nodes"), "{}", said.out);
    place.succeed(&format!("check orders.csv {sets}"));
    let said = place.succeed(&format!("inspect orders.csv --html page.html {sets}"));
    assert!(said.out.contains("1.5") || said.out.contains("10^-1"), "{}", said.out);
    let page = std::fs::read_to_string(place.path("page.html")).expect("a page");
    assert_eq!(page.matches("<svg").count(), 4);
    place.refuse("inspect orders.csv --set train.lr=1", &["train.lr", "set keys of [data] only"]);
    place.refuse("inspect orders.arrow --set data.tick=ms", &["data.tick", "drop the key"]);
}
