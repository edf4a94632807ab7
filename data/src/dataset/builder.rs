//! From rows in file order to a stream in event order.

use super::decimal::TimeColumn;
use super::intern::{Interner, rank};
use crate::error::Result;
use crate::stream::{EventColumns, EventStream, StreamMeta, TimeUnit};
use rayon::prelude::*;

/// The columns of a file while it is read.
#[derive(Debug)]
pub(crate) struct EventBuilder {
    pub(crate) time: TimeColumn,
    pub(crate) source: Interner,
    pub(crate) destination: Interner,
    pub(crate) sources: Vec<u32>,
    pub(crate) destinations: Vec<u32>,
    pub(crate) labels: Option<Vec<Option<i8>>>,
    /// `[rows, feature_dim]` row-major.
    pub(crate) features: Vec<f32>,
    pub(crate) feature_dim: usize,
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
    pub(crate) fn new(unit: TimeUnit, text: TextIds, labels: bool) -> EventBuilder {
        EventBuilder {
            time: TimeColumn::new(unit),
            source: Interner::new(text.source),
            destination: Interner::new(text.destination),
            sources: Vec::new(),
            destinations: Vec::new(),
            labels: labels.then(Vec::new),
            features: Vec::new(),
            feature_dim: 0,
        }
    }

    /// Ranks the ids, orders the events and makes the stream.
    pub(crate) fn finish(self, about: About, notice: &mut dyn FnMut(String)) -> Result<EventStream> {
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
        let mut columns = EventColumns {
            source: self.sources.into_par_iter().map(|n| ranks.source[n as usize]).collect(),
            destination: self.destinations.into_par_iter().map(|n| ranks.destination[n as usize]).collect(),
            row: (0..time.len() as u64).collect(),
            time,
            labels: self.labels,
            features: (self.feature_dim > 0).then_some(self.features),
            feature_dim: self.feature_dim,
        };
        let inversions = columns.time.windows(2).filter(|w| w[0] > w[1]).count();
        if inversions > 0 {
            notice(format!("times decrease at {inversions} rows: sorted by time, rows of one time keep their order"));
            columns = sort(columns);
        }
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

/// Orders the columns by (time, row).
fn sort(columns: EventColumns) -> EventColumns {
    let mut order: Vec<u32> = (0..columns.time.len() as u32).collect();
    order.par_sort_by_key(|&row| columns.time[row as usize]);
    let dim = columns.feature_dim;
    let features = columns.features.map(|rows| {
        let mut sorted = vec![0f32; rows.len()];
        let pairs = sorted.par_chunks_exact_mut(dim).zip(&order);
        pairs.for_each(|(to, &row)| to.copy_from_slice(&rows[row as usize * dim..][..dim]));
        sorted
    });
    EventColumns {
        source: taken(&columns.source, &order),
        destination: taken(&columns.destination, &order),
        time: taken(&columns.time, &order),
        row: taken(&columns.row, &order),
        labels: columns.labels.map(|labels| taken(&labels, &order)),
        features,
        feature_dim: dim,
    }
}

fn taken<T: Copy + Send + Sync>(column: &[T], order: &[u32]) -> Vec<T> {
    order.par_iter().map(|&row| column[row as usize]).collect()
}
