//! Tables of other programs, Arrow IPC or Parquet, as record batches.
//!
//! The readers of both check what they read; where a damaged file makes one panic, the panic is caught and told as damage.

use crate::error::{Error, Fault, FaultKind, Result};
use crate::stream::ipc::IpcFile;
use arrow::array::{Array, ArrayRef, AsArray, Float32Array, RecordBatch};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Float32Type, SchemaRef};
use arrow::error::ArrowError;
use arrow::ipc::reader::FileReader;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};
use std::fs::File;
use std::io::BufReader;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// Rows of a batch read from Parquet.
const BATCH: usize = 1 << 14;

/// A file of record batches.
pub(crate) struct Table {
    path: PathBuf,
    pub(crate) schema: SchemaRef,
    reader: Batches,
    /// Rows that the file says it has, where it says so.
    pub(crate) rows: Option<u64>,
}

enum Batches {
    Arrow(FileReader<BufReader<File>>),
    Parquet(ParquetRecordBatchReader),
}

impl Table {
    /// Opens an Arrow IPC file.
    pub(crate) fn open(path: &Path) -> Result<Table> {
        IpcFile::open(path)?.check_bodies()?;
        let file = File::open(path).map_err(|e| Error::io(path, "open", e))?;
        let reader = guarded(path, || FileReader::try_new(BufReader::new(file), None))?;
        Ok(Table { path: path.to_owned(), schema: reader.schema(), reader: Batches::Arrow(reader), rows: None })
    }

    /// Opens a Parquet file.
    pub(crate) fn open_parquet(path: &Path) -> Result<Table> {
        let file = File::open(path).map_err(|e| Error::io(path, "open", e))?;
        let (schema, rows, reader) = guarded(path, || {
            let builder = ParquetRecordBatchReaderBuilder::try_new(file)?.with_batch_size(BATCH);
            let rows = builder.metadata().file_metadata().num_rows();
            Ok((builder.schema().clone(), rows, builder.build()?))
        })?;
        let rows = u64::try_from(rows).ok();
        Ok(Table { path: path.to_owned(), schema, reader: Batches::Parquet(reader), rows })
    }

    pub(crate) fn next(&mut self) -> Result<Option<RecordBatch>> {
        let Table { path, reader, .. } = self;
        guarded(path, || match reader {
            Batches::Arrow(reader) => reader.next().transpose(),
            Batches::Parquet(reader) => reader.next().transpose(),
        })
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.schema.fields().iter().map(|f| f.name().clone()).collect()
    }
}

/// Runs a reader of foreign files.
fn guarded<T>(path: &Path, read: impl FnOnce() -> std::result::Result<T, ArrowError>) -> Result<T> {
    let damaged = |what: String| Fault::of_file(path, FaultKind::Damaged { what }).into();
    match catch_unwind(AssertUnwindSafe(read)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(ArrowError::IoError(_, source))) if source.raw_os_error().is_some() => {
            Err(Error::io(path, "read", source))
        }
        Ok(Err(source)) => Err(damaged(source.to_string())),
        Err(_) => Err(damaged("its reader gave up".into())),
    }
}

/// Some columns of a batch, as one row-major matrix of f32.
pub(crate) struct FloatRows {
    columns: Vec<(String, Float32Array, usize)>,
    pub(crate) dim: usize,
}

impl FloatRows {
    pub(crate) fn of(batch: &RecordBatch, columns: &[usize], path: &Path) -> Result<FloatRows> {
        let take = |&at: &usize| {
            let name = batch.schema_ref().field(at).name().clone();
            let (values, width) = flattened(batch.column(at));
            let values = cast(&values, &DataType::Float32, path, &name, "features")?;
            Ok((name, values.as_primitive::<Float32Type>().clone(), width))
        };
        let columns = columns.iter().map(take).collect::<Result<Vec<_>>>()?;
        Ok(FloatRows { dim: columns.iter().map(|(_, _, width)| width).sum(), columns })
    }

    /// Gives the values of a row to `push`.
    ///
    /// # Errors
    /// Column and text of a value that is null or not finite.
    pub(crate) fn row(&self, row: usize, mut push: impl FnMut(f32)) -> std::result::Result<(), (&str, String)> {
        for (name, values, width) in &self.columns {
            for at in row * width..(row + 1) * width {
                if values.is_null(at) {
                    return Err((name, "null".into()));
                }
                let value = values.value(at);
                if !value.is_finite() {
                    return Err((name, value.to_string()));
                }
                push(value);
            }
        }
        Ok(())
    }

    /// Appends all rows.
    pub(crate) fn push_to(&self, out: &mut Vec<f32>, path: &Path, first_row: u64) -> Result<()> {
        let rows = self.columns.first().map_or(0, |(_, values, width)| values.len() / (*width).max(1));
        for row in 0..rows {
            self.row(row, |value| out.push(value)).map_err(|(name, value)| {
                let fault = Fault::of_file(path, FaultKind::FeatureNotFinite);
                fault.at(Some(first_row + row as u64), name, value.as_bytes())
            })?;
        }
        Ok(())
    }
}

/// The values of a column of lists of one length, end to end, and that length; any other column as it is.
fn flattened(column: &ArrayRef) -> (ArrayRef, usize) {
    if column.null_count() > 0 || column.is_empty() {
        return (column.clone(), 1);
    }
    if let Some(list) = column.as_fixed_size_list_opt() {
        let width = list.value_length() as usize;
        return (list.values().slice(list.value_offset_at(0), list.len() * width), width);
    }
    let even = |offsets: Vec<usize>, values: &ArrayRef| {
        let width = offsets[1] - offsets[0];
        let all = offsets.windows(2).all(|w| w[1] - w[0] == width);
        all.then(|| (values.slice(offsets[0], width * (offsets.len() - 1)), width))
    };
    let lists = match column.data_type() {
        DataType::List(_) => {
            let list = column.as_list::<i32>();
            even(list.value_offsets().iter().map(|&o| o as usize).collect(), list.values())
        }
        DataType::LargeList(_) => {
            let list = column.as_list::<i64>();
            even(list.value_offsets().iter().map(|&o| o as usize).collect(), list.values())
        }
        _ => None,
    };
    lists.unwrap_or_else(|| (column.clone(), 1))
}

/// Casts a column; a value that does not fit is an error.
pub(crate) fn cast(column: &ArrayRef, to: &DataType, path: &Path, name: &str, role: &'static str) -> Result<ArrayRef> {
    let options = CastOptions { safe: false, ..CastOptions::default() };
    cast_with_options(column, to, &options).map_err(|_| {
        let kind = FaultKind::ColumnType { role, found: column.data_type().to_string() };
        Fault { column: Some(name.to_owned()), ..Fault::of_file(path, kind) }.into()
    })
}
