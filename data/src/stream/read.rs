//! Opening a stream: the event file is mapped, the node file beside it too.
//!
//! All that later lookups rely on is checked here, by one pass over the integer columns (16 bytes an event).

use super::ids::{IdMap, SpaceIds, Strings};
use super::ipc::{IpcBatch, IpcFile, Kind};
use super::{Columns, EventStream, Inner, Labels, NodeFeatures, StreamMeta, check_range};
use crate::error::{Error, Result};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// Version of the file format that this build reads and writes.
pub(crate) const FORMAT_VERSION: u32 = 1;
/// Metadata key of the format version; its presence marks our files.
pub(crate) const FORMAT_KEY: &str = "tidemill.format";
/// Metadata key of [`StreamMeta`] as JSON.
pub(crate) const STREAM_KEY: &str = "tidemill.stream";
/// Metadata key of the content hash.
pub(crate) const HASH_KEY: &str = "tidemill.hash";
/// Metadata key of the rows in every record batch but the last.
pub(crate) const ROWS_KEY: &str = "tidemill.rows_per_batch";
/// Metadata key of [`NodeFileMeta`] as JSON.
pub(crate) const NODES_KEY: &str = "tidemill.nodes";

/// What the node file says of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct NodeFileMeta {
    /// Content hash of the stream it belongs to.
    pub(crate) stream: String,
    /// Whether the ids of each space are integers.
    pub(crate) integers: Vec<bool>,
}

/// The file with the nodes of a stream: `x.nodes.arrow` beside `x.arrow`.
pub(crate) fn node_path(path: &Path) -> PathBuf {
    path.with_extension("nodes.arrow")
}

impl EventStream {
    /// Opens a stream that [`EventStream::write`] wrote. Columns are mapped, not copied.
    ///
    /// # Errors
    /// If a file cannot be read, is none of ours, of another version, cut short or damaged.
    pub fn open(path: &Path) -> Result<EventStream> {
        let file = IpcFile::open(path)?;
        check_version(path, &file)?;
        let meta = read_meta(&file)?;
        let hash = file.value(HASH_KEY)?.to_owned();
        let (shift, chunks) = read_chunks(&file, &meta)?;
        let feature_dim = feature_dim(&file);
        let (ids, node_features) = read_nodes(&node_path(path), &meta, &hash)?;
        let inner = Inner {
            meta,
            shift,
            chunks,
            feature_dim,
            ids: Arc::new(ids),
            node_features,
            mapping: Some(file.mapping.clone()),
            hash: OnceLock::from(hash),
        };
        check_columns(&file, &inner)?;
        Ok(EventStream::from_inner(inner))
    }
}

fn check_version(path: &Path, file: &IpcFile) -> Result<()> {
    let Some(version) = file.metadata.get(FORMAT_KEY) else {
        return Err(Error::NotAStream { path: path.to_owned(), found: "an Arrow file of another program".into() });
    };
    match version.parse::<u32>() {
        Ok(FORMAT_VERSION) => Ok(()),
        Ok(found) => Err(Error::Version { path: path.to_owned(), found, supported: FORMAT_VERSION }),
        Err(_) => Err(file.damaged("the format version is no number")),
    }
}

fn read_meta(file: &IpcFile) -> Result<StreamMeta> {
    let meta: StreamMeta =
        serde_json::from_str(file.value(STREAM_KEY)?).map_err(|e| file.damaged(format!("metadata: {e}")))?;
    let spaces = if meta.bipartite { meta.first_destination <= meta.nodes } else { meta.first_destination == 0 };
    if !meta.tick.is_valid() || !spaces || meta.events >= u64::from(u32::MAX) {
        return Err(file.damaged("impossible metadata"));
    }
    Ok(meta)
}

fn feature_dim(file: &IpcFile) -> usize {
    file.fields
        .iter()
        .find_map(|(name, kind)| match kind {
            Kind::Rows(dim) if name == "features" => Some(*dim),
            _ => None,
        })
        .unwrap_or(0)
}

fn read_chunks(file: &IpcFile, meta: &StreamMeta) -> Result<(u32, Vec<Columns>)> {
    let size: usize = file.value(ROWS_KEY)?.parse().map_err(|_| file.damaged("rows per batch"))?;
    if !size.is_power_of_two() || size > 1 << 31 {
        return Err(file.damaged("rows per batch are no power of two"));
    }
    let mut left = meta.events as usize;
    let mut chunks = Vec::with_capacity(file.batches());
    for k in 0..file.batches() {
        let batch = file.batch(k)?;
        if batch.rows != left.min(size) || batch.rows == 0 {
            return Err(file.damaged(format!("record batch {k} has {} rows", batch.rows)));
        }
        left -= batch.rows;
        chunks.push(read_chunk(&batch)?);
    }
    if left > 0 {
        return Err(file.damaged(format!("{left} events are missing")));
    }
    Ok((size.trailing_zeros(), chunks))
}

fn read_chunk(batch: &IpcBatch<'_>) -> Result<Columns> {
    Ok(Columns {
        source: batch.numbers("src", Kind::U32)?,
        destination: batch.numbers("dst", Kind::U32)?,
        time: batch.numbers("t", Kind::I64)?,
        row: batch.numbers("row", Kind::U64)?,
        labels: batch.optional_i8("label")?.map(|(values, valid)| Labels { values, valid }),
        features: batch.rows_of_f32("features")?.map(|(rows, _)| rows),
    })
}

/// Ids within their space, times that do not decrease.
fn check_columns(file: &IpcFile, inner: &Inner) -> Result<()> {
    let meta = &inner.meta;
    let sources = if meta.bipartite { meta.first_destination } else { meta.nodes };
    let destinations = meta.first_destination..meta.nodes;
    let sound = |c: &Columns| {
        c.source.iter().all(|&n| n < sources)
            && c.destination.iter().all(|n| destinations.contains(n))
            && c.time.is_sorted()
    };
    let joined = |w: &[Columns]| w[0].time.last() <= w[1].time.first();
    if !inner.chunks.par_iter().all(sound) {
        return Err(file.damaged("a node id beyond the nodes, or times that decrease"));
    }
    if !inner.chunks.windows(2).all(joined) {
        return Err(file.damaged("times that decrease between record batches"));
    }
    let ends = |c: Option<&Columns>, end: fn(&[i64]) -> Option<&i64>| c.and_then(|c| end(&c.time).copied());
    check_range(ends(inner.chunks.first(), <[i64]>::first), ends(inner.chunks.last(), <[i64]>::last))?;
    Ok(())
}

fn read_nodes(path: &Path, meta: &StreamMeta, hash: &str) -> Result<(IdMap, Option<NodeFeatures>)> {
    let file = IpcFile::open(path)?;
    check_version(path, &file)?;
    let own: NodeFileMeta =
        serde_json::from_str(file.value(NODES_KEY)?).map_err(|e| file.damaged(format!("metadata: {e}")))?;
    if own.stream != hash {
        return Err(file.damaged("it belongs to another stream than the file beside it"));
    }
    if file.batches() != 1 || own.integers.len() != 1 + usize::from(meta.bipartite) {
        return Err(file.damaged("its structure"));
    }
    let batch = file.batch(0)?;
    if batch.rows != meta.nodes as usize {
        return Err(file.damaged(format!("{} nodes where the stream has {}", batch.rows, meta.nodes)));
    }
    let features = batch.rows_of_f32("features")?.map(|(rows, dim)| NodeFeatures { rows, dim });
    Ok((read_ids(&file, &batch, meta, &own)?, features))
}

fn read_ids(file: &IpcFile, batch: &IpcBatch<'_>, meta: &StreamMeta, own: &NodeFileMeta) -> Result<IdMap> {
    let nodes = meta.nodes as usize;
    let border = if meta.bipartite { meta.first_destination as usize } else { nodes };
    let spaces = if own.integers.iter().all(|&i| i) {
        let ids = batch.numbers::<i64>("id", Kind::I64)?;
        [ids.slice(0, border), ids.slice(border, nodes - border)].map(SpaceIds::Integers)
    } else {
        let (offsets, bytes) = batch.texts("id")?;
        let space = |from: usize, to: usize, integers: bool| {
            let texts = Strings { offsets: offsets.slice(from, to - from + 1), bytes: bytes.clone() };
            if integers { parse_ids(&texts) } else { Some(SpaceIds::Texts(texts)) }
        };
        let spaces = (space(0, border, own.integers[0]), space(border, nodes, own.integers.last() == Some(&true)));
        let (Some(source), Some(destination)) = spaces else {
            return Err(file.damaged("an id that is no integer"));
        };
        [source, destination]
    };
    if !spaces.iter().all(SpaceIds::is_ascending) {
        return Err(file.damaged("ids out of order"));
    }
    let [source, destination] = spaces;
    Ok(IdMap { source, destination: meta.bipartite.then_some(destination) })
}

fn parse_ids(texts: &Strings) -> Option<SpaceIds> {
    let ids: Option<Vec<i64>> = (0..texts.len()).map(|i| texts.get(i).parse().ok()).collect();
    Some(SpaceIds::Integers(ids?.into()))
}
