//! Writing a stream: `x.arrow` with the events and `x.nodes.arrow` with the nodes, each by rename.

use super::read::{FORMAT_KEY, FORMAT_VERSION, HASH_KEY, NODES_KEY, NodeFileMeta, ROWS_KEY, STREAM_KEY, node_path};
use super::{Columns, EventStream, IdSpace, SpaceIds};
use crate::error::{Error, Result};
use crate::id::NodeId;
use arrow::array::{
    ArrayRef, FixedSizeListArray, Float32Array, Int8Array, Int64Array, LargeStringArray, PrimitiveArray, RecordBatch,
    UInt8Array,
};
use arrow::buffer::ScalarBuffer;
use arrow::datatypes::{ArrowPrimitiveType, DataType, Field, Schema, UInt32Type, UInt64Type};
use arrow::error::ArrowError;
use arrow::ipc::MetadataVersion;
use arrow::ipc::writer::{FileWriter, IpcWriteOptions};
use std::collections::HashMap;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::NamedTempFile;

impl EventStream {
    /// Writes the stream to `path` and its nodes beside it (`x.nodes.arrow` for `x.arrow`).
    ///
    /// Both files appear by rename, the events last; a failure leaves no half file.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let hash = self.hash();
        let nodes = write_table(&node_path(path), &self.node_schema(&hash), std::iter::once(self.node_columns()))?;
        let written = |k: usize| self.inner.chunks[..k].last().into_iter().for_each(|c| self.inner.release_features(c));
        let chunks = self.inner.chunks.iter().enumerate().map(|(k, chunk)| {
            written(k);
            event_columns(chunk, self.inner.feature_dim)
        });
        let events = write_table(path, &self.event_schema(&hash), chunks)?;
        persist(nodes, &node_path(path))?;
        persist(events, path)
    }

    fn event_schema(&self, hash: &str) -> Schema {
        let mut fields = vec![
            Field::new("src", DataType::UInt32, false),
            Field::new("dst", DataType::UInt32, false),
            Field::new("t", DataType::Int64, false),
            Field::new("row", DataType::UInt64, false),
        ];
        if self.has_labels() {
            fields.push(Field::new("label", DataType::Int8, true));
        }
        if self.inner.feature_dim > 0 {
            fields.push(Field::new("features", rows_type(self.inner.feature_dim), false));
        }
        let meta = serde_json::to_string(&self.inner.meta).expect("plain fields");
        Schema::new_with_metadata(
            fields,
            HashMap::from([
                (FORMAT_KEY.into(), FORMAT_VERSION.to_string()),
                (STREAM_KEY.into(), meta),
                (HASH_KEY.into(), hash.to_owned()),
                (ROWS_KEY.into(), (1u64 << self.inner.shift).to_string()),
            ]),
        )
    }

    fn node_schema(&self, hash: &str) -> Schema {
        let ids = self.ids();
        let spaces = std::iter::once(&ids.source).chain(&ids.destination);
        let integers: Vec<bool> = spaces.map(|s| matches!(s, SpaceIds::Integers(_))).collect();
        let id_type = if integers.iter().all(|&i| i) { DataType::Int64 } else { DataType::LargeUtf8 };
        let mut fields = vec![Field::new("id", id_type, false), Field::new("space", DataType::UInt8, false)];
        if self.node_feature_dim() > 0 {
            fields.push(Field::new("features", rows_type(self.node_feature_dim()), false));
        }
        let meta = NodeFileMeta { stream: hash.to_owned(), integers };
        let meta = serde_json::to_string(&meta).expect("plain fields");
        Schema::new_with_metadata(
            fields,
            HashMap::from([(FORMAT_KEY.into(), FORMAT_VERSION.to_string()), (NODES_KEY.into(), meta)]),
        )
    }

    /// Raw ids, id space (0: sources or shared, 1: destinations) and features of all nodes.
    fn node_columns(&self) -> Vec<ArrayRef> {
        let ids = self.ids();
        let all = || (0..self.nodes()).map(NodeId);
        let id: ArrayRef = match (&ids.source, &ids.destination) {
            (SpaceIds::Integers(a), None) => Arc::new(Int64Array::new(a.clone(), None)),
            (SpaceIds::Integers(a), Some(SpaceIds::Integers(b))) => {
                Arc::new(Int64Array::from_iter_values(a.iter().chain(b.iter()).copied()))
            }
            _ => Arc::new(LargeStringArray::from_iter_values(all().map(|n| ids.raw(n).to_string()))),
        };
        let space = UInt8Array::from_iter_values(all().map(|n| u8::from(ids.space(n) == IdSpace::Destination)));
        let mut columns: Vec<ArrayRef> = vec![id, Arc::new(space)];
        columns.extend(self.inner.node_features.as_ref().map(|f| rows_of_f32(&f.rows, f.dim)));
        columns
    }
}

fn rows_type(dim: usize) -> DataType {
    DataType::FixedSizeList(Arc::new(Field::new("item", DataType::Float32, false)), dim as i32)
}

fn rows_of_f32(rows: &ScalarBuffer<f32>, dim: usize) -> ArrayRef {
    let item = Arc::new(Field::new("item", DataType::Float32, false));
    Arc::new(FixedSizeListArray::new(item, dim as i32, Arc::new(Float32Array::new(rows.clone(), None)), None))
}

fn numbers<T: ArrowPrimitiveType>(values: &ScalarBuffer<T::Native>) -> ArrayRef {
    Arc::new(PrimitiveArray::<T>::new(values.clone(), None))
}

fn event_columns(chunk: &Columns, feature_dim: usize) -> Vec<ArrayRef> {
    let mut columns: Vec<ArrayRef> = vec![
        numbers::<UInt32Type>(&chunk.source),
        numbers::<UInt32Type>(&chunk.destination),
        Arc::new(Int64Array::new(chunk.time.clone(), None)),
        numbers::<UInt64Type>(&chunk.row),
    ];
    if let Some(labels) = &chunk.labels {
        columns.push(Arc::new(Int8Array::new(labels.values.clone(), labels.valid.clone())));
    }
    columns.extend(chunk.features.as_ref().map(|rows| rows_of_f32(rows, feature_dim)));
    columns
}

/// Writes a table to a temporary file beside its place: uncompressed, every buffer on a 64-byte border.
fn write_table(path: &Path, schema: &Schema, batches: impl Iterator<Item = Vec<ArrayRef>>) -> Result<NamedTempFile> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    let file = temporary(&folder).map_err(|e| Error::io(path, "create", e))?;
    let arrow = |source: ArrowError| match source {
        ArrowError::IoError(_, source) => Error::io(path, "write", source),
        source => Error::Arrow { path: path.to_owned(), doing: "write", source },
    };
    let schema = Arc::new(schema.clone());
    let options = IpcWriteOptions::try_new(64, false, MetadataVersion::V5).map_err(arrow)?;
    let mut writer = FileWriter::try_new_with_options(BufWriter::new(file), &schema, options).map_err(arrow)?;
    for columns in batches {
        writer.write(&RecordBatch::try_new(schema.clone(), columns).map_err(arrow)?).map_err(arrow)?;
    }
    let mut buffered = writer.into_inner().map_err(arrow)?;
    buffered.flush().map_err(|e| Error::io(path, "write", e))?;
    let file = buffered.into_inner().map_err(|e| Error::io(path, "write", e.into_error()))?;
    file.as_file().sync_all().map_err(|e| Error::io(path, "write", e))?;
    Ok(file)
}

/// Gives a finished file its name.
fn persist(file: NamedTempFile, path: &Path) -> Result<()> {
    file.persist(path).map_err(|e| Error::io(path, "rename to", e.error))?;
    Ok(())
}

/// A temporary file beside its final place, with the permissions that a plain file would get.
pub(crate) fn temporary(folder: &Path) -> std::io::Result<tempfile::NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".tidemill-").suffix(".partial");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    builder.tempfile_in(folder)
}
