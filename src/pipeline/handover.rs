//! Hand-over between the state worker's stream and the trainer's, on any device.
//!
//! The two threads order their *calls* by queues and the frontier; on a device with streams the *work* behind those calls comes
//! later, so each side marks what it gave its stream and the other's stream waits for the mark. No thread waits, and nothing waits
//! for the whole device:
//!
//! ```text
//! state worker's stream    .. copy, read of k ──mark──┐        ┌── read of k + 1 ..
//! trainer's stream         ..                         └ pass of k, commit ──mark──┘
//! ```
//! On the CPU the marks are those of the device module's twin: the same path, past at once.

use super::state::ReadyBatch;
use crate::device::stream::{Event, Stream, StreamError};
use std::sync::{Arc, Mutex};
use tch::{Device, Tensor};

/// What both sides of a pass share.
pub struct Handover {
    device: Device,
    /// After the latest state commit.
    commit: Mutex<Option<Arc<Event>>>,
    /// After the latest state read.
    read: Mutex<Option<Arc<Event>>>,
}

impl Handover {
    /// For a pass on `device`.
    pub fn new(device: Device) -> Handover {
        Handover { device, commit: Mutex::new(None), read: Mutex::new(None) }
    }

    /// The state worker takes a stream of its own.
    pub fn own_stream(&self) {
        let own = works(Stream::new(self.device));
        let first = works(Stream::current(self.device));
        works(self.mark(first)).hold(own).expect("both are this device's"); // what was given before the pass
        works(own.make_current());
    }

    /// Before a state read: its stream waits for the commits whose calls were made.
    pub fn before_read(&self) {
        self.hold(&self.commit);
    }

    /// After a state read: the mark that the batch brings along.
    pub fn after_read(&self) -> Arc<Event> {
        self.note(&self.read)
    }

    /// Takes over a batch: the trainer's stream waits for its read, and its memory is kept until that stream is done with it.
    pub fn take_over(&self, batch: &ReadyBatch) {
        let here = works(Stream::current(self.device));
        if let Some(arrived) = &batch.arrived {
            works(arrived.hold(here));
        }
        if self.device != Device::Cpu {
            tensors(batch).for_each(|tensor| works(here.keep(tensor)));
        }
    }

    /// Before a state commit: reads that are still under way see what it replaces.
    pub fn before_commit(&self) {
        self.hold(&self.read);
    }

    /// After a state commit.
    pub fn after_commit(&self) {
        self.note(&self.commit);
    }

    fn mark(&self, stream: Stream) -> Result<Event, StreamError> {
        let mut event = Event::new(self.device)?;
        event.record(stream)?;
        Ok(event)
    }

    fn note(&self, place: &Mutex<Option<Arc<Event>>>) -> Arc<Event> {
        let event = Arc::new(works(Stream::current(self.device).and_then(|stream| self.mark(stream))));
        *place.lock().expect("no one panics while holding it") = Some(event.clone());
        event
    }

    fn hold(&self, place: &Mutex<Option<Arc<Event>>>) {
        let event = place.lock().expect("no one panics while holding it").clone();
        if let Some(event) = event {
            works(Stream::current(self.device).and_then(|stream| event.hold(stream)));
        }
    }
}

/// A device whose streams stop working ends the run like any other operation that it refuses.
fn works<T>(result: Result<T, StreamError>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

/// All tensors that the model reads of a batch.
fn tensors(batch: &ReadyBatch) -> impl Iterator<Item = &Tensor> {
    let (input, mail, pairs) = (&batch.input, &batch.input.mail, &batch.pairs);
    let always =
        [&input.memory, &mail.row, &mail.payload, &mail.dt, &pairs.source, &pairs.destination, &pairs.negative];
    let maybe = [&input.node_features, &mail.segment, &mail.edge_features, &mail.code];
    let layers = input.layers.iter().flat_map(|layer| {
        let always = [&layer.root, &layer.neighbor, &layer.valid, &layer.dt, &layer.root_dt];
        always.into_iter().chain([&layer.edge_features, &layer.keep].into_iter().flatten())
    });
    always.into_iter().chain(maybe.into_iter().flatten()).chain(layers)
}
