//! A split's figures by when an event happens and by how well its nodes are known.
//!
//! *Time*: five spans of equal length. *Degree*: earlier events of the endpoint that has fewer, in steps of four times as many;
//! a split whose figures fall with time or live off the busiest nodes shows it here.

use super::{SplitScores, SubsetMetrics};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use tidemill_data::id::EventId;
use tidemill_data::stream::EventStream;

/// Figures of parts of a split; parts without events are left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Breakdown {
    /// By time.
    pub by_time: Vec<Part>,
    /// By degree.
    pub by_degree: Vec<Part>,
}

/// Figures of the events in a range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// Its least value: seconds since the split's first event, or earlier events.
    pub from: f64,
    /// Its end, not included but for the last part by time; absent: no end.
    pub until: Option<f64>,
    /// Events scored.
    pub events: u64,
    /// Their figures.
    #[serde(flatten)]
    pub metrics: SubsetMetrics,
}

/// Spans of time.
const SPANS: i64 = 5;
/// First degrees of the parts.
const DEGREES: [u32; 6] = [0, 1, 4, 16, 64, 256];

impl Breakdown {
    /// Cuts a split's scores.
    pub fn of(scores: &SplitScores, stream: &EventStream) -> Breakdown {
        let events: Vec<EventId> = scores.scored_events().collect();
        let times = || events.iter().map(|&event| stream.time(event).0);
        let (Some(first), Some(last)) = (times().min(), times().max()) else { return Breakdown::default() };
        let length = i128::from(last - first).max(1);
        let span = |event: EventId| {
            let since = i128::from(stream.time(event).0 - first);
            (since * i128::from(SPANS) / length).min(i128::from(SPANS) - 1) as i64
        };
        let seconds = |i: i64| stream.meta().tick.seconds(last - first) * i as f64 / SPANS as f64;
        let by_time = (0..SPANS)
            .filter_map(|i| part(scores, &events, |event| span(event) == i, seconds(i), Some(seconds(i + 1))));
        let degrees = degrees(stream, &events);
        let by_degree = DEGREES.iter().enumerate().filter_map(|(i, &from)| {
            let until = DEGREES.get(i + 1).copied();
            let within = |event: EventId| degrees[&event] >= from && until.is_none_or(|until| degrees[&event] < until);
            part(scores, &events, within, f64::from(from), until.map(f64::from))
        });
        Breakdown { by_time: by_time.collect(), by_degree: by_degree.collect() }
    }
}

fn part(
    scores: &SplitScores,
    events: &[EventId],
    within: impl Fn(EventId) -> bool,
    from: f64,
    until: Option<f64>,
) -> Option<Part> {
    let count = events.iter().filter(|&&event| within(event)).count() as u64;
    let metrics = SubsetMetrics::of(scores, within)?;
    Some(Part { from, until, events: count, metrics })
}

/// Earlier events of each event's less known endpoint.
fn degrees(stream: &EventStream, events: &[EventId]) -> HashMap<EventId, u32> {
    let mut seen = vec![0u32; stream.nodes() as usize];
    let mut sorted = events.to_vec();
    sorted.sort_unstable();
    let (mut next, mut degrees) = (0u32, HashMap::new());
    for event in sorted {
        for earlier in (next..event.0).map(EventId) {
            seen[stream.source(earlier).index()] += 1;
            seen[stream.destination(earlier).index()] += 1;
        }
        next = event.0;
        degrees.insert(event, seen[stream.source(event).index()].min(seen[stream.destination(event).index()]));
    }
    degrees
}
