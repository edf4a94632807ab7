//! Reading users' files: any supported format into an [`EventStream`].
//!
//! The format is found by content. Times are exact, ids may be anything, unsorted rows are sorted (stably) with a notice.
//! A fault names the file, the row (1 is the first data row), the column, the value and the mend
//! ([`crate::error::FaultKind`]).
//!
//! One file a format: separated values (with what is special of JODIE's csv and of `ml_*.csv` with npy files beside), Arrow
//! and Parquet tables; node features from npy or Arrow. Any text may be packed by gzip, zstd or xz. Integer columns are
//! held in memory (about 40 bytes an event while sorting), features beyond 256 MiB in an unnamed temporary file.

mod arrow;
mod builder;
mod check;
mod config;
mod csv;
mod decimal;
mod feature_rows;
mod intern;
mod iso;
mod jodie;
mod layout;
mod node_features;
mod npy_rows;
mod session;
mod source;
mod table;

pub use check::{Finding, Place, Report, check};
pub use config::{Columns, DataConfig, Format, TimeOrigin};
pub use session::Watch;

use crate::error::{Error, Result};
use crate::stream::EventStream;
use builder::About;
use session::{Faults, Session};
use source::Content;
use std::path::Path;

/// Reads the events, and the node features if the table names some.
///
/// * `notice`: takes a sentence about anything that was decided or changed on the way.
///
/// # Errors
/// The first fault found, or what the file is instead.
pub fn load(config: &DataConfig, notice: &mut dyn FnMut(String)) -> Result<EventStream> {
    load_watched(config, Watch { notice, progress: &mut |_, _| {}, scratch: None })
}

/// [`load`] with progress told and a place for what does not fit memory.
///
/// # Errors
/// As [`load`].
pub fn load_watched(config: &DataConfig, watch: Watch<'_>) -> Result<EventStream> {
    config.validate()?;
    let mut session = Session::new(watch, Faults::EndAtFirst);
    read(config, source::open(&config.path)?, &mut session)
}

/// Reads an opened file.
fn read(config: &DataConfig, content: Content, session: &mut Session<'_>) -> Result<EventStream> {
    let about = About { name: stem(&config.path), bipartite: config.bipartite, ..About::default() };
    let drop_key = |what| {
        Error::setting("data.format", format!("{:?}", config.format), format!("the file is {what}; drop the key"))
    };
    let mut beside = None;
    let stream = match (content, config.format) {
        (Content::Arrow, Format::Auto | Format::Arrow) => arrow::load(config, about, session)?,
        (Content::Parquet, Format::Auto | Format::Parquet) => {
            arrow::load_table(config, about, session, table::Table::open_parquet)?
        }
        (Content::Arrow, _) => return Err(drop_key("Arrow")),
        (Content::Parquet, _) => return Err(drop_key("Parquet")),
        (Content::Text(_), Format::Arrow | Format::Parquet) => return Err(drop_key("text")),
        (Content::Text(source), _) => {
            let stream = csv::load(source, config, about, session)?;
            beside = csv::node_features_beside(&config.path).filter(|_| stream.feature_dim() > 0);
            stream
        }
    };
    match config.node_features.as_ref().or(beside.as_ref()) {
        Some(path) => node_features::attach(&stream, path, session.notice),
        None => Ok(stream),
    }
}

/// The file's name up to its first dot.
fn stem(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.split('.').find(|part| !part.is_empty()).unwrap_or("stream").to_owned()
}

#[cfg(test)]
pub(crate) mod tests;
