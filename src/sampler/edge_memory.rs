//! Whether a pair met before: the memory of edges that EdgeBank (Poursafaei et al., NeurIPS 2022, arXiv:2207.10128) answers from.
//!
//! A pair (source, destination) is remembered if it has an event that a root at that time may see (`same_batch` included) and that
//! lies in the [`Window`]. A pure function of the stream: nothing is written, batches may be asked about in any order.

use super::SameBatch;
use std::collections::HashMap;
use tidemill_data::id::{EventId, NodeId, Timestamp};
use tidemill_data::stream::EventStream;

/// How far back the memory reaches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Window {
    /// To the first event.
    All,
    /// To the quantile of past times that leaves this share of past events behind it, linearly interpolated.
    Latest(f64),
    /// As many ticks back from the latest past event.
    Lasting(f64),
}

impl Window {
    /// A window that lasts as long as the latest `share` of these events did.
    pub fn lasting(stream: &EventStream, events: &[EventId], share: f64) -> Window {
        let Some(&last) = events.last() else { return Window::All };
        let time = |i: usize| stream.time(events[i]).0;
        let place = (1.0 - share) * (events.len() - 1) as f64;
        let (below, above) = (place.floor() as usize, place.ceil() as usize);
        let after = (stream.time(last).0 - time(below)) as f64;
        Window::Lasting(after - (time(above) - time(below)) as f64 * place.fract())
    }
}

/// The pairs of some events, and when they met.
#[derive(Clone, Debug)]
pub struct EdgeMemory {
    stream: EventStream,
    window: Window,
    same_batch: SameBatch,
    events: Vec<EventId>,
    met: HashMap<(NodeId, NodeId), Vec<EventId>>,
}

impl EdgeMemory {
    /// A memory of `events` (ascending) of a stream.
    pub fn new(stream: &EventStream, events: &[EventId], window: Window, same_batch: SameBatch) -> EdgeMemory {
        let mut met: HashMap<_, Vec<EventId>> = HashMap::new();
        for &event in events {
            met.entry((stream.source(event), stream.destination(event))).or_default().push(event);
        }
        EdgeMemory { stream: stream.clone(), window, same_batch, events: events.to_vec(), met }
    }

    /// The memory as it is at `time`, in the batch that starts with `first_event`.
    pub fn at(&self, time: Timestamp, first_event: EventId) -> Remembered<'_> {
        let mut remembered = Remembered { memory: self, time, first_event, from: None };
        let past = remembered.past(&self.events);
        remembered.from = match (self.window, past.last()) {
            (Window::All, _) | (_, None) => None,
            (Window::Latest(share), Some(_)) => {
                // no past event lies between the two that a quantile is interpolated from
                let place = ((1.0 - share) * (past.len() - 1) as f64).ceil() as usize;
                Some(self.stream.time(past[place]))
            }
            (Window::Lasting(ticks), Some(&last)) => {
                Some(Timestamp(self.stream.time(last).0.saturating_sub(ticks.floor() as i64)))
            }
        };
        remembered
    }
}

/// The memory at one time.
#[derive(Clone, Copy, Debug)]
pub struct Remembered<'a> {
    memory: &'a EdgeMemory,
    time: Timestamp,
    first_event: EventId,
    from: Option<Timestamp>,
}

impl Remembered<'_> {
    /// Whether the pair is in it.
    pub fn contains(&self, source: NodeId, destination: NodeId) -> bool {
        let met = self.memory.met.get(&(source, destination)).map_or(&[][..], |events| self.past(events));
        let in_window = |&last: &EventId| self.from.is_none_or(|from| self.memory.stream.time(last) >= from);
        met.last().is_some_and(in_window)
    }

    /// The part of an ascending list that may be seen.
    fn past<'e>(&self, events: &'e [EventId]) -> &'e [EventId] {
        let hidden = self.memory.same_batch == SameBatch::Hidden;
        let seen =
            |&event: &EventId| self.memory.stream.time(event) < self.time && !(hidden && event >= self.first_event);
        &events[..events.partition_point(seen)]
    }
}
