//! Facts about real streams, checked where the files are present: the folder is `TIDEMILL_DATA`, or `shared/data` beside
//! the workspace.

use std::path::{Path, PathBuf};
use tidemill_data::{
    CandidateRule, DataConfig, EventId, EventStream, Key, NegativeSampler, NodeId, Purpose, Scored, Split, SplitConfig,
    Statistics, TimeUnit, Timestamp, load, write_csv,
};

/// The file, if it is present; else a line that says so.
fn real(name: &str) -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data");
    let folder = std::env::var_os("TIDEMILL_DATA").map_or(beside, PathBuf::from);
    let path = folder.join(name);
    if !path.exists() {
        eprintln!("skipped: {} is absent (set TIDEMILL_DATA)", path.display());
        return None;
    }
    Some(path)
}

fn read(path: &Path) -> EventStream {
    load(&DataConfig::of(path), &mut |_| {}).unwrap()
}

fn sizes(split: &Split) -> [usize; 3] {
    [split.train.len(), split.val.len(), split.test.len()]
}

struct Facts {
    file: &'static str,
    events: u64,
    nodes: u64,
    distinct_times: Option<u64>,
    pairs: u64,
    duplicates: u64,
    self_loops: u64,
    split: [usize; 3],
}

#[test]
fn published_facts() {
    let facts = [
        Facts {
            file: "wikipedia.csv.gz",
            events: 157_474,
            nodes: 9_227,
            distinct_times: Some(152_757),
            pairs: 18_257,
            duplicates: 0,
            self_loops: 0,
            split: [110_232, 23_621, 23_621],
        },
        Facts {
            file: "sx-mathoverflow.csv.gz",
            events: 506_550,
            nodes: 24_818,
            distinct_times: None,
            pairs: 239_978,
            duplicates: 27,
            self_loops: 116_109,
            split: [354_585, 75_982, 75_983],
        },
        Facts {
            file: "collegemsg.csv.gz",
            events: 59_835,
            nodes: 1_899,
            distinct_times: Some(58_911),
            pairs: 20_296,
            duplicates: 37,
            self_loops: 0,
            split: [41_884, 8_975, 8_976],
        },
        Facts {
            file: "bitcoin-otc.csv.gz",
            events: 35_592,
            nodes: 5_881,
            distinct_times: Some(35_592),
            pairs: 35_592,
            duplicates: 0,
            self_loops: 0,
            split: [24_914, 5_339, 5_339],
        },
        Facts {
            file: "bitcoin-alpha.csv.gz",
            events: 24_186,
            nodes: 3_783,
            distinct_times: Some(1_647),
            pairs: 24_186,
            duplicates: 0,
            self_loops: 0,
            split: [16_940, 3_628, 3_618],
        },
    ];
    for wanted in facts {
        let Some(path) = real(wanted.file) else { continue };
        let stream = read(&path);
        let s = Statistics::of(&stream);
        assert_eq!((s.events, s.nodes), (wanted.events, wanted.nodes), "{}", wanted.file);
        assert_eq!((s.distinct_pairs, s.self_loops), (wanted.pairs, wanted.self_loops), "{}", wanted.file);
        assert_eq!(s.duplicates, wanted.duplicates, "{}", wanted.file);
        assert!(wanted.distinct_times.is_none_or(|t| t == s.distinct_times), "{}", wanted.file);
        assert_eq!(s.out_of_order, 0, "{}", wanted.file);
        let split = Split::new(&stream, &SplitConfig::default()).unwrap();
        assert_eq!(sizes(&split), wanted.split, "{}", wanted.file);
    }
}

#[test]
fn wikipedia_labels_and_ids() {
    let Some(path) = real("wikipedia.csv.gz") else { return };
    let stream = read(&path);
    let split = Split::new(&stream, &SplitConfig::default()).unwrap();
    let positive =
        |events: &mut dyn Iterator<Item = u32>| events.filter(|&e| stream.label(EventId(e)) == Some(1)).count();
    let train = positive(&mut split.train.iter().map(|e| e.0));
    assert_eq!((train, positive(&mut split.val.clone()), positive(&mut split.test.clone())), (156, 17, 44));
    assert_eq!((stream.meta().bipartite, stream.meta().first_destination), (true, 8_227));
    // the raw ids are dense already
    assert_eq!(stream.ids().find_entry("dst:7"), Ok(NodeId(8_234)));
    let config = SplitConfig { new_node_share: 0.1, ..SplitConfig::default() };
    let masked = Split::new(&stream, &config).unwrap();
    assert!(masked.masked > 1_000 && masked.train.len() + masked.masked == 110_232, "{}", masked.masked);
}

#[test]
fn bitcoin_otc_in_seconds_milliseconds_and_microseconds_is_one_stream() {
    let Some(path) = real("bitcoin-otc.csv.gz") else { return };
    let stream = read(&path);
    assert_eq!((stream.tick().per_second, stream.time(EventId(0))), (100_000, Timestamp(128_924_191_172_836)));
    let folder = tempfile::tempdir().unwrap();
    for (unit, tick) in [(TimeUnit::Seconds, "s"), (TimeUnit::Milliseconds, "ms"), (TimeUnit::Microseconds, "us")] {
        let copy = folder.path().join(format!("{tick}.csv"));
        write_csv(&stream, &copy, unit).unwrap();
        let config = DataConfig { tick: Some(tick.into()), bipartite: Some(false), ..DataConfig::of(&copy) };
        check_copy(&stream, &load(&config, &mut |_| {}).unwrap());
    }
}

fn check_copy(stream: &EventStream, copy: &EventStream) {
    assert_eq!(copy.hash(), stream.hash());
    for e in (1..stream.len() as u32).map(EventId) {
        let gap = |s: &EventStream| s.tick().seconds(s.time(e).0 - s.time(EventId(0)).0).to_bits();
        assert_eq!(gap(copy), gap(stream));
        assert_eq!(copy.tick().nanoseconds(copy.time(e)), stream.tick().nanoseconds(stream.time(e)));
    }
    let [a, b] = [stream, copy].map(|s| Split::new(s, &SplitConfig::default()).unwrap());
    assert_eq!((&a.train, &a.val, &a.test), (&b.train, &b.val, &b.test));
    let key = Key::new(1, Purpose::EvalNegative);
    let draw = |s: &EventStream, split: &Split| {
        let rule = CandidateRule::TrainDestinations;
        let sampler = NegativeSampler::new(s, split, &rule, Scored::Test, true, key).unwrap();
        split.test.clone().map(|e| sampler.draw(0, EventId(e), s.destination(EventId(e)), 0)).collect::<Vec<_>>()
    };
    assert_eq!(draw(stream, &a), draw(copy, &b));
}

#[test]
fn real_files_survive_arrow() {
    for name in ["wikipedia.csv.gz", "bitcoin-alpha.csv.gz"] {
        let Some(path) = real(name) else { continue };
        let stream = read(&path);
        let folder = tempfile::tempdir().unwrap();
        let arrow = folder.path().join("x.arrow");
        stream.write(&arrow).unwrap();
        let opened = read(&arrow);
        assert!(opened.hash() == stream.hash() && opened.verify());
        assert_eq!(Statistics::of(&opened), Statistics::of(&stream));
    }
}
