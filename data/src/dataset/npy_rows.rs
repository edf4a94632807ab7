//! Rows of an npy matrix by number, read block by block: the features beside `ml_*.csv`.

use crate::error::{Error, Fault, FaultKind, Result};
use crate::npy;
use npyz::{DType, Order};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes read at once.
const BLOCK: usize = 1 << 20;

/// A matrix `[rows, dim]` of f32 or f64 in C order.
#[derive(Debug)]
pub(crate) struct NpyRows {
    path: PathBuf,
    file: File,
    /// Where the values start.
    start: u64,
    double: bool,
    pub(crate) rows: u64,
    pub(crate) dim: usize,
    /// First row of the block, and its bytes.
    block: (u64, Vec<u8>),
    row: Vec<f32>,
}

impl NpyRows {
    /// Opens a matrix.
    ///
    /// # Errors
    /// If the file is no such matrix or is cut short.
    pub(crate) fn open(path: &Path) -> Result<NpyRows> {
        let file = File::open(path).map_err(|e| Error::io(path, "open", e))?;
        let size = file.metadata().map_err(|e| Error::io(path, "open", e))?.len();
        let unfit = |what: &str| -> Error {
            Fault::of_file(path, FaultKind::Damaged { what: format!("npy of features: {what}") }).into()
        };
        let npy = npy::open(&file).map_err(|e| unfit(&format!("its header ({e})")))?;
        let header = npy.header().clone();
        let start = npy::values_start(npy).ok_or_else(|| unfit("its header"))?;
        let kind = match header.dtype() {
            DType::Plain(plain) => plain.to_string(),
            _ => "a record".into(),
        };
        let double = match kind.as_str() {
            "<f4" => false,
            "<f8" => true,
            other => return Err(unfit(&format!("values of type {other}, not float32 or float64"))),
        };
        let [rows, dim] = *header.shape() else {
            return Err(unfit(&format!("shape {:?}, not [rows, features]", header.shape())));
        };
        if header.order() != Order::C || dim == 0 || dim > 1 << 20 {
            return Err(unfit("Fortran order, no features, or more than 2^20"));
        }
        let width = dim * if double { 8 } else { 4 };
        if rows.checked_mul(width).and_then(|n| n.checked_add(start)).is_none_or(|end| end > size) {
            return Err(unfit("it is cut short"));
        }
        let (block, row) = ((0, Vec::new()), Vec::new());
        Ok(NpyRows { path: path.to_owned(), file, start, double, rows, dim: dim as usize, block, row })
    }

    fn width(&self) -> usize {
        self.dim * if self.double { 8 } else { 4 }
    }

    /// A row's values.
    ///
    /// # Errors
    /// If the file cannot be read.
    ///
    /// # Panics
    /// If there is no such row.
    pub(crate) fn row(&mut self, at: u64) -> Result<&[f32]> {
        assert!(at < self.rows, "a row of the matrix");
        let width = self.width();
        let held = (self.block.1.len() / width) as u64;
        if !(self.block.0..self.block.0 + held).contains(&at) {
            let count = ((BLOCK / width).max(1) as u64).min(self.rows - at);
            self.block.1.resize(count as usize * width, 0);
            self.block.0 = at;
            let offset = self.start + at * width as u64;
            self.file.read_exact_at(&mut self.block.1, offset).map_err(|e| Error::io(&self.path, "read", e))?;
        }
        let bytes = &self.block.1[(at - self.block.0) as usize * width..][..width];
        self.row.clear();
        if self.double {
            let double = |b: &[u8; 8]| f64::from_le_bytes(*b) as f32;
            self.row.extend(bytes.as_chunks().0.iter().map(double));
        } else {
            self.row.extend(bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)));
        }
        Ok(&self.row)
    }
}
