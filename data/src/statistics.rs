//! What can be said about a stream by counting: the facts that `inspect` prints.

use crate::id::EventId;
use crate::stream::{EventStream, TimeUnit};
use rayon::prelude::*;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// Counts of a stream.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Statistics {
    /// Name of the stream.
    pub name: String,
    /// Content hash.
    pub hash: String,
    /// Whether it was generated.
    pub synthetic: bool,
    /// Events E.
    pub events: u64,
    /// Nodes N.
    pub nodes: u64,
    /// Whether sources and destinations have id spaces of their own.
    pub bipartite: bool,
    /// Distinct sources.
    pub sources: u64,
    /// Distinct destinations.
    pub destinations: u64,
    /// First time, in ticks.
    pub first_time: i64,
    /// Last time, in ticks.
    pub last_time: i64,
    /// Ticks in a second.
    pub ticks_per_second: u64,
    /// Seconds from the first to the last event.
    pub span_seconds: f64,
    /// Distinct times.
    pub distinct_times: u64,
    /// Events that share their time with another.
    pub tied_events: u64,
    /// Events of the commonest time.
    pub largest_tie: u64,
    /// Rows of the source file that came before a row of an earlier time.
    pub out_of_order: u64,
    /// Distinct (source, destination) pairs.
    pub distinct_pairs: u64,
    /// Events whose pair occurred before.
    pub repeats: u64,
    /// `repeats / events`.
    pub repeat_share: f64,
    /// Events equal to an earlier one in source, destination and time.
    pub duplicates: u64,
    /// Events from a node to itself.
    pub self_loops: u64,
    /// How events spread over sources.
    pub source_degree: Skew,
    /// How events spread over destinations.
    pub destination_degree: Skew,
    /// Name of the label column.
    pub label_column: Option<String>,
    /// Labels and how often each occurs, ascending.
    pub labels: Vec<LabelCount>,
    /// Events without label in a stream with labels.
    pub unlabelled: u64,
    /// Width D_e of the events' features.
    pub feature_dim: usize,
    /// Names of the feature columns, where known.
    pub feature_columns: Vec<String>,
    /// Width D_v of the nodes' features.
    pub node_feature_dim: usize,
}

/// A label and its number of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LabelCount {
    /// The label.
    pub value: i8,
    /// Its events.
    pub events: u64,
}

/// How unequally events spread over nodes (nodes without event are left out).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Skew {
    /// Most events of a node.
    pub max: u64,
    /// Mean events of a node.
    pub mean: f64,
    /// Median events of a node.
    pub median: u64,
    /// Gini coefficient: 0 if all are equal, towards 1 if one has all.
    pub gini: f64,
    /// Share of events at the busiest 1 % of nodes (at least one node).
    pub top_1_percent_share: f64,
}

impl Skew {
    /// From events per node.
    pub fn of(degrees: &[u64]) -> Skew {
        let mut degrees: Vec<u64> = degrees.iter().copied().filter(|&d| d > 0).collect();
        degrees.par_sort_unstable();
        let (n, sum) = (degrees.len(), degrees.iter().sum::<u64>() as f64);
        if n == 0 {
            return Skew::default();
        }
        let weighted: f64 = degrees.iter().enumerate().map(|(i, &d)| (i + 1) as f64 * d as f64).sum();
        let top: u64 = degrees.iter().rev().take(n.div_ceil(100)).sum();
        Skew {
            max: degrees[n - 1],
            mean: sum / n as f64,
            median: degrees[n / 2],
            gini: 2.0 * weighted / (n as f64 * sum) - (n + 1) as f64 / n as f64,
            top_1_percent_share: top as f64 / sum,
        }
    }
}

impl Statistics {
    /// Counts. O(E log E) time, 24 bytes an event.
    pub fn of(stream: &EventStream) -> Statistics {
        let meta = stream.meta();
        let [sources, destinations] = degrees(stream);
        let ties = Ties::of(stream);
        let (distinct_pairs, duplicates) = pairs(stream);
        let events = meta.events;
        let repeats = events - distinct_pairs;
        let (labels, unlabelled) = labels(stream);
        let ends = (!stream.is_empty()).then(|| (EventId(0), EventId(events as u32 - 1)));
        let [first, last] = ends.map_or([0, 0], |(a, b)| [stream.time(a).0, stream.time(b).0]);
        Statistics {
            name: meta.name.clone(),
            hash: stream.hash(),
            synthetic: meta.synthetic,
            events,
            nodes: u64::from(meta.nodes),
            bipartite: meta.bipartite,
            sources: present(&sources),
            destinations: present(&destinations),
            first_time: first,
            last_time: last,
            ticks_per_second: meta.tick.per_second,
            span_seconds: meta.tick.seconds(last.wrapping_sub(first)),
            distinct_times: ties.distinct,
            tied_events: ties.tied,
            largest_tie: ties.largest,
            out_of_order: out_of_order(stream),
            distinct_pairs,
            repeats,
            repeat_share: repeats as f64 / events.max(1) as f64,
            duplicates,
            self_loops: self_loops(stream),
            source_degree: Skew::of(&sources),
            destination_degree: Skew::of(&destinations),
            label_column: meta.label_column.clone(),
            labels,
            unlabelled,
            feature_dim: stream.feature_dim(),
            feature_columns: meta.feature_columns.clone(),
            node_feature_dim: stream.node_feature_dim(),
        }
    }
}

fn present(degrees: &[u64]) -> u64 {
    degrees.iter().filter(|&&d| d > 0).count() as u64
}

fn degrees(stream: &EventStream) -> [Vec<u64>; 2] {
    let mut degrees = [vec![0; stream.nodes() as usize], vec![0; stream.nodes() as usize]];
    for chunk in stream.chunks() {
        chunk.source.iter().for_each(|n| degrees[0][n.index()] += 1);
        chunk.destination.iter().for_each(|n| degrees[1][n.index()] += 1);
    }
    degrees
}

fn self_loops(stream: &EventStream) -> u64 {
    let loops = |c: crate::stream::Chunk<'_>| c.source.iter().zip(c.destination).filter(|(a, b)| a == b).count() as u64;
    stream.chunks().map(loops).sum()
}

/// Events that share a time.
#[derive(Default)]
struct Ties {
    distinct: u64,
    tied: u64,
    largest: u64,
}

impl Ties {
    fn of(stream: &EventStream) -> Ties {
        let mut ties = Ties::default();
        let (mut now, mut run) = (None, 0);
        for &time in stream.chunks().flat_map(|c| c.time) {
            if now != Some(time) {
                ties.close(run);
                (now, run) = (Some(time), 0);
            }
            run += 1;
        }
        ties.close(run);
        ties
    }

    fn close(&mut self, run: u64) {
        self.distinct += u64::from(run > 0);
        self.tied += if run > 1 { run } else { 0 };
        self.largest = self.largest.max(run);
    }
}

/// Distinct pairs, and events equal to an earlier one in pair and time.
fn pairs(stream: &EventStream) -> (u64, u64) {
    let ends = |c: crate::stream::Chunk<'_>| -> Vec<(u32, u32, i64)> {
        let pairs = c.source.iter().zip(c.destination).zip(c.time);
        pairs.map(|((s, d), t)| (s.0, d.0, t.0)).collect()
    };
    let mut events: Vec<(u32, u32, i64)> = stream.chunks().flat_map(ends).collect();
    events.par_sort_unstable();
    let fresh = |w: &&[(u32, u32, i64)]| (w[0].0, w[0].1) != (w[1].0, w[1].1);
    let distinct = events.windows(2).filter(fresh).count() as u64 + u64::from(!events.is_empty());
    (distinct, events.windows(2).filter(|w| w[0] == w[1]).count() as u64)
}

/// Rows that came before a row of an earlier time: those above a later event's row.
fn out_of_order(stream: &EventStream) -> u64 {
    let (mut least, mut count) = (u64::MAX, 0);
    for event in (0..stream.len() as u32).rev().map(EventId) {
        let row = stream.row(event);
        // a later event from an earlier row means that this row had to move
        count += u64::from(row > least);
        least = least.min(row);
    }
    count
}

fn labels(stream: &EventStream) -> (Vec<LabelCount>, u64) {
    if !stream.has_labels() {
        return (Vec::new(), 0);
    }
    let mut counts = BTreeMap::<Option<i8>, u64>::new();
    (0..stream.len() as u32).for_each(|e| *counts.entry(stream.label(EventId(e))).or_default() += 1);
    let unlabelled = counts.remove(&None).unwrap_or(0);
    let count = |(value, events): (Option<i8>, u64)| value.map(|value| LabelCount { value, events });
    (counts.into_iter().filter_map(count).collect(), unlabelled)
}

impl fmt::Display for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let made = if self.synthetic { " (synthetic)" } else { "" };
        writeln!(f, "stream        {}{made}", self.name)?;
        writeln!(f, "events        {}", self.events)?;
        let spaces = if self.bipartite { "two id spaces" } else { "one id space" };
        writeln!(
            f,
            "nodes         {} ({} sources, {} destinations, {spaces})",
            self.nodes, self.sources, self.destinations
        )?;
        self.fmt_time(f)?;
        writeln!(
            f,
            "pairs         {} distinct, {} repeats ({:.1} %)",
            self.distinct_pairs,
            self.repeats,
            100.0 * self.repeat_share
        )?;
        writeln!(
            f,
            "duplicates    {}; self-loops {}; out of order {}",
            self.duplicates, self.self_loops, self.out_of_order
        )?;
        for (name, skew) in [("source", &self.source_degree), ("destination", &self.destination_degree)] {
            writeln!(
                f,
                "{:<13} events a node: max {}, mean {:.1}, median {}, gini {:.2}, busiest 1 %: {:.1} % of events",
                name,
                skew.max,
                skew.mean,
                skew.median,
                skew.gini,
                100.0 * skew.top_1_percent_share
            )?;
        }
        self.fmt_columns(f)?;
        write!(f, "hash          {}", self.hash)
    }
}

impl Statistics {
    fn fmt_time(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tick = crate::stream::Tick { per_second: self.ticks_per_second };
        let days = self.span_seconds / 86_400.0;
        let time = |t| crate::export::format_time(t, tick, TimeUnit::Seconds);
        let (first, last) = (time(self.first_time), time(self.last_time));
        writeln!(f, "time          {first} .. {last} s ({days:.1} days), tick {tick}")?;
        let (distinct, tied, largest) = (self.distinct_times, self.tied_events, self.largest_tie);
        writeln!(f, "ties          {distinct} distinct times, {tied} events share theirs, at most {largest} at once")
    }

    fn fmt_columns(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.labels.is_empty() || self.unlabelled > 0 {
            let counts: Vec<String> = self.labels.iter().map(|l| format!("{}: {}", l.value, l.events)).collect();
            let name = self.label_column.as_deref().unwrap_or("label");
            writeln!(f, "labels        {name}: {} ({} without)", counts.join(", "), self.unlabelled)?;
        }
        let names = if self.feature_columns.is_empty() {
            String::new()
        } else {
            format!(" ({})", self.feature_columns.join(", "))
        };
        writeln!(f, "features      {} an event{names}, {} a node", self.feature_dim, self.node_feature_dim)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skew_of_known_spreads() {
        let equal = Skew::of(&[3, 3, 3, 0, 3]);
        assert_eq!((equal.max, equal.mean, equal.median), (3, 3.0, 3));
        assert!(equal.gini.abs() < 1e-12);
        let one = Skew::of(&[1, 1, 1, 97]);
        assert!((one.gini - 0.72).abs() < 1e-12 && (one.top_1_percent_share - 0.97).abs() < 1e-12);
        assert_eq!(Skew::of(&[]), Skew::default());
    }
}
