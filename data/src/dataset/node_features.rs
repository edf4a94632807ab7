//! Features of the nodes: `.npy` `[N, D_v]`, or an Arrow table with an `id` column.
//!
//! Rows of an npy file are nodes in dense order if there are exactly N, or else raw integer ids (row 0 is then often
//! padding). An Arrow table names the nodes: `ID`, `src:ID` or `dst:ID` as in lists of nodes, or an extra `space`.

use super::table::{FloatRows, Table, cast};
use crate::error::{Error, Fault, FaultKind, Result};
use crate::id::NodeId;
use crate::npy::{self, NpyArray};
use crate::stream::{Endpoint, EventStream, RawId, ipc};
use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Int64Type};
use npyz::{DType, Order};
use std::fs::File;
use std::io::{BufReader, Read, Seek};
use std::path::Path;

/// The stream with the features of a file.
pub(crate) fn attach(stream: &EventStream, path: &Path, notice: &mut dyn FnMut(String)) -> Result<EventStream> {
    let mut magic = [0u8; 6];
    let mut file = File::open(path).map_err(|e| Error::io(path, "open", e))?;
    let read = file.read(&mut magic).map_err(|e| Error::io(path, "read", e))?;
    let (rows, dim) = match &magic[..read] {
        m if m == ipc::MAGIC => from_arrow(stream, path, notice)?,
        b"\x93NUMPY" => from_npy(stream, path, file, notice)?,
        _ => {
            return Err(unfit(path, "neither npy nor Arrow; save the node features as one of them"));
        }
    };
    stream.with_node_features(rows, dim).map_err(|error| match error {
        Error::Shape { expected, found, .. } => unfit(path, format!("expected {expected}, got {found}")),
        other => other,
    })
}

fn unfit(path: &Path, what: impl Into<String>) -> Error {
    Fault::of_file(path, FaultKind::NodeFeatures { what: what.into() }).into()
}

fn from_npy(
    stream: &EventStream,
    path: &Path,
    mut file: File,
    notice: &mut dyn FnMut(String),
) -> Result<(Vec<f32>, usize)> {
    let size = file.metadata().map_err(|e| Error::io(path, "read", e))?.len();
    file.rewind().map_err(|e| Error::io(path, "read", e))?;
    let npy = npy::open(BufReader::new(file)).map_err(|e| damaged(path, &e))?;
    let (count, dim) = match *npy.shape() {
        [count] => (count, 1),
        [count, dim] => (count, dim),
        _ => return Err(unfit(path, format!("shape {:?}; give [nodes, features]", npy.shape()))),
    };
    // an item takes at least a byte: no allocation beyond the file's own size
    if npy.order() != Order::C || count.checked_mul(dim).is_none_or(|n| n > size) || dim == 0 {
        return Err(unfit(
            path,
            format!("shape [{count}, {dim}] in Fortran order, empty or cut short; save it again in C order"),
        ));
    }
    let values = read_values(path, npy)?;
    let dim = dim as usize;
    arrange(stream, path, &values, count as usize, dim, notice).map(|rows| (rows, dim))
}

fn damaged(path: &Path, error: &std::io::Error) -> Error {
    unfit(path, format!("the npy file is damaged or cut short ({error}); save it again"))
}

fn read_values(path: &Path, npy: NpyArray<BufReader<File>>) -> Result<Vec<f32>> {
    let broken = |error| damaged(path, &error);
    let dtype = npy.dtype();
    let kind = match &dtype {
        DType::Plain(plain) => plain.to_string(),
        _ => "a record".into(),
    };
    match kind.trim_start_matches(['<', '>', '|', '=']) {
        "f4" => npy.into_vec::<f32>().map_err(broken),
        "f8" => Ok(npy.into_vec::<f64>().map_err(broken)?.into_iter().map(|x| x as f32).collect()),
        "i8" => Ok(npy.into_vec::<i64>().map_err(broken)?.into_iter().map(|x| x as f32).collect()),
        "i4" => Ok(npy.into_vec::<i32>().map_err(broken)?.into_iter().map(|x| x as f32).collect()),
        _ => Err(unfit(path, format!("values of type {kind}; save them as float32"))),
    }
}

/// Rows by dense node id, from rows in dense order or by raw id.
fn arrange(
    stream: &EventStream,
    path: &Path,
    values: &[f32],
    count: usize,
    dim: usize,
    notice: &mut dyn FnMut(String),
) -> Result<Vec<f32>> {
    let nodes = stream.nodes() as usize;
    if count == nodes {
        return Ok(values.to_vec());
    }
    let row_of = |node: NodeId| match stream.ids().raw(node) {
        RawId::Integer(id) => usize::try_from(id).ok().filter(|&row| row < count),
        RawId::Text(_) => None,
    };
    let rows: Option<Vec<usize>> = (0..stream.nodes()).map(|n| row_of(NodeId(n))).collect();
    let distinct = |rows: &[usize]| rows.iter().collect::<std::collections::HashSet<_>>().len() == rows.len();
    let Some(rows) = rows.filter(|rows| distinct(rows)) else {
        return Err(unfit(
            path,
            format!("{count} rows for {nodes} nodes; give one row a node, or one for each raw id from 0"),
        ));
    };
    notice(format!("node features: row = raw id, {} of {count} rows are used", rows.len()));
    Ok(rows.iter().flat_map(|&row| &values[row * dim..(row + 1) * dim]).copied().collect())
}

fn from_arrow(stream: &EventStream, path: &Path, notice: &mut dyn FnMut(String)) -> Result<(Vec<f32>, usize)> {
    let mut table = Table::open(path)?;
    let position = |name: &str| table.schema.fields().iter().position(|f| f.name() == name);
    let id = position("id").ok_or_else(|| unfit(path, "no column `id`; add the nodes' ids"))?;
    let space = position("space");
    let columns: Vec<usize> = (0..table.schema.fields().len()).filter(|at| *at != id && Some(*at) != space).collect();
    if columns.is_empty() {
        return Err(unfit(path, "no feature columns beside `id`"));
    }
    let (mut rows, mut dim, mut first) = (Vec::new(), 0, 1u64);
    let mut place = vec![None; stream.nodes() as usize];
    let mut unknown = 0usize;
    while let Some(batch) = table.next()? {
        let features = FloatRows::of(&batch, &columns, path)?;
        dim = features.dim;
        features.push_to(&mut rows, path, first)?;
        for (row, node) in nodes_of(stream, path, &batch, id, space)?.into_iter().enumerate() {
            match node {
                Some(node) => place[node.index()] = Some(first as usize - 1 + row),
                None => unknown += 1,
            }
        }
        first += batch.num_rows() as u64;
    }
    if unknown > 0 {
        notice(format!("node features: {unknown} rows name no node of the stream and are not used"));
    }
    let mut arranged = Vec::with_capacity(place.len() * dim);
    for (node, row) in place.into_iter().enumerate() {
        let raw = || stream.ids().raw(NodeId(node as u32));
        let row = row.ok_or_else(|| unfit(path, format!("no row for node `{}`; add it", raw())))?;
        arranged.extend_from_slice(&rows[row * dim..(row + 1) * dim]);
    }
    Ok((arranged, dim))
}

fn nodes_of(
    stream: &EventStream,
    path: &Path,
    batch: &RecordBatch,
    id: usize,
    space: Option<usize>,
) -> Result<Vec<Option<NodeId>>> {
    let ids = cast(batch.column(id), &DataType::LargeUtf8, path, "id", "id")?;
    let spaces = match space {
        Some(at) => Some(cast(batch.column(at), &DataType::Int64, path, "space", "space")?),
        None => None,
    };
    let end = |row: usize| {
        let spaces = spaces.as_ref()?.as_primitive::<Int64Type>();
        Some(if spaces.is_valid(row) && spaces.value(row) == 1 { Endpoint::Destination } else { Endpoint::Source })
    };
    let find = |(row, id): (usize, Option<&str>)| match (id, end(row)) {
        (Some(id), Some(end)) => stream.ids().find(end, id),
        (Some(id), None) => stream.ids().find_entry(id).ok(),
        (None, _) => None,
    };
    Ok(ids.as_string::<i64>().iter().enumerate().map(find).collect())
}
