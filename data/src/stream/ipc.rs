//! The Arrow IPC file as a container of mapped buffers: only what the stream's own files need.
//!
//! Everything read from the file is checked before use (verified flatbuffers, bounds, alignment, types), so a damaged
//! file is an error and never a panic. Absent on purpose: compression, dictionaries, nested types other than rows of f32;
//! files with those are read as foreign tables, by copying (`dataset::arrow`).

use super::mapping::Mapping;
use crate::error::{Error, Result};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer, ScalarBuffer};
use arrow::datatypes::ArrowNativeType;
use arrow::ipc;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

/// First and last bytes of an Arrow IPC file.
pub(crate) const MAGIC: &[u8; 6] = b"ARROW1";

#[cfg(target_endian = "big")]
compile_error!("event streams are mapped as little-endian columns");

/// Types of columns in our files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    U8,
    U32,
    U64,
    I8,
    I64,
    Text,
    /// Rows of so many f32.
    Rows(usize),
    Other,
}

/// A mapped Arrow IPC file.
pub(crate) struct IpcFile {
    path: PathBuf,
    pub(crate) mapping: Mapping,
    map: Buffer,
    pub(crate) fields: Vec<(String, Kind)>,
    pub(crate) metadata: BTreeMap<String, String>,
    blocks: Vec<(i64, i32, i64)>,
}

/// The buffers of one record batch.
pub(crate) struct IpcBatch<'a> {
    file: &'a IpcFile,
    pub(crate) rows: usize,
    columns: Vec<RawColumn>,
}

/// Nulls and buffers of a column, the child's after its own.
#[derive(Default)]
struct RawColumn {
    nulls: i64,
    validity: Option<Buffer>,
    buffers: Vec<Buffer>,
}

impl IpcFile {
    /// Maps a file and reads its footer.
    pub(crate) fn open(path: &Path) -> Result<IpcFile> {
        let not_arrow = |found: &str| Error::NotAStream { path: path.to_owned(), found: found.to_owned() };
        let Some(mapping) = map_file(path)? else {
            return Err(not_arrow("the file is empty"));
        };
        let map = mapping.buffer();
        if !map.starts_with(MAGIC) {
            return Err(not_arrow("no Arrow file"));
        }
        let footer = footer_bytes(&map).ok_or_else(|| Error::damaged(path, "the end is missing"))?;
        let footer = ipc::root_as_footer(footer).map_err(|e| Error::damaged(path, format!("footer: {e}")))?;
        let schema = footer.schema().ok_or_else(|| Error::damaged(path, "no schema"))?;
        if schema.endianness() != ipc::Endianness::Little {
            return Err(Error::damaged(path, "big-endian columns"));
        }
        let metadata = schema.custom_metadata().into_iter().flatten();
        let metadata = metadata.filter_map(|kv| Some((kv.key()?.to_owned(), kv.value()?.to_owned()))).collect();
        let fields = schema.fields().into_iter().flatten();
        let fields = fields.map(|f| (f.name().unwrap_or_default().to_owned(), kind_of(&f))).collect();
        let blocks = footer.recordBatches().into_iter().flatten();
        let blocks = blocks.map(|b| (b.offset(), b.metaDataLength(), b.bodyLength())).collect();
        Ok(IpcFile { path: path.to_owned(), mapping, map, fields, metadata, blocks })
    }

    pub(crate) fn batches(&self) -> usize {
        self.blocks.len()
    }

    /// The metadata value of a key that our files have.
    pub(crate) fn value(&self, key: &str) -> Result<&str> {
        self.metadata.get(key).map(String::as_str).ok_or_else(|| self.damaged(format!("no `{key}` in the metadata")))
    }

    pub(crate) fn damaged(&self, what: impl Into<String>) -> Error {
        Error::damaged(&self.path, what)
    }

    /// The buffers of batch `k`, bounds checked.
    pub(crate) fn batch(&self, k: usize) -> Result<IpcBatch<'_>> {
        self.try_batch(k)
            .ok_or_else(|| self.damaged(format!("record batch {k} is broken or lies beyond the file's end")))
    }

    /// Checks that all record batches lie within the file, before another reader trusts their lengths.
    pub(crate) fn check_bodies(&self) -> Result<()> {
        let sound = |&(offset, header, body): &(i64, i32, i64)| {
            let (offset, header) = (usize::try_from(offset).ok()?, usize::try_from(header).ok()?);
            let start = offset.checked_add(header)?;
            let body = slice(&self.map, start, usize::try_from(body).ok()?)?.len();
            let header = self.map.get(offset..start)?;
            let skip = if header.starts_with(&[0xff; 4]) { 8 } else { 4 };
            let message = ipc::root_as_message(header.get(skip..)?).ok()?;
            let batch = message.header_as_record_batch()?;
            let end =
                |b: &ipc::Buffer| usize::try_from(b.offset()).ok()?.checked_add(usize::try_from(b.length()).ok()?);
            let inside = batch.buffers()?.iter().all(|b| end(b).is_some_and(|end| end <= body));
            (inside && batch.length() >= 0 && batch.nodes()?.iter().all(|n| n.length() >= 0)).then_some(())
        };
        match self.blocks.iter().position(|block| sound(block).is_none()) {
            None => Ok(()),
            Some(k) => Err(self.damaged(format!("record batch {k} is broken or lies beyond the file's end"))),
        }
    }

    fn try_batch(&self, k: usize) -> Option<IpcBatch<'_>> {
        let (offset, header, body) = self.blocks[k];
        let (offset, header) = (usize::try_from(offset).ok()?, usize::try_from(header).ok()?);
        let start = offset.checked_add(header)?;
        let body = slice(&self.map, start, usize::try_from(body).ok()?)?;
        let header = self.map.get(offset..start)?;
        let skip = if header.starts_with(&[0xff; 4]) { 8 } else { 4 };
        let message = ipc::root_as_message(header.get(skip..)?).ok()?;
        let batch = message.header_as_record_batch()?;
        if batch.compression().is_some() {
            return None;
        }
        let mut nodes = batch.nodes()?.into_iter();
        let mut buffers = batch
            .buffers()?
            .into_iter()
            .map(|b| slice(&body, usize::try_from(b.offset()).ok()?, usize::try_from(b.length()).ok()?));
        let rows = usize::try_from(batch.length()).ok()?;
        let mut columns = Vec::with_capacity(self.fields.len());
        for (_, kind) in &self.fields {
            let node = nodes.next()?;
            let mut column = RawColumn { nulls: node.null_count(), validity: buffers.next()?, buffers: Vec::new() };
            match kind {
                Kind::Other => return None,
                Kind::Rows(_) => {
                    column.nulls = column.nulls.checked_add(nodes.next()?.null_count())?;
                    let _child_validity = buffers.next()?;
                }
                Kind::Text => column.buffers.push(buffers.next()??),
                _ => {}
            }
            column.buffers.push(buffers.next()??);
            if usize::try_from(node.length()).ok()? != rows {
                return None;
            }
            columns.push(column);
        }
        Some(IpcBatch { file: self, rows, columns })
    }
}

impl IpcBatch<'_> {
    fn find(&self, name: &str, kind: Kind) -> Result<Option<&RawColumn>> {
        let Some(at) = self.file.fields.iter().position(|(n, _)| n == name) else {
            return Ok(None);
        };
        if self.file.fields[at].1 != kind {
            return Err(self.file.damaged(format!("column `{name}` has another type than {kind:?}")));
        }
        Ok(Some(&self.columns[at]))
    }

    fn present(&self, name: &str, kind: Kind) -> Result<&RawColumn> {
        let column = self.find(name, kind)?.ok_or_else(|| self.file.damaged(format!("no column `{name}`")))?;
        if column.nulls != 0 {
            return Err(self.file.damaged(format!("nulls in column `{name}`")));
        }
        Ok(column)
    }

    /// A column of numbers without nulls.
    pub(crate) fn numbers<T: ArrowNativeType>(&self, name: &str, kind: Kind) -> Result<ScalarBuffer<T>> {
        self.scalars(name, &self.present(name, kind)?.buffers[0], self.rows)
    }

    /// A column of rows of f32, if the file has it: values and width.
    pub(crate) fn rows_of_f32(&self, name: &str) -> Result<Option<(ScalarBuffer<f32>, usize)>> {
        let dim = self.file.fields.iter().find_map(|(n, kind)| match kind {
            Kind::Rows(dim) if n == name => Some(*dim),
            _ => None,
        });
        let Some(dim) = dim else { return Ok(None) };
        let column = self.present(name, Kind::Rows(dim))?;
        let len = self.rows.checked_mul(dim).ok_or_else(|| self.file.damaged(format!("width of `{name}`")))?;
        Ok(Some((self.scalars(name, &column.buffers[0], len)?, dim)))
    }

    /// A nullable column of i8, if the file has it.
    pub(crate) fn optional_i8(&self, name: &str) -> Result<Option<(ScalarBuffer<i8>, Option<NullBuffer>)>> {
        let Some(column) = self.find(name, Kind::I8)? else {
            return Ok(None);
        };
        let values = self.scalars(name, &column.buffers[0], self.rows)?;
        if column.nulls == 0 {
            return Ok(Some((values, None)));
        }
        let valid = column.validity.clone().filter(|b| b.len() >= self.rows.div_ceil(8));
        let valid = valid.ok_or_else(|| self.file.damaged(format!("column `{name}` is cut short")))?;
        Ok(Some((values, Some(NullBuffer::new(BooleanBuffer::new(valid, 0, self.rows))))))
    }

    /// A column of text: offsets (ascending, within the bytes) and bytes (UTF-8 at every entry).
    pub(crate) fn texts(&self, name: &str) -> Result<(ScalarBuffer<i64>, Buffer)> {
        let column = self.present(name, Kind::Text)?;
        let offsets: ScalarBuffer<i64> = self.scalars(name, &column.buffers[0], self.rows + 1)?;
        let bytes = column.buffers[1].clone();
        let entry = |w: &[i64]| bytes.get(usize::try_from(w[0]).ok()?..usize::try_from(w[1]).ok()?);
        if offsets.windows(2).all(|w| entry(w).is_some_and(|b| std::str::from_utf8(b).is_ok())) {
            return Ok((offsets, bytes));
        }
        Err(self.file.damaged(format!("texts in column `{name}`")))
    }

    fn scalars<T: ArrowNativeType>(&self, name: &str, buffer: &Buffer, len: usize) -> Result<ScalarBuffer<T>> {
        let bytes = len.checked_mul(size_of::<T>()).filter(|&bytes| bytes <= buffer.len());
        if bytes.is_none() || !buffer.as_ptr().cast::<T>().is_aligned() {
            return Err(self.file.damaged(format!("column `{name}` is cut short or not aligned")));
        }
        Ok(ScalarBuffer::new(buffer.clone(), 0, len))
    }
}

fn slice(buffer: &Buffer, offset: usize, len: usize) -> Option<Buffer> {
    (offset.checked_add(len)? <= buffer.len()).then(|| buffer.slice_with_length(offset, len))
}

/// The footer of a file that ends in `footer, its length as i32, magic`.
fn footer_bytes(map: &[u8]) -> Option<&[u8]> {
    let body = map.strip_suffix(MAGIC)?;
    let (body, len) = body.split_last_chunk::<4>()?;
    let len = usize::try_from(i32::from_le_bytes(*len)).ok()?;
    body.get(body.len().checked_sub(len)?..)
}

fn kind_of(field: &ipc::Field<'_>) -> Kind {
    if field.dictionary().is_some() {
        return Kind::Other;
    }
    match field.type_type() {
        ipc::Type::LargeUtf8 => Kind::Text,
        ipc::Type::Int => field.type_as_int().map_or(Kind::Other, |int| match (int.bitWidth(), int.is_signed()) {
            (8, false) => Kind::U8,
            (8, true) => Kind::I8,
            (32, false) => Kind::U32,
            (64, false) => Kind::U64,
            (64, true) => Kind::I64,
            _ => Kind::Other,
        }),
        ipc::Type::FixedSizeList => rows_kind(field).unwrap_or(Kind::Other),
        _ => Kind::Other,
    }
}

fn rows_kind(field: &ipc::Field<'_>) -> Option<Kind> {
    let dim = usize::try_from(field.type_as_fixed_size_list()?.listSize()).ok().filter(|&d| d > 0)?;
    let children = field.children()?;
    let child = (children.len() == 1).then(|| children.get(0))?;
    let float = child.type_as_floating_point()?;
    (float.precision() == ipc::Precision::SINGLE).then_some(Kind::Rows(dim))
}

/// Maps a whole file; an empty one has no mapping.
fn map_file(path: &Path) -> Result<Option<Mapping>> {
    let file = File::open(path).map_err(|e| Error::io(path, "open", e))?;
    let metadata = file.metadata().map_err(|e| Error::io(path, "open", e))?;
    if !metadata.is_file() {
        return Err(Error::NotAStream { path: path.to_owned(), found: "no regular file".into() });
    }
    if metadata.len() == 0 {
        return Ok(None);
    }
    Mapping::of(&file).map(Some).map_err(|e| Error::io(path, "map", e))
}
