//! Reading users' files: any supported format into an [`EventStream`].
//!
//! The format is found by content. Times are exact, ids may be anything, unsorted rows are sorted (stably) with a notice.
//! A fault names the file, the row (1 is the first data row), the column, the value and the mend
//! ([`crate::error::FaultKind`]).
//!
//! One file a format: separated values, JODIE's csv, Arrow tables; node features from npy or Arrow. Absent so far: Parquet,
//! zstd, xz, ISO 8601 times.

mod arrow;
mod builder;
mod config;
mod csv;
mod decimal;
mod intern;
mod jodie;
mod layout;
mod node_features;
mod source;

pub use config::{Columns, DataConfig, Format, TimeOrigin};

use crate::error::{Error, Result};
use crate::stream::EventStream;
use builder::About;
use source::Content;
use std::path::Path;

/// Reads the events, and the node features if the table names some.
///
/// * `notice`: takes a sentence about anything that was decided or changed on the way.
///
/// # Errors
/// The first fault found, or what the file is instead.
pub fn load(config: &DataConfig, notice: &mut dyn FnMut(String)) -> Result<EventStream> {
    config.validate()?;
    let about = About { name: stem(&config.path), bipartite: config.bipartite, ..About::default() };
    let stream = match (source::open(&config.path)?, config.format) {
        (Content::Arrow, Format::Auto | Format::Arrow) => arrow::load(config, about, notice)?,
        (Content::Arrow, format) => {
            return Err(Error::setting("data.format", format!("{format:?}"), "the file is Arrow; drop the key"));
        }
        (Content::Text(_), Format::Arrow) => {
            return Err(Error::NotAStream { path: config.path.clone(), found: "no Arrow file".into() });
        }
        (Content::Text(source), _) => csv::load(source, config, about, notice)?,
    };
    match &config.node_features {
        Some(path) => node_features::attach(&stream, path, notice),
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
