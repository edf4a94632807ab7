use super::*;
use crate::dataset::tests::{file, read};
use crate::philox::Purpose;
use crate::split::SplitConfig;
use proptest::prelude::*;

/// Twenty events in time order; sources 0..3, destinations as given.
fn stream(destinations: &[u32]) -> EventStream {
    let rows: String = destinations.iter().enumerate().map(|(t, d)| format!("{},{d},{t}\n", t % 3)).collect();
    read(format!("src,dst,timestamp\n{rows}").as_bytes(), |c| {
        c.bipartite = Some(true);
    })
    .unwrap()
}

/// Events of these sources, destinations and times, sorted by time.
pub(super) fn events_of(rows: &[(u32, u32, i64)]) -> EventStream {
    let rows: String = rows.iter().map(|(s, d, t)| format!("{s},{d},{t}\n")).collect();
    read(format!("src,dst,timestamp\n{rows}").as_bytes(), |c| {
        c.bipartite = Some(true);
    })
    .unwrap()
}

#[test]
fn sampled_events_are_distinct_and_in_order() {
    let events: Vec<EventId> = (100..200).map(EventId).collect();
    let key = Key::new(1, Purpose::EvalNegative);
    let drawn = sample_events(&events, 30, key);
    assert!(drawn.len() == 30 && drawn.is_sorted() && drawn.windows(2).all(|w| w[0] != w[1]));
    assert_eq!(drawn, sample_events(&events, 30, key));
    assert_ne!(drawn, sample_events(&events, 30, key.narrow([1, 0, 0, 0])));
    assert_eq!(sample_events(&events, 300, key), events);
}

fn sampler(stream: &EventStream, rule: &CandidateRule, scored: Scored, avoid: bool, seed: u64) -> NegativeSampler {
    let split = Split::new(stream, &SplitConfig::default()).unwrap();
    NegativeSampler::new(stream, &split, rule, scored, avoid, Key::new(seed, Purpose::TrainNegative)).unwrap()
}

fn raw(stream: &EventStream, sampler: &NegativeSampler) -> Vec<String> {
    sampler.iter().map(|n| stream.ids().raw(n).to_string()).collect()
}

#[test]
fn candidates_by_rule() {
    // train is the first 7 of 10 events, validation the next (t <= 7.65), test the last two
    let stream = stream(&[5, 9, 5, 7, 7, 5, 9, 8, 6, 9]);
    let of = |rule, scored| raw(&stream, &sampler(&stream, &rule, scored, false, 0));
    assert_eq!(of(CandidateRule::TrainDestinations, Scored::Test), ["5", "7", "9"]);
    assert_eq!(of(CandidateRule::StreamDestinations, Scored::Train), ["5", "6", "7", "8", "9"]);
    assert_eq!(of(CandidateRule::IdRange, Scored::Train), ["5", "6", "7", "8", "9"]);
    assert_eq!(of(CandidateRule::IdRange, Scored::Val), ["8"]);
    assert_eq!(of(CandidateRule::IdRange, Scored::Test), ["6", "7", "8", "9"]);
    assert_eq!(of(CandidateRule::AllNodes, Scored::Test).len(), 8);
    let (_folder, path) = file("ids.txt", b"dst:9\ndst:5\n");
    assert_eq!(of(CandidateRule::File(path), Scored::Test), ["5", "9"]);
    let destinations = stream.destination_space();
    assert!(
        sampler(&stream, &CandidateRule::IdRange, Scored::Test, true, 0).iter().all(|n| destinations.contains(&n.0))
    );
}

#[test]
fn the_sole_candidate_is_drawn_though_it_is_the_positive() {
    let stream = stream(&[5; 10]);
    let sampler = sampler(&stream, &CandidateRule::TrainDestinations, Scored::Train, true, 3);
    let positive = stream.destination(EventId(0));
    assert_eq!((sampler.candidates(), sampler.draw(1, EventId(0), positive, 0)), (1, positive));
}

#[test]
fn no_candidate_is_an_error() {
    let stream = stream(&[5; 10]);
    let split = Split::new(&stream, &SplitConfig { train: 0.7, val: 0.0, ..SplitConfig::default() }).unwrap();
    let key = Key::new(0, Purpose::EvalNegative);
    let error = NegativeSampler::new(&stream, &split, &CandidateRule::IdRange, Scored::Val, true, key).unwrap_err();
    assert!(error.to_string().contains("no node can be a negative"), "{error}");
}

#[test]
fn draws_are_flat_without_the_positive_and_differ_by_key() {
    let stream = stream(&[5, 9, 5, 7, 7, 5, 9, 8, 6, 9]);
    let sampler = sampler(&stream, &CandidateRule::StreamDestinations, Scored::Train, true, 1);
    let positive = stream.destination(EventId(3));
    let mut seen = std::collections::BTreeMap::<u32, u32>::new();
    for draw in 0..40_000 {
        *seen.entry(sampler.draw(1, EventId(3), positive, draw).0).or_default() += 1;
    }
    // four candidates of 10,000 expected draws each; chi-square with 3 degrees of freedom: 16.3 once in a thousand
    let chi: f64 = seen.values().map(|&n| (f64::from(n) - 10_000.0).powi(2) / 10_000.0).sum();
    assert!(seen.len() == 4 && !seen.contains_key(&positive.0) && chi < 16.3, "{seen:?}: {chi}");
    let series = |epoch, event| (0..64).map(|d| sampler.draw(epoch, EventId(event), positive, d)).collect::<Vec<_>>();
    assert_eq!(series(1, 3), series(1, 3));
    assert!(series(1, 3) != series(2, 3) && series(1, 3) != series(1, 4));
}

#[test]
fn rules_have_names() {
    for (name, rule) in &RULES {
        let text = format!("\"{name}\"");
        assert_eq!(serde_json::to_string(rule).unwrap(), text);
        assert_eq!(&serde_json::from_str::<CandidateRule>(&text).unwrap(), rule);
    }
    let file: CandidateRule = serde_json::from_str("\"./ids.txt\"").unwrap();
    assert_eq!(file, CandidateRule::File("./ids.txt".into()));
    let error = serde_json::from_str::<CandidateRule>("\"train_destination\"").unwrap_err();
    assert!(error.to_string().contains("train_destinations"), "{error}");
}

proptest! {
    /// A draw is the word's share of the candidates listed without the positive: exactly uniform, whatever the rule.
    #[test]
    fn avoidance_is_exact(
        destinations in proptest::collection::vec(0u32..9, 10..30), rule in 0usize..4, avoid in any::<bool>(),
        seed in any::<u64>(), epoch in any::<u32>(), draw in any::<u32>(), event in any::<proptest::sample::Index>(),
    ) {
        let stream = stream(&destinations);
        let sampler = sampler(&stream, &RULES[rule].1, Scored::Train, avoid, seed);
        let event = EventId(event.index(destinations.len()) as u32);
        let positive = stream.destination(event);
        let mut left: Vec<NodeId> = sampler.iter().filter(|&n| !avoid || n != positive).collect();
        if left.is_empty() { left.push(positive) }
        let key = Key::new(seed, Purpose::TrainNegative).narrow([epoch, event.0, draw, 0]);
        let wanted = left[key.below(0, left.len() as u32) as usize];
        prop_assert_eq!(sampler.draw(epoch, event, positive, draw), wanted);
    }
}
