//! The columns of a chunk, as Arrow buffers that somebody else owns: the heap or a memory map.

use super::mapping::Mapping;
use arrow::buffer::{Buffer, NullBuffer, ScalarBuffer};

/// The columns of one chunk. All have the chunk's length; features have `D_e` values a row.
#[derive(Clone, Debug)]
pub(crate) struct Columns {
    pub(crate) source: ScalarBuffer<u32>,
    pub(crate) destination: ScalarBuffer<u32>,
    pub(crate) time: ScalarBuffer<i64>,
    pub(crate) row: ScalarBuffer<u64>,
    pub(crate) labels: Option<Labels>,
    pub(crate) features: Option<ScalarBuffer<f32>>,
}

/// Labels of a chunk, some of which may be absent.
#[derive(Clone, Debug)]
pub(crate) struct Labels {
    pub(crate) values: ScalarBuffer<i8>,
    pub(crate) valid: Option<NullBuffer>,
}

impl Labels {
    pub(crate) fn get(&self, at: usize) -> Option<i8> {
        let value = self.values[at];
        self.valid.as_ref().is_none_or(|v| v.is_valid(at)).then_some(value)
    }
}

/// Whole columns on the heap, in event order, before they are cut into chunks.
#[derive(Debug, Default)]
pub(crate) struct EventColumns {
    pub(crate) source: Vec<u32>,
    pub(crate) destination: Vec<u32>,
    pub(crate) time: Vec<i64>,
    pub(crate) row: Vec<u64>,
    pub(crate) labels: Option<Vec<Option<i8>>>,
    /// `[E, D_e]` row-major.
    pub(crate) features: Option<Buffer>,
    pub(crate) feature_dim: usize,
    /// The file that the features are mapped from, if they are.
    pub(crate) mapping: Option<Mapping>,
}

impl EventColumns {
    /// Cuts the columns into chunks of `2^shift` rows, without copying (labels apart).
    pub(crate) fn into_chunks(self, shift: u32) -> Vec<Columns> {
        let (events, size, dim) = (self.time.len(), 1usize << shift, self.feature_dim);
        let labels = self.labels.map(LabelColumn::new);
        let (source, destination) = (Buffer::from_vec(self.source), Buffer::from_vec(self.destination));
        let (time, row) = (Buffer::from_vec(self.time), Buffer::from_vec(self.row));
        let features = self.features;
        (0..events.div_ceil(size))
            .map(|k| {
                let (from, len) = (k * size, size.min(events - k * size));
                Columns {
                    source: ScalarBuffer::new(source.clone(), from, len),
                    destination: ScalarBuffer::new(destination.clone(), from, len),
                    time: ScalarBuffer::new(time.clone(), from, len),
                    row: ScalarBuffer::new(row.clone(), from, len),
                    labels: labels.as_ref().map(|l| l.slice(from, len)),
                    features: features.as_ref().map(|f| ScalarBuffer::new(f.clone(), from * dim, len * dim)),
                }
            })
            .collect()
    }
}

struct LabelColumn {
    values: Buffer,
    valid: Option<NullBuffer>,
}

impl LabelColumn {
    fn new(labels: Vec<Option<i8>>) -> LabelColumn {
        let valid = labels.iter().any(Option::is_none).then(|| labels.iter().map(Option::is_some).collect());
        LabelColumn { values: Buffer::from_vec(labels.iter().map(|l| l.unwrap_or(0)).collect::<Vec<i8>>()), valid }
    }

    fn slice(&self, from: usize, len: usize) -> Labels {
        Labels {
            values: ScalarBuffer::new(self.values.clone(), from, len),
            valid: self.valid.as_ref().map(|v| v.slice(from, len)),
        }
    }
}
