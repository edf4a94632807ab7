//! From rows in file order to a stream in event order.

use super::decimal::TimeColumn;
use super::feature_rows::FeatureRows;
use super::intern::{Interner, rank};
use crate::error::{Error, Result};
use crate::stream::{EventColumns, EventStream, StreamMeta, TimeUnit};
use rayon::prelude::*;
use std::path::Path;

/// The columns of a file while it is read.
#[derive(Debug)]
pub(crate) struct EventBuilder {
    pub(crate) time: TimeColumn,
    pub(crate) source: Interner,
    pub(crate) destination: Interner,
    pub(crate) sources: Vec<u32>,
    pub(crate) destinations: Vec<u32>,
    /// Data row of each event in the file, from 0; rows with faults are left out.
    rows: Vec<u64>,
    pub(crate) labels: Option<Vec<Option<i8>>>,
    pub(crate) features: FeatureRows,
}

/// What a file says of itself beside its rows.
#[derive(Debug, Default)]
pub(crate) struct About {
    pub(crate) name: String,
    /// Set by the user.
    pub(crate) bipartite: Option<bool>,
    /// Said by the column names.
    pub(crate) names_two_spaces: bool,
    pub(crate) label_column: Option<String>,
    pub(crate) feature_columns: Vec<String>,
}

/// Which id columns hold text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TextIds {
    pub(crate) source: bool,
    pub(crate) destination: bool,
}

impl EventBuilder {
    /// * `scratch`: the folder for what does not fit memory.
    pub(crate) fn new(unit: TimeUnit, text: TextIds, labels: bool, scratch: &Path) -> EventBuilder {
        EventBuilder {
            time: TimeColumn::new(unit),
            source: Interner::new(text.source),
            destination: Interner::new(text.destination),
            sources: Vec::new(),
            destinations: Vec::new(),
            rows: Vec::new(),
            labels: labels.then(Vec::new),
            features: FeatureRows::new(scratch),
        }
    }

    /// Number of whole events.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Ends an event whose time and features are pushed already.
    ///
    /// * `row`: its data row in the file, from 1.
    ///
    /// # Errors
    /// If features cannot be written to their temporary file.
    #[inline]
    pub(crate) fn end_event(&mut self, row: u64, source: u32, destination: u32, label: Option<i8>) -> Result<()> {
        self.sources.push(source);
        self.destinations.push(destination);
        self.rows.push(row - 1);
        if let Some(labels) = &mut self.labels {
            labels.push(label);
        }
        if self.features.dim > 0 { self.features.end_row() } else { Ok(()) }
    }

    /// Drops the pieces of an event that was not ended (ids that only it has stay known).
    pub(crate) fn drop_event(&mut self) {
        self.time.truncate(self.rows.len());
        self.features.truncate(self.rows.len());
    }

    /// Ranks the ids, orders the events and makes the stream.
    pub(crate) fn finish(self, about: About, notice: &mut dyn FnMut(String)) -> Result<EventStream> {
        if self.rows.len() as u64 >= u64::from(u32::MAX) {
            return Err(Error::TooMany { what: "events", found: self.rows.len() as u64 });
        }
        let bipartite = self.is_bipartite(&about, notice);
        let (time, tick) = self.time.finish();
        let ranks = rank(self.source, self.destination, bipartite)?;
        let meta = StreamMeta {
            name: about.name,
            synthetic: false,
            tick,
            bipartite,
            nodes: ranks.ids.nodes(),
            first_destination: ranks.ids.first_destination(),
            events: time.len() as u64,
            label_column: about.label_column,
            feature_columns: about.feature_columns,
        };
        let inversions = time.windows(2).filter(|w| w[0] > w[1]).count();
        let order = (inversions > 0).then(|| {
            notice(format!("times decrease at {inversions} rows: sorted by time, rows of one time keep their order"));
            order(&time)
        });
        let feature_dim = self.features.dim;
        let features = self.features.finish(order.as_deref())?;
        let arranged = |numbers: Vec<u32>, ranks: &[u32]| -> Vec<u32> {
            let dense = |&n: &u32| ranks[n as usize];
            match &order {
                Some(order) => order.par_iter().map(|&row| dense(&numbers[row as usize])).collect(),
                None => numbers.par_iter().map(dense).collect(),
            }
        };
        let columns = EventColumns {
            source: arranged(self.sources, &ranks.source),
            destination: arranged(self.destinations, &ranks.destination),
            time: sorted(time, order.as_deref()),
            row: sorted(self.rows, order.as_deref()),
            labels: self.labels.map(|labels| sorted(labels, order.as_deref())),
            mapping: features.as_ref().and_then(|f| f.mapping.clone()),
            features: features.map(|f| f.rows),
            feature_dim,
        };
        EventStream::from_columns(meta, ranks.ids, columns)
    }

    /// Whether some integers of one column are texts of the other: ids of one space, to be read as text in both.
    pub(crate) fn is_mixed(&self) -> bool {
        !self.source.same_kind(&self.destination) && self.source.shared(&self.destination) > 0
    }

    fn is_bipartite(&self, about: &About, notice: &mut dyn FnMut(String)) -> bool {
        if let Some(set) = about.bipartite {
            return set;
        }
        let shared = self.source.shared(&self.destination);
        if !about.names_two_spaces && shared > 0 && self.source.same_kind(&self.destination) {
            notice(format!(
                "{shared} ids are both source and destination: taken as one id space; \
                 set data.bipartite = true if they name different things"
            ));
        }
        about.names_two_spaces || shared == 0 || !self.source.same_kind(&self.destination)
    }
}

/// Positions in (time, row) order.
fn order(time: &[i64]) -> Vec<u32> {
    let mut order: Vec<u32> = (0..time.len() as u32).collect();
    order.par_sort_by_key(|&row| time[row as usize]);
    order
}

fn sorted<T: Copy + Send + Sync>(column: Vec<T>, order: Option<&[u32]>) -> Vec<T> {
    match order {
        Some(order) => order.par_iter().map(|&row| column[row as usize]).collect(),
        None => column,
    }
}
