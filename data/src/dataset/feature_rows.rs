//! The features of a file while it is read: in memory while they are few, then in an unnamed temporary file.
//!
//! So a file of any size is read within bounded memory. The temporary file has no name: it vanishes with its last user,
//! however the process ends.

use crate::error::{Error, Result};
use crate::stream::Mapping;
use arrow::buffer::Buffer;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Values kept in memory before the first is written out: 256 MiB.
const MOST_IN_MEMORY: usize = 64 << 20;
/// Values gathered between two writes: 8 MiB.
const BLOCK: usize = 2 << 20;

/// Rows of `dim` values, in file order.
#[derive(Debug)]
pub(crate) struct FeatureRows {
    pub(crate) dim: usize,
    /// The rows that are not in the file; the last may be unfinished.
    recent: Vec<f32>,
    spilled: Option<Spill>,
    scratch: PathBuf,
    most_in_memory: usize,
}

#[derive(Debug)]
struct Spill {
    file: File,
    rows: usize,
}

/// Features in event order.
pub(crate) struct FeatureBuffer {
    pub(crate) rows: Buffer,
    pub(crate) mapping: Option<Mapping>,
}

impl FeatureRows {
    /// * `scratch`: the folder of the temporary file.
    pub(crate) fn new(scratch: &Path) -> FeatureRows {
        let scratch = scratch.to_owned();
        FeatureRows { dim: 0, recent: Vec::new(), spilled: None, scratch, most_in_memory: MOST_IN_MEMORY }
    }

    /// The same, with another bound of the memory.
    #[cfg(test)]
    pub(crate) fn with_bound(scratch: &Path, most_in_memory: usize) -> FeatureRows {
        FeatureRows { most_in_memory, ..FeatureRows::new(scratch) }
    }

    pub(crate) fn push(&mut self, value: f32) {
        self.recent.push(value);
    }

    pub(crate) fn extend(&mut self, values: &[f32]) {
        self.recent.extend_from_slice(values);
    }

    /// Drops what was pushed beyond `rows` whole rows.
    pub(crate) fn truncate(&mut self, rows: usize) {
        let written = self.spilled.as_ref().map_or(0, |s| s.rows);
        self.recent.truncate((rows - written) * self.dim);
    }

    /// Ends a row; writes out if there is much.
    ///
    /// # Errors
    /// If the temporary file cannot be written, as on a full disk.
    #[inline]
    pub(crate) fn end_row(&mut self) -> Result<()> {
        let bound = if self.spilled.is_some() { BLOCK.min(self.most_in_memory) } else { self.most_in_memory };
        if self.recent.len() < bound { Ok(()) } else { self.write_out() }
    }

    fn write_out(&mut self) -> Result<()> {
        let scratch = self.scratch.clone();
        let failed = |e| Error::io(scratch.clone(), "write features to a temporary file in", e);
        let spill = match &mut self.spilled {
            Some(spill) => spill,
            none => none.insert(Spill { file: tempfile::tempfile_in(&scratch).map_err(failed)?, rows: 0 }),
        };
        spill.file.write_all(bytemuck::cast_slice(&self.recent)).map_err(failed)?;
        spill.rows += self.recent.len() / self.dim;
        self.recent.clear();
        self.recent.shrink_to(BLOCK);
        Ok(())
    }

    /// All rows in the given order; in file order without one.
    ///
    /// # Errors
    /// If the temporary file cannot be written or read.
    pub(crate) fn finish(mut self, order: Option<&[u32]>) -> Result<Option<FeatureBuffer>> {
        if self.dim == 0 {
            return Ok(None);
        }
        if self.spilled.is_some() && !self.recent.is_empty() {
            self.write_out()?;
        }
        let FeatureRows { dim, recent, spilled, scratch, .. } = self;
        let Some(spill) = spilled else {
            let rows = match order {
                Some(order) => order.iter().flat_map(|&r| &recent[r as usize * dim..][..dim]).copied().collect(),
                None => recent,
            };
            return Ok(Some(FeatureBuffer { rows: Buffer::from_vec(rows), mapping: None }));
        };
        let failed = |e| Error::io(&scratch, "write features to a temporary file in", e);
        let file = match order {
            Some(order) => reordered(&spill.file, order, dim, &scratch).map_err(failed)?,
            None => spill.file,
        };
        let mapping = Mapping::of(&file).map_err(failed)?;
        Ok(Some(FeatureBuffer { rows: mapping.buffer(), mapping: Some(mapping) }))
    }
}

/// A second temporary file with the rows in another order.
fn reordered(file: &File, order: &[u32], dim: usize, scratch: &Path) -> std::io::Result<File> {
    let mut writer = BufWriter::with_capacity(4 * BLOCK, tempfile::tempfile_in(scratch)?);
    let width = dim * size_of::<f32>();
    let mut row = vec![0u8; width];
    for &at in order {
        file.read_exact_at(&mut row, u64::from(at) * width as u64)?;
        writer.write_all(&row)?;
    }
    writer.into_inner().map_err(std::io::IntoInnerError::into_error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(buffer: FeatureBuffer) -> Vec<f32> {
        bytemuck::cast_slice(&buffer.rows).to_vec()
    }

    #[test]
    fn spilled_rows_are_the_rows() {
        let folder = tempfile::tempdir().unwrap();
        let order: Vec<u32> = (0..100).rev().collect();
        for order in [None, Some(&order[..])] {
            let [kept, spilled] = [1_000_000, 7].map(|bound| {
                let mut rows = FeatureRows::with_bound(folder.path(), bound);
                rows.dim = 3;
                for row in 0..100 {
                    rows.extend(&[row as f32, 0.5, -1.0]);
                    rows.push(99.0);
                    rows.truncate(row + 1);
                    rows.end_row().unwrap();
                }
                assert_eq!(rows.spilled.is_some(), bound == 7);
                values(rows.finish(order).unwrap().unwrap())
            });
            assert_eq!(kept.len(), 300);
            assert_eq!(kept, spilled);
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "temporary files have no name");
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_named() {
        let mut rows = FeatureRows::with_bound(Path::new("/nonexistent/scratch"), 1);
        rows.dim = 1;
        rows.push(1.0);
        let error = rows.end_row().unwrap_err().to_string();
        assert!(error.contains("/nonexistent/scratch") && error.contains("temporary file"), "{error}");
    }
}
