//! Features of events `[E, D_e]` and of nodes `[N, D_v]`, both f32 and looked up by id.

use super::{EventStream, Inner, NodeFeatures};
use crate::error::{Error, Result};
use crate::id::{EventId, NodeId};
use crate::philox::{Key, Purpose};
use arrow::buffer::{Buffer, ScalarBuffer};
use rayon::prelude::*;
use std::sync::OnceLock;

impl EventStream {
    /// Width D_e of the events' features; 0 without features.
    pub fn feature_dim(&self) -> usize {
        self.inner.feature_dim
    }

    /// Features of an event: `[D_e]`, empty if the stream has none.
    #[inline]
    pub fn features(&self, event: EventId) -> &[f32] {
        let dim = self.inner.feature_dim;
        let (chunk, at) = self.locate(event);
        chunk.features.as_ref().map_or(&[], |f| &f[at * dim..(at + 1) * dim])
    }

    /// Copies the features of `events` to `out`: `[len, D_e]` row-major.
    ///
    /// # Panics
    /// If `out` has another length.
    pub fn gather_features(&self, events: &[EventId], out: &mut [f32]) {
        let dim = self.inner.feature_dim;
        assert_eq!(out.len(), events.len() * dim, "room for one row an event");
        if dim > 0 {
            for (row, &event) in out.chunks_exact_mut(dim).zip(events) {
                row.copy_from_slice(self.features(event));
            }
        }
    }

    /// Width D_v of the nodes' features; 0 without features.
    pub fn node_feature_dim(&self) -> usize {
        self.inner.node_features.as_ref().map_or(0, |f| f.dim)
    }

    /// Features of a node: `[D_v]`, empty if the stream has none.
    #[inline]
    pub fn node_features(&self, node: NodeId) -> &[f32] {
        self.inner.node_features.as_ref().map_or(&[], |f| &f.rows[node.index() * f.dim..(node.index() + 1) * f.dim])
    }

    /// The same events with features drawn from N(0, 1), keyed by seed and event id.
    ///
    /// # Errors
    /// If `dim` is 0.
    pub fn with_random_features(&self, dim: usize, seed: u64) -> Result<EventStream> {
        if dim == 0 {
            return Err(Error::setting("features", dim, "at least one feature is needed"));
        }
        let key = Key::new(seed, Purpose::Feature);
        let mut rows = vec![0f32; self.len() * dim];
        rows.par_chunks_exact_mut(dim).enumerate().for_each(|(event, row)| {
            let key = key.narrow([event as u32, 0, 0, 0]);
            row.iter_mut().enumerate().for_each(|(i, x)| *x = key.normal(i as u64) as f32);
        });
        self.with_features(rows, dim)
    }

    /// The same events with the given features.
    ///
    /// * `rows`: `[E, dim]` row-major, by event id.
    ///
    /// # Errors
    /// If the number of values does not fit, or one is not finite.
    pub fn with_features(&self, rows: Vec<f32>, dim: usize) -> Result<EventStream> {
        check_rows("event features", &rows, self.len(), dim)?;
        let buffer = Buffer::from_vec(rows);
        let mut inner = self.remade();
        let mut from = 0;
        for chunk in &mut inner.chunks {
            let len = chunk.time.len() * dim;
            chunk.features = Some(ScalarBuffer::new(buffer.clone(), from, len));
            from += len;
        }
        (inner.feature_dim, inner.mapping) = (dim, None);
        inner.meta.feature_columns.clear();
        Ok(EventStream::from_inner(inner))
    }

    /// The same events without features.
    #[must_use]
    pub fn without_features(&self) -> EventStream {
        let mut inner = self.remade();
        inner.chunks.iter_mut().for_each(|chunk| chunk.features = None);
        (inner.feature_dim, inner.mapping) = (0, None);
        inner.meta.feature_columns.clear();
        EventStream::from_inner(inner)
    }

    /// The same events with features of the nodes.
    ///
    /// * `rows`: `[N, dim]` row-major, by dense node id.
    ///
    /// # Errors
    /// If the number of values does not fit, or one is not finite.
    pub fn with_node_features(&self, rows: Vec<f32>, dim: usize) -> Result<EventStream> {
        check_rows("node features", &rows, self.nodes() as usize, dim)?;
        let mut inner = self.remade();
        inner.node_features = Some(NodeFeatures { rows: rows.into(), dim });
        Ok(EventStream::from_inner(inner))
    }

    /// A copy of the columns' handles whose contents are about to change.
    fn remade(&self) -> Inner {
        Inner { hash: OnceLock::new(), ..(*self.inner).clone() }
    }
}

fn check_rows(what: &'static str, rows: &[f32], count: usize, dim: usize) -> Result<()> {
    if dim == 0 || Some(rows.len()) != count.checked_mul(dim) {
        let expected = format!("{count} rows of {dim} values");
        return Err(Error::Shape { what, expected, found: format!("{} values", rows.len()) });
    }
    match rows.par_iter().position_first(|x| !x.is_finite()) {
        None => Ok(()),
        Some(at) => Err(Error::Shape {
            what,
            expected: "finite values".into(),
            found: format!("{} at row {}, column {}", rows[at], at / dim, at % dim),
        }),
    }
}
