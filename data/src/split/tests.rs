use super::*;
use crate::dataset::tests::{file, read};
use crate::generate::{GenerateConfig, generate};
use proptest::prelude::*;

fn at_times(times: &[i64]) -> EventStream {
    let rows: String = times.iter().enumerate().map(|(i, t)| format!("{},{},{t}\n", i % 3, 10 + i % 2)).collect();
    read(format!("src,dst,timestamp\n{rows}").as_bytes(), |_| {}).unwrap()
}

fn sizes(split: &Split) -> (usize, usize, usize) {
    (split.train.len(), split.val.len(), split.test.len())
}

/// The definition, in exact fractions of a thousandth: linear interpolation between the events around `q (E - 1)`.
fn until_quantile(times: &[i64], q: u64) -> usize {
    let scaled = q * (times.len() as u64 - 1);
    let (lower, part) = ((scaled / 1000) as usize, (scaled % 1000) as i64);
    let upper = times[(lower + 1).min(times.len() - 1)];
    let quantile = times[lower] * 1000 + part * (upper - times[lower]);
    times.iter().filter(|&&t| t * 1000 <= quantile).count()
}

#[test]
fn ties_stay_together_by_quantile_and_not_by_count() {
    let stream = at_times(&[0, 1, 2, 3, 4, 5, 6, 6, 6, 9]);
    let split = Split::new(&stream, &SplitConfig::default()).unwrap();
    // q70 = t[6.3] = 6: all three events at 6 are training events; q85 = t[7.65] = 6 too
    assert_eq!(sizes(&split), (9, 0, 1));
    assert_eq!((split.train_end, split.masked), (EventId(9), 0));
    let count = Split::new(&stream, &SplitConfig { by: SplitBy::Count, ..Default::default() }).unwrap();
    assert_eq!(sizes(&count), (7, 2, 1));
}

#[test]
fn shares_are_decimal() {
    let stream = at_times(&(0..101).collect::<Vec<_>>());
    // 0.29 * 100 is 28.999999999999996 in floats: the quantile is the time 29 all the same
    let split = Split::new(&stream, &SplitConfig { train: 0.29, val: 0.28, ..Default::default() }).unwrap();
    assert_eq!(sizes(&split), (30, 28, 43));
    let all = Split::new(&stream, &SplitConfig { train: 1.0, val: 0.0, ..Default::default() }).unwrap();
    assert_eq!(sizes(&all), (101, 0, 0));
}

#[test]
fn impossible_shares_are_refused() {
    let cases = [
        (SplitConfig { train: 0.0, ..Default::default() }, "split.train"),
        (SplitConfig { train: f64::NAN, ..Default::default() }, "split.train"),
        (SplitConfig { train: 0.9, val: 0.2, ..Default::default() }, "split.val"),
        (SplitConfig { new_node_share: 1.0, ..Default::default() }, "split.new_node_share"),
        (
            SplitConfig { new_node_share: 0.1, new_node_file: Some("x".into()), ..Default::default() },
            "split.new_node_share",
        ),
    ];
    for (config, key) in cases {
        assert!(config.validate().unwrap_err().to_string().contains(key));
    }
    let error = Split::new(&at_times(&[0, 1, 2, 3]), &SplitConfig { new_node_share: 0.99, ..Default::default() });
    assert!(error.unwrap_err().to_string().contains("lower the share"));
}

#[test]
fn new_nodes_have_no_training_event() {
    let stream = generate(&GenerateConfig { events: Some(8_000), ..Default::default() }).unwrap();
    let config = SplitConfig { new_node_share: 0.1, new_node_seed: 4, ..Default::default() };
    let split = Split::new(&stream, &config).unwrap();
    let plain = Split::new(&stream, &SplitConfig::default()).unwrap();
    assert_eq!((split.val.clone(), split.test.clone()), (plain.val.clone(), plain.test.clone()));
    assert_eq!(split.train.len() + split.masked, plain.train.len());
    assert!(split.masked > 0 && split.train.is_sorted());
    let mut trained = NodeSet::new(stream.nodes());
    for &e in split.train.iter() {
        trained.insert(stream.source(e));
        trained.insert(stream.destination(e));
    }
    assert!((0..stream.nodes()).map(NodeId).all(|n| trained.contains(n) != split.new_nodes.contains(n)));
    // nodes that the mask made new: they are in the plain training split and occur after it
    let held: Vec<NodeId> = split.new_nodes.iter().filter(|&n| !plain.new_nodes.contains(n)).collect();
    let occurs = |n: NodeId, from: u32| {
        (from..stream.len() as u32).map(EventId).any(|e| stream.source(e) == n || stream.destination(e) == n)
    };
    assert!(!held.is_empty() && held.iter().filter(|&&n| occurs(n, plain.train_end.0)).count() > 0);
    let again = Split::new(&stream, &config).unwrap();
    assert_eq!((again.train, again.new_nodes), (split.train.clone(), split.new_nodes));
    let other = Split::new(&stream, &SplitConfig { new_node_seed: 5, ..config }).unwrap();
    assert_ne!(other.train, split.train);
}

#[test]
fn held_out_nodes_from_a_file() {
    let stream = at_times(&(0..20).collect::<Vec<_>>());
    let (_folder, path) = file("new.txt", b"# held out\n0\n\ndst:11\n");
    let config = SplitConfig { new_node_file: Some(path), ..Default::default() };
    let split = Split::new(&stream, &config).unwrap();
    // events i with i % 3 == 0 or i % 2 == 1 are masked
    let left: Vec<u32> = split.train.iter().map(|e| e.0).collect();
    assert_eq!(left, [2, 4, 8, 10]);
    assert_eq!(split.new_nodes.len(), 2);
    let (_folder, path) = file("new.txt", b"0\n99\n");
    let error = Split::new(&stream, &SplitConfig { new_node_file: Some(path), ..Default::default() }).unwrap_err();
    assert!(error.to_string().contains("row 2") && error.to_string().contains("`99`"), "{error}");
}

proptest! {
    #[test]
    fn quantiles_by_definition(mut times in proptest::collection::vec(0i64..40, 1..60), train in 1u64..1000, val in 0u64..1000) {
        prop_assume!(train + val <= 1000);
        times.sort_unstable();
        let config = SplitConfig { train: train as f64 / 1000.0, val: val as f64 / 1000.0, ..Default::default() };
        let split = Split::new(&at_times(&times), &config).unwrap();
        let (a, b) = (until_quantile(&times, train), until_quantile(&times, train + val));
        prop_assert_eq!(sizes(&split), (a, b - a, times.len() - b));
        let config = SplitConfig { by: SplitBy::Count, ..config };
        let split = Split::new(&at_times(&times), &config).unwrap();
        let count = |q: u64| (q * times.len() as u64).div_ceil(1000) as usize;
        prop_assert_eq!(sizes(&split), (count(train), count(train + val) - count(train), times.len() - count(train + val)));
    }
}
