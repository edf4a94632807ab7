//! Which column of a table is what: the user's mapping first, then the usual names.

use super::config::Columns;
use crate::error::FaultKind;

const SOURCES: &[&str] = &["src", "source", "u", "user_id", "user", "from", "sender", "source_id", "src_id", "head"];
const DESTINATIONS: &[&str] = &[
    "dst",
    "destination",
    "target",
    "i",
    "item_id",
    "item",
    "to",
    "receiver",
    "recipient",
    "target_id",
    "dst_id",
    "destination_id",
    "tail",
];
const TIMES: &[&str] =
    &["timestamp", "time", "ts", "t", "unix_time", "unixtime", "unixts", "date", "datetime", "day", "year"];
const LABELS: &[&str] = &["state_label", "label"];
/// The column of `ml_*.csv` that numbers the rows of the features' file.
const FEATURE_ROW: &str = "idx";

/// The roles of a table's columns, as positions in a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) names: Vec<String>,
    pub(crate) source: usize,
    pub(crate) destination: usize,
    pub(crate) time: usize,
    pub(crate) label: Option<usize>,
    pub(crate) features: FeatureFields,
    /// Columns that nothing uses.
    pub(crate) ignored: Vec<String>,
}

/// Where the features are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FeatureFields {
    /// In these columns.
    Columns(Vec<usize>),
    /// In all fields from this one on; the header names only the first.
    From(usize),
    /// In another file, in the row that this column numbers.
    Row(usize),
}

impl Layout {
    /// Finds the roles.
    ///
    /// # Errors
    /// If the mapping names a column that is absent, or a role has none.
    pub(crate) fn find(names: Vec<String>, mapping: &Columns) -> Result<Layout, FaultKind> {
        let source = required(&names, "src", mapping.src.as_deref(), SOURCES)?;
        let destination = required(&names, "dst", mapping.dst.as_deref(), DESTINATIONS)?;
        let time = required(&names, "time", mapping.time.as_deref(), TIMES)?;
        let ends = [("src", source), ("dst", destination), ("time", time)];
        for (a, b) in [(0, 1), (0, 2), (1, 2)] {
            if ends[a].1 == ends[b].1 {
                return Err(FaultKind::SameColumn { first: ends[a].0, second: ends[b].0 });
            }
        }
        let label = match &mapping.label {
            Some(name) => Some(named(&names, "label", name)?),
            None => recognised(&names, LABELS),
        };
        let features = mapping.features.iter().map(|f| named(&names, "features", f)).collect::<Result<Vec<_>, _>>()?;
        let used = |at: &usize| [source, destination, time].contains(at) || label == Some(*at) || features.contains(at);
        let ignored = (0..names.len()).filter(|at| !used(at)).map(|at| names[at].clone()).collect();
        let features = FeatureFields::Columns(features);
        Ok(Layout { source, destination, time, label, features, ignored, names })
    }

    /// Whether the names are those of `ml_*.csv`: `u, i, ts, label, idx`.
    pub(crate) fn is_ml(names: &[String]) -> bool {
        ["u", "i", "ts", "label", FEATURE_ROW].iter().all(|word| recognised(names, &[word]).is_some())
    }

    /// Takes the features from another file, by the column that numbers its rows.
    pub(crate) fn with_feature_rows(mut self) -> Layout {
        if let (FeatureFields::Columns(none), Some(at)) = (&self.features, recognised(&self.names, &[FEATURE_ROW]))
            && none.is_empty()
        {
            self.features = FeatureFields::Row(at);
            self.ignored.retain(|name| !name.eq_ignore_ascii_case(FEATURE_ROW));
        }
        self
    }

    /// Whether the names say that sources and destinations are different things.
    pub(crate) fn names_two_spaces(&self) -> bool {
        let is = |at: usize, words: [&str; 2]| words.iter().any(|w| self.names[at].eq_ignore_ascii_case(w));
        is(self.source, ["user", "user_id"]) && is(self.destination, ["item", "item_id"])
    }

    /// Name of the column at a position, the last one's for the features behind it.
    pub(crate) fn name(&self, at: usize) -> &str {
        self.names.get(at).or(self.names.last()).map_or("", String::as_str)
    }

    pub(crate) fn feature_names(&self) -> Vec<String> {
        match &self.features {
            FeatureFields::Columns(columns) => columns.iter().map(|&at| self.names[at].clone()).collect(),
            FeatureFields::From(_) | FeatureFields::Row(_) => Vec::new(),
        }
    }
}

fn required(names: &[String], role: &'static str, mapped: Option<&str>, usual: &[&str]) -> Result<usize, FaultKind> {
    match mapped {
        Some(name) => named(names, role, name),
        None => recognised(names, usual).ok_or_else(|| FaultKind::MissingColumn { role, columns: listed(names) }),
    }
}

fn recognised(names: &[String], usual: &[&str]) -> Option<usize> {
    usual.iter().find_map(|word| names.iter().position(|name| name.eq_ignore_ascii_case(word)))
}

fn named(names: &[String], role: &'static str, wanted: &str) -> Result<usize, FaultKind> {
    let found = names.iter().position(|name| name == wanted);
    found.ok_or_else(|| FaultKind::UnknownColumn { role, nearest: nearest(names, wanted), columns: listed(names) })
}

fn nearest(names: &[String], wanted: &str) -> Option<String> {
    let distance = |name: &String| strsim::damerau_levenshtein(&name.to_lowercase(), &wanted.to_lowercase());
    let best = names.iter().min_by_key(|name| distance(name))?;
    (distance(best) <= wanted.chars().count().max(3) / 2).then(|| best.clone())
}

fn listed(names: &[String]) -> String {
    let mut list = names.iter().take(12).cloned().collect::<Vec<_>>().join(", ");
    if names.len() > 12 {
        list.push_str(", ...");
    }
    list
}
