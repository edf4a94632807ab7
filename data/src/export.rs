//! Export.
use crate::error::Result;
use crate::stream::{EventStream, TimeUnit};
use std::path::Path;

/// Writes a csv.
///
/// # Errors
/// x
pub fn write_csv(_stream: &EventStream, _path: &Path, _unit: TimeUnit) -> Result<()> {
    unimplemented!()
}
