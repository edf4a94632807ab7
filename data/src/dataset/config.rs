//! The `[data]` table.

use crate::error::{Error, Result};
use crate::id::{EventId, Timestamp};
use crate::stream::{EventStream, TimeUnit};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The format of a data file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// Found by content.
    #[default]
    Auto,
    /// JODIE csv: the header names one feature column while rows carry many.
    Jodie,
    /// Separated values with a header.
    Csv,
    /// `ml_*.csv` with `u, i, ts, label, idx`, its features in `ml_*.npy` and `ml_*_node.npy` beside it.
    Ml,
    /// Parquet.
    Parquet,
    /// Arrow IPC: an event stream, or a table of columns.
    Arrow,
}

/// What the stream's zero of time is: `last_update` of a node before its first event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TimeOrigin {
    /// The stream's first time.
    #[default]
    First,
    /// Zero on the file's axis, as in TGN.
    Zero,
}

impl TimeOrigin {
    /// The origin as a time of the stream.
    pub fn of(self, stream: &EventStream) -> Timestamp {
        match self {
            TimeOrigin::First if !stream.is_empty() => stream.time(EventId(0)),
            _ => Timestamp(0),
        }
    }
}

/// Which column is what; what is not named is recognised by its usual names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Columns {
    /// Source ids.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub src: Option<String>,
    /// Destination ids.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dst: Option<String>,
    /// Times.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
    /// Labels, integers from -128 to 127.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Features of the events, in this order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub features: Vec<String>,
}

/// The `[data]` table: where the events are and how to read them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DataConfig {
    /// The data file.
    pub path: PathBuf,
    /// Its format.
    pub format: Format,
    /// Whether sources and destinations have id spaces of their own; absent: found out.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "bool_or_auto")]
    pub bipartite: Option<bool>,
    /// Which column is what.
    pub columns: Columns,
    /// Features of the nodes: `.npy` `[N, D_v]` or Arrow with an `id` column.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_features: Option<PathBuf>,
    /// Unit of the file's times: `s`, `ms`, `us` or `ns`; absent: seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tick: Option<String>,
    /// What `last_update` of an untouched node is.
    pub time_origin: TimeOrigin,
}

fn bool_or_auto<'de, D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Option<bool>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Setting {
        Known(bool),
        Word(String),
    }
    match Setting::deserialize(deserializer)? {
        Setting::Known(known) => Ok(Some(known)),
        Setting::Word(word) if word == "auto" => Ok(None),
        Setting::Word(word) => Err(serde::de::Error::custom(format!("`{word}`: give true, false or \"auto\""))),
    }
}

impl DataConfig {
    /// Reads this file with everything else found out.
    pub fn of(path: impl AsRef<Path>) -> DataConfig {
        DataConfig { path: path.as_ref().to_owned(), ..DataConfig::default() }
    }

    /// The unit of the file's times.
    ///
    /// # Errors
    /// If `tick` names none.
    pub fn unit(&self) -> Result<TimeUnit> {
        let Some(tick) = &self.tick else {
            return Ok(TimeUnit::Seconds);
        };
        tick.parse()
            .map_err(|()| Error::setting("data.tick", tick, "give the unit of the file's times: s, ms, us or ns"))
    }

    /// Checks what can be checked without the file.
    ///
    /// # Errors
    /// [`Error::Setting`] names the key and the mend.
    pub fn validate(&self) -> Result<()> {
        if self.path.as_os_str().is_empty() {
            return Err(Error::setting("data.path", "\"\"", "give the file with the events"));
        }
        self.unit().map(|_| ())
    }
}
