//! Candidate sets: the many destinations that one event's own is ranked against, as the Temporal Graph Benchmark (TGB,
//! arXiv:2307.01026, section 4.1) makes them.
//!
//! A set belongs to (source, destination, time), so that equal events share one. Of the candidates, those that the source is
//! linked with at that very time are taken out, the true one among them. Up to half of a set are destinations that the source
//! had in training, the rest is drawn from the other candidates, all without replacement; where there are not enough, all are
//! taken and the set is smaller.
//!
//! Sets are drawn by counter here, or read from a file that `experiments/tgb_candidates.py` makes of the benchmark's own.

use super::choice::{distinct, skip};
use crate::error::{Error, Result};
use crate::id::{EventId, NodeId};
use crate::npy;
use crate::philox::Key;
use crate::split::Split;
use crate::stream::EventStream;
use npyz::npz::{self, NpzArchive};
use std::collections::HashMap;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

/// The candidates of every event. `Send + Sync`; holds no state.
#[derive(Clone, Debug)]
pub struct CandidateSets {
    stream: EventStream,
    sets: Sets,
}

#[derive(Clone, Debug)]
enum Sets {
    Drawn(Drawn),
    Stored(Stored),
}

/// Sets made by the rule.
#[derive(Clone, Debug)]
struct Drawn {
    /// Candidates, ascending.
    pool: Vec<NodeId>,
    /// Per source, places in the pool of its destinations in training, ascending.
    history: HashMap<NodeId, Vec<u64>>,
    per_event: usize,
    key: Key,
}

/// Sets of a file.
#[derive(Clone, Debug)]
struct Stored {
    number: HashMap<SetKey, usize>,
    offset: Vec<usize>,
    nodes: Vec<NodeId>,
}

/// Source, destination, and the time in seconds as its bits.
type SetKey = (u32, u32, u64);

impl CandidateSets {
    /// Sets of up to `per_event` candidates of `pool`.
    ///
    /// * `pool`: ascending.
    /// * `key`: of the run's seed and purpose.
    pub fn drawn(stream: &EventStream, split: &Split, pool: Vec<NodeId>, per_event: usize, key: Key) -> CandidateSets {
        let mut history: HashMap<NodeId, Vec<u64>> = HashMap::new();
        for &event in split.train.iter() {
            if let Ok(at) = pool.binary_search(&stream.destination(event)) {
                history.entry(stream.source(event)).or_default().push(at as u64);
            }
        }
        for places in history.values_mut() {
            places.sort_unstable();
            places.dedup();
        }
        CandidateSets { stream: stream.clone(), sets: Sets::Drawn(Drawn { pool, history, per_event, key }) }
    }

    /// The sets of an `npz` file: `source`, `destination` and `time` (seconds) of Q sets, `[Q]`; `offset` `[Q + 1]` into
    /// `negative`, whose numbers, like the other two's, are dense node numbers.
    ///
    /// * `events`: those that need a set.
    ///
    /// # Errors
    /// A file that can not be read or does not fit the stream, or an event without a set.
    pub fn stored(stream: &EventStream, path: &Path, events: &[EventId]) -> Result<CandidateSets> {
        let stored = Stored::read(stream, path)?;
        let sets = CandidateSets { stream: stream.clone(), sets: Sets::Stored(stored) };
        match events.iter().find(|&&event| sets.place(event).is_none()) {
            None => Ok(sets),
            Some(&event) => {
                let row = stream.row(event) + 1;
                Err(unfit(path, &format!("has no set for the event of row {row}; make it of the same events' file")))
            }
        }
    }

    /// The candidates of an event; never its own destination.
    pub fn of(&self, event: EventId) -> Vec<NodeId> {
        match &self.sets {
            Sets::Drawn(drawn) => drawn.of(&self.stream, event),
            Sets::Stored(stored) => {
                let at = self.place(event).expect("every event that is scored has a set");
                stored.nodes[stored.offset[at]..stored.offset[at + 1]].to_vec()
            }
        }
    }

    fn place(&self, event: EventId) -> Option<usize> {
        let seconds = self.stream.meta().tick.seconds(self.stream.time(event).0);
        let key = set_key(self.stream.source(event).0, self.stream.destination(event).0, seconds);
        match &self.sets {
            Sets::Drawn(_) => Some(0),
            Sets::Stored(stored) => stored.number.get(&key).copied(),
        }
    }
}

fn set_key(source: u32, destination: u32, seconds: f64) -> SetKey {
    (source, destination, (seconds + 0.0).to_bits())
}

impl Drawn {
    fn of(&self, stream: &EventStream, event: EventId) -> Vec<NodeId> {
        let (source, destination, time) = (stream.source(event), stream.destination(event), stream.time(event));
        let key = self.key.narrow([source.0, destination.0, time.0 as u32, (time.0 >> 32) as u32]);
        let mut taken: Vec<u64> = self.linked_now(stream, event);
        let seen: Vec<u64> = match self.history.get(&source) {
            Some(seen) => seen.iter().copied().filter(|at| taken.binary_search(at).is_err()).collect(),
            None => Vec::new(),
        };
        let drawn = distinct(key.narrow([0, 0, 0, 0]), self.per_event / 2, seen.len() as u64);
        let mut places: Vec<u64> = drawn.into_iter().map(|at| seen[at as usize]).collect();
        taken.extend(&places);
        taken.sort_unstable();
        let others = self.pool.len() as u64 - taken.len() as u64;
        let missing = self.per_event - places.len();
        if others <= missing as u64 {
            places.extend((0..others).map(|rank| skip(rank, 0, &taken)));
        } else {
            let drawn = distinct(key.narrow([1, 0, 0, 0]), missing, others);
            places.extend(drawn.into_iter().map(|rank| skip(rank, 0, &taken)));
        }
        places.into_iter().map(|at| self.pool[at as usize]).collect()
    }

    /// Places in the pool of the destinations that the event's source has at the event's time, ascending.
    fn linked_now(&self, stream: &EventStream, event: EventId) -> Vec<u64> {
        let (source, time) = (stream.source(event), stream.time(event));
        let now = |e: &EventId| stream.time(*e) == time;
        let before = (0..event.0).rev().map(EventId).take_while(now);
        let after = (event.0..stream.len() as u32).map(EventId).take_while(now);
        let of_source = before.chain(after).filter(|&e| stream.source(e) == source);
        let places = of_source.filter_map(|e| self.pool.binary_search(&stream.destination(e)).ok());
        let mut places: Vec<u64> = places.map(|at| at as u64).collect();
        places.sort_unstable();
        places.dedup();
        places
    }
}

impl Stored {
    fn read(stream: &EventStream, path: &Path) -> Result<Stored> {
        let opened = File::open(path).map_err(|e| Error::io(path, "open", e))?;
        let archive = NpzArchive::new(BufReader::new(opened));
        let mut archive = archive.map_err(|e| unfit(path, &format!("is no npz file ({e})")))?;
        let mut floats = |name: &str| -> Result<Vec<f64>> { column(&mut archive, path, name) };
        let (source, destination, time) = (floats("source")?, floats("destination")?, floats("time")?);
        let (offset, negative) = (floats("offset")?, floats("negative")?);
        let sets = source.len();
        if destination.len() != sets || time.len() != sets || offset.len() != sets + 1 {
            return Err(unfit(path, "has arrays whose lengths do not agree"));
        }
        let known = |&node: &f64| (0.0..f64::from(stream.nodes())).contains(&node);
        if let Some(node) = [&source, &destination, &negative].into_iter().flatten().find(|node| !known(node)) {
            return Err(unfit(path, &format!("names node {node}, and the stream has {}", stream.nodes())));
        }
        let offset: Vec<usize> = offset.into_iter().map(|at| at as usize).collect();
        if !offset.is_sorted() || offset[sets] != negative.len() {
            return Err(unfit(path, "has offsets that do not cut `negative` into sets"));
        }
        let keys = source.iter().zip(&destination).zip(&time);
        let number = keys.enumerate().map(|(at, ((&s, &d), &t))| (set_key(s as u32, d as u32, t), at)).collect();
        Ok(Stored { number, offset, nodes: negative.into_iter().map(|node| NodeId(node as u32)).collect() })
    }
}

/// One array of numbers, of whatever width.
fn column(archive: &mut NpzArchive<BufReader<File>>, path: &Path, name: &str) -> Result<Vec<f64>> {
    let trouble = |e: std::io::Error| unfit(path, &format!("can not be read at the array `{name}` ({e})"));
    let entry = archive.zip_archive().by_name(&npz::file_name_from_array_name(name));
    let entry = entry.map_err(|e| unfit(path, &format!("has no array `{name}` ({e})")))?;
    let array = npy::open(entry).map_err(trouble)?;
    match array.dtype().descr().trim_matches(['\'', '"']) {
        "<i4" => Ok(array.into_vec::<i32>().map_err(trouble)?.into_iter().map(f64::from).collect()),
        "<i8" => Ok(array.into_vec::<i64>().map_err(trouble)?.into_iter().map(|x| x as f64).collect()),
        "<f8" => array.into_vec::<f64>().map_err(trouble),
        other => Err(unfit(path, &format!("has an array `{name}` of kind {other}; i4, i8 and f8 are read"))),
    }
}

fn unfit(path: &Path, problem: &str) -> Error {
    let mend = format!("the file {problem}; make it with experiments/tgb_candidates.py");
    Error::setting("eval.candidates", path.display(), mend)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::negative::tests::events_of;
    use crate::philox::Purpose;
    use crate::split::{SplitBy, SplitConfig};
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn key(seed: u64) -> Key {
        Key::new(seed, Purpose::EvalNegative)
    }

    fn by_count(stream: &EventStream) -> Split {
        Split::new(stream, &SplitConfig { by: SplitBy::Count, ..SplitConfig::default() }).unwrap()
    }

    fn destinations(stream: &EventStream, keep: impl Fn(EventId) -> bool) -> BTreeSet<NodeId> {
        (0..stream.len() as u32).map(EventId).filter(|&e| keep(e)).map(|e| stream.destination(e)).collect()
    }

    proptest! {
        #[test]
        fn sets_follow_the_rule(
            rows in proptest::collection::vec((0u32..3, 0u32..9, 0i64..15), 10..60), per_event in 1usize..9, seed in any::<u64>(),
        ) {
            let stream = events_of(&rows);
            let split = by_count(&stream);
            let pool = destinations(&stream, |_| true);
            let sets = CandidateSets::drawn(&stream, &split, pool.iter().copied().collect(), per_event, key(seed));
            for event in split.test.clone().map(EventId) {
                let (s, t) = (stream.source(event), stream.time(event));
                let linked = destinations(&stream, |e| stream.source(e) == s && stream.time(e) == t);
                let history = &destinations(&stream, |e| e < split.train_end && stream.source(e) == s) - &linked;
                let free = &pool - &linked;
                let drawn = sets.of(event);
                let set: BTreeSet<NodeId> = drawn.iter().copied().collect();
                prop_assert_eq!(set.len(), drawn.len(), "distinct");
                prop_assert_eq!(drawn.len(), per_event.min(free.len()));
                prop_assert!(set.is_subset(&free));
                let from_history = set.intersection(&history).count();
                prop_assert!(from_history >= history.len().min(per_event / 2), "{from_history} of {history:?}");
                prop_assert_eq!(drawn, sets.of(event));
            }
        }
    }

    /// Equal (source, destination, time) share a set; other times have others.
    #[test]
    fn sets_are_keyed_by_source_destination_and_time() {
        let mut rows: Vec<(u32, u32, i64)> = (0..40).map(|i| (i % 2, i, i64::from(i))).collect();
        rows.extend([(0, 3, 50), (0, 3, 50), (0, 3, 51)]);
        let stream = events_of(&rows);
        let pool = destinations(&stream, |_| true).into_iter().collect();
        let sets = CandidateSets::drawn(&stream, &by_count(&stream), pool, 10, key(0));
        let [a, b, c] = [40, 41, 42].map(|e| sets.of(EventId(e)));
        assert!(a == b && a != c, "{a:?} {c:?}");
        // Half of 10 from the 14 destinations that source 0 had in training besides.
        let trained = |node: &NodeId| stream.ids().raw(*node).to_string().parse::<u32>().unwrap() % 2 == 0;
        assert!(a.iter().filter(|node| trained(node)).count() >= 5, "{a:?}");
    }

    /// As `experiments/tgb_candidates.py` writes them.
    fn write(path: &Path, source: &[i64], destination: &[i64], time: &[f64], offset: &[i64], negative: &[i32]) {
        use npyz::WriterBuilder;
        let mut npz = npyz::npz::NpzWriter::create(path).unwrap();
        fn put<T: npyz::AutoSerialize + Copy>(
            npz: &mut npyz::npz::NpzWriter<std::io::BufWriter<File>>,
            name: &str,
            values: &[T],
        ) {
            let writer = npz.array(name, Default::default()).unwrap().default_dtype().shape(&[values.len() as u64]);
            let mut writer = writer.begin_nd().unwrap();
            writer.extend(values.iter().copied()).unwrap();
            writer.finish().unwrap();
        }
        put(&mut npz, "source", source);
        put(&mut npz, "destination", destination);
        put(&mut npz, "time", time);
        put(&mut npz, "offset", offset);
        put(&mut npz, "negative", negative);
    }

    #[test]
    fn stored_sets_are_found_and_checked() {
        let stream = events_of(&[(0, 0, 5), (1, 1, 6), (0, 2, 7)]); // nodes: sources 0, 1, destinations 2, 3, 4
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sets.npz");
        let events = [EventId(1), EventId(2)];
        write(&path, &[0, 1], &[4, 3], &[7.0, 6.0], &[0, 2, 3], &[2, 3, 2]);
        let sets = CandidateSets::stored(&stream, &path, &events).unwrap();
        assert_eq!(sets.of(EventId(2)), [NodeId(2), NodeId(3)]);
        assert_eq!(sets.of(EventId(1)), [NodeId(2)]);
        let sentence = |events: &[EventId]| CandidateSets::stored(&stream, &path, events).unwrap_err().to_string();
        assert!(sentence(&[EventId(0)]).contains("no set for the event of row 1"), "{}", sentence(&[EventId(0)]));
        for (broken, words) in [(&[0, 2, 9][..], "do not cut `negative`"), (&[0, 3][..], "lengths do not agree")] {
            write(&path, &[0, 1], &[4, 3], &[7.0, 6.0], broken, &[2, 3, 2]);
            assert!(sentence(&events).contains(words), "{}", sentence(&events));
        }
        write(&path, &[0, 1], &[4, 3], &[7.0, 6.0], &[0, 2, 3], &[2, 3, 5]);
        assert!(sentence(&events).contains("names node 5"), "{}", sentence(&events));
        std::fs::write(&path, "no zip").unwrap();
        assert!(sentence(&events).contains("is no npz file"), "{}", sentence(&events));
    }
}
