//! A batch before it is shared out: its events, its logical roots, and how their samples are made.

use crate::sampler::{Known, Role, Root, Sample, SampleCache, SampleScratch, Sampler};
use tidemill_data::id::EventId;
use tidemill_data::philox::Key;

/// One global batch, before it is shared out.
#[derive(Clone, Copy)]
pub struct GlobalBatch<'a> {
    /// Its number in the pass, from 0.
    pub number: usize,
    /// Where in the pass its first event is.
    pub first: usize,
    /// Its events.
    pub events: &'a [EventId],
    /// Logical roots: sources, destinations, then negatives, event after event.
    pub roots: &'a [Root],
    /// Words for uniform sampling.
    pub key: Key,
    /// Makes the samples.
    pub sampler: &'a Sampler,
    /// Samples that were kept of the first `known` logical roots.
    pub cache: Option<&'a SampleCache>,
    /// How many roots may have been kept.
    pub known: usize,
}

impl GlobalBatch<'_> {
    /// Samples for some of the logical roots, ascending.
    pub fn sample(&self, logical: &[u32], scratch: &mut SampleScratch) -> Sample {
        let places = &logical[..logical.partition_point(|&root| (root as usize) < self.known)];
        let known = self.cache.map(|cache| Known { cache, batch: self.number, places });
        let mut sample = Sample::default();
        if logical.len() == self.roots.len() {
            let (first, key) = (self.events[0], self.key);
            self.sampler.sample_known_into(known, self.roots, first, key, scratch, &mut sample);
        } else {
            let roots: Vec<Root> = logical.iter().map(|&root| self.roots[root as usize]).collect();
            self.sampler.sample_known_into(known, &roots, self.events[0], self.key, scratch, &mut sample);
        }
        sample
    }

    /// Which event of the batch a logical root belongs to.
    pub fn event_of(&self, logical: usize) -> usize {
        let per_event = self.roots.len() / self.events.len() - 2;
        Role::of(logical, self.events.len(), per_event).0
    }
}
