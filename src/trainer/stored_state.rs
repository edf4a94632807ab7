//! A node state kept in files instead of on the heap: of the best epoch, of a pass that will be undone, of a checkpoint.
//!
//! Memory and mail of many nodes are the largest thing a run holds, and it must not hold them twice. So a copy is written part
//! by part to unnamed files, which are then mapped: the kernel may drop the pages whenever it wants, and the files vanish with
//! the copy or the process. A checkpoint's arrays are such a copy as they stand.
//!
//! Invariants: what is restored is what was stored, to the bit; arrays are in node order, mails in a node's order.
//! Absent on purpose: durability. That is the checkpoint store's business.

use super::archive::{Archive, Array, ArrayData, Element};
use crate::error::{Error, Result};
use crate::memory::{Mail, NodeMemory, NodeState, PART};
use crate::pipeline::wire::bytes_of;
use memmap2::Mmap;
use safetensors::tensor::Dtype;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use tch::{Device, Kind, Tensor};
use tidemill_data::id::{EventId, NodeId, Timestamp};

/// A stored node state: arrays by name.
pub(super) struct StoredState {
    arrays: BTreeMap<String, Array>,
}

impl StoredState {
    /// Stores the state of all nodes in unnamed files of `folder`.
    ///
    /// # Errors
    /// If a file can not be made, written or mapped, as on a full disk.
    pub(super) fn of(memory: &NodeMemory, folder: &Path) -> Result<StoredState> {
        store(memory, folder).map_err(Error::io("write a copy of the node state to", folder))
    }

    /// The arrays of `archive` whose names begin with `prefix` and a dot.
    pub(super) fn from_archive(archive: &Archive, prefix: &str) -> StoredState {
        let own = |name: &str| Some(name.strip_prefix(prefix)?.strip_prefix('.')?.to_owned());
        let arrays = archive.tensors.iter().filter_map(|(name, array)| Some((own(name)?, array.clone())));
        StoredState { arrays: arrays.collect() }
    }

    /// Puts the arrays into an archive, `prefix` and a dot before their names.
    pub(super) fn put(&self, archive: &mut Archive, prefix: &str) {
        for (name, array) in &self.arrays {
            archive.insert_array(format!("{prefix}.{name}"), array.clone());
        }
    }

    /// Gives `memory` the stored state of its own nodes; those of other ranks are passed over.
    ///
    /// # Errors
    /// If an array is absent, of another kind or of another shape than `memory` needs, as in a damaged checkpoint.
    pub(super) fn restore(&self, memory: &mut NodeMemory) -> Result<()> {
        let listed = self.arrays.get("node").map(|array| array.shape().first().copied().unwrap_or(0));
        let nodes = listed.unwrap_or(memory.shape().nodes);
        // rows of no width take no bytes, so nothing tells how many were stored
        let rows = (memory.shape().memory_dim > 0).then_some("memory");
        for name in rows.into_iter().chain(["last_update", "mail_count"]) {
            let found = self.array(name)?.shape().first().copied();
            if found != Some(nodes) {
                return Err(damaged(name, &format!("has {found:?} rows, one for each of {nodes} nodes wanted")));
            }
        }
        let mut mail_at = 0;
        for at in (0..nodes).step_by(PART) {
            let here = self.nodes(listed.is_some(), at, PART.min(nodes - at), memory.shape().nodes)?;
            let state = self.part(memory, at, here.len(), &mut mail_at)?;
            let own: Vec<usize> = (0..here.len()).filter(|&i| memory.places().holds(here[i])).collect();
            let kept: Vec<NodeId> = own.iter().map(|&i| here[i]).collect();
            memory.overwrite(&kept, &if own.len() == here.len() { state } else { state.select(&own) });
        }
        Ok(())
    }

    /// The nodes at `first..first + len` of the stored ones.
    fn nodes(&self, listed: bool, first: usize, len: usize, all: usize) -> Result<Vec<NodeId>> {
        if !listed {
            return Ok((first..first + len).map(|node| NodeId(node as u32)).collect());
        }
        let nodes = self.values::<u32>("node", first, len)?;
        match nodes.iter().find(|&&node| node as usize >= all) {
            Some(node) => Err(damaged("node", &format!("names node {node} of {all}"))),
            None => Ok(nodes.iter().copied().map(NodeId).collect()),
        }
    }

    /// The state of `len` nodes from node `first` on; `mail_at` is moved past their mails.
    fn part(&self, memory: &NodeMemory, first: usize, len: usize, mail_at: &mut usize) -> Result<NodeState> {
        let counts: Vec<u32> = self.values::<u32>("mail_count", first, len)?.to_vec();
        let (mail, mails) = (*mail_at, counts.iter().map(|&n| n as usize).sum::<usize>());
        *mail_at += mails;
        let shape = memory.shape();
        let matrix = |name, first, rows| self.matrix(name, first, rows, shape.kind, shape.device);
        let (peer, event) =
            (self.values::<u32>("mail_peer", mail, mails)?, self.values::<u32>("mail_event", mail, mails)?);
        let time = self.values::<i64>("mail_time", mail, mails)?;
        let elapsed = self.values::<i64>("mail_elapsed", mail, mails)?;
        let mail_of = |i: usize| Mail {
            peer: NodeId(peer[i]),
            event: EventId(event[i]),
            time: Timestamp(time[i]),
            elapsed: elapsed[i],
        };
        Ok(NodeState {
            rows: matrix("memory", first, len)?,
            last_update: self.values::<i64>("last_update", first, len)?.iter().copied().map(Timestamp).collect(),
            mails: (0..mails).map(mail_of).collect(),
            payload: matrix("mail_payload", mail, mails)?,
            code: shape.code_dim.map(|_| matrix("mail_code", mail, mails)).transpose()?,
            counts,
        })
    }

    fn array(&self, name: &str) -> Result<&Array> {
        self.arrays.get(name).ok_or_else(|| damaged(name, "is absent"))
    }

    fn values<T: Element>(&self, name: &str, first: usize, len: usize) -> Result<&[T]> {
        let values = self.array(name)?.values::<T>().ok_or_else(|| damaged(name, "holds values of another kind"))?;
        values.get(first..first + len).ok_or_else(|| damaged(name, "is too short"))
    }

    fn matrix(&self, name: &str, first: usize, rows: usize, kind: Kind, device: Device) -> Result<Tensor> {
        let array = self.array(name)?;
        let &[_, width] = array.shape() else { return Err(damaged(name, "is no matrix")) };
        let tensor = match array.data() {
            ArrayData::F32(_) if kind == Kind::Float => {
                Tensor::from_slice(self.values::<f32>(name, first * width, rows * width)?)
            }
            ArrayData::F64(_) if kind == Kind::Double => {
                Tensor::from_slice(self.values::<f64>(name, first * width, rows * width)?)
            }
            other => return Err(damaged(name, &format!("holds {:?} values, {kind:?} wanted", other.dtype()))),
        };
        Ok(tensor.view([rows as i64, width as i64]).to_device(device))
    }
}

fn store(memory: &NodeMemory, folder: &Path) -> io::Result<StoredState> {
    let shape = memory.shape();
    let float = if shape.kind == Kind::Double { Dtype::F64 } else { Dtype::F32 };
    let matrix = |width: i64| ArrayFile::create(folder, float, Some(width as usize));
    let column = |dtype| ArrayFile::create(folder, dtype, None);
    let (mut rows, mut payload) = (matrix(shape.memory_dim)?, matrix(shape.payload_dim)?);
    let mut code = shape.code_dim.map(matrix).transpose()?;
    let (mut last_update, mut count) = (column(Dtype::I64)?, column(Dtype::U32)?);
    let (mut peer, mut event) = (column(Dtype::U32)?, column(Dtype::U32)?);
    let (mut time, mut elapsed) = (column(Dtype::I64)?, column(Dtype::I64)?);
    let mut node = if memory.places().is_all() { None } else { Some(column(Dtype::U32)?) };
    for (nodes, part) in memory.nodes_of_parts().zip(memory.parts()) {
        if let Some(file) = &mut node {
            file.push(bytemuck::cast_slice(&nodes))?;
        }
        rows.push(&bytes_of(&part.rows))?;
        payload.push(&bytes_of(&part.payload))?;
        if let (Some(file), Some(code)) = (&mut code, &part.code) {
            file.push(&bytes_of(code))?;
        }
        last_update.push(bytemuck::cast_slice(&part.last_update))?;
        count.push(bytemuck::cast_slice(&part.counts))?;
        for mail in &part.mails {
            peer.push(&mail.peer.0.to_le_bytes())?;
            event.push(&mail.event.0.to_le_bytes())?;
            time.push(&mail.time.0.to_le_bytes())?;
            elapsed.push(&mail.elapsed.to_le_bytes())?;
        }
    }
    let mut files = vec![
        ("memory", rows),
        ("mail_payload", payload),
        ("last_update", last_update),
        ("mail_count", count),
        ("mail_peer", peer),
        ("mail_event", event),
        ("mail_time", time),
        ("mail_elapsed", elapsed),
    ];
    files.extend(code.map(|code| ("mail_code", code)));
    files.extend(node.map(|node| ("node", node)));
    let arrays = files.into_iter().map(|(name, file)| Ok((name.to_owned(), file.finish()?)));
    Ok(StoredState { arrays: arrays.collect::<io::Result<_>>()? })
}

/// An array on its way into an unnamed file.
struct ArrayFile {
    file: BufWriter<File>,
    dtype: Dtype,
    width: Option<usize>,
    bytes: usize,
}

impl ArrayFile {
    /// A column, or a matrix of `width` columns.
    fn create(folder: &Path, dtype: Dtype, width: Option<usize>) -> io::Result<ArrayFile> {
        Ok(ArrayFile { file: BufWriter::new(tempfile::tempfile_in(folder)?), dtype, width, bytes: 0 })
    }

    fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.bytes += bytes.len();
        self.file.write_all(bytes)
    }

    fn finish(self) -> io::Result<Array> {
        let file = self.file.into_inner().map_err(io::IntoInnerError::into_error)?;
        // SAFETY: the file has no name, so nobody else opens it, and it is not written from here on.
        let map = unsafe { Mmap::map(&file) }?;
        let rows = self.bytes / (self.dtype.bitsize() / 8 * self.width.unwrap_or(1)).max(1);
        let shape: Vec<usize> = std::iter::once(rows).chain(self.width).collect();
        Ok(Array::in_file(&shape, self.dtype, map))
    }
}

fn damaged(name: &str, problem: &str) -> Error {
    Error::Damaged { name: name.to_owned(), problem: problem.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{StateCommit, StateShape, unsent};

    const SHAPE: StateShape = StateShape {
        nodes: 70_000,
        memory_dim: 3,
        payload_dim: 2,
        code_dim: Some(1),
        kind: Kind::Float,
        device: Device::Cpu,
    };

    /// Nodes in three parts, some with mail and some with several.
    fn memory() -> NodeMemory {
        let mut memory = NodeMemory::new(SHAPE, Timestamp(5));
        let nodes: Vec<NodeId> = [1u32, 32_767, 32_768, 69_999].map(NodeId).into();
        let mail = |n: usize, event| (nodes[n], unsent(NodeId(9), EventId(event), Timestamp(10 + i64::from(event))));
        let mails = [mail(0, 1), mail(2, 2), mail(2, 3), mail(3, 4)];
        let floats =
            |rows: i64, width: i64| Tensor::arange(rows * width, (Kind::Float, Device::Cpu)).view([rows, width]);
        let (rows, payload) = (floats(4, 3), floats(4, 2));
        memory.commit(&StateCommit { nodes: &nodes, rows: &rows, mails: &mails, payload: &payload }, |_| {
            Some(floats(4, 1))
        });
        memory
    }

    #[test]
    fn comes_back_to_the_bit_also_by_way_of_an_archive() {
        let (memory, folder) = (memory(), tempfile::tempdir().expect("a folder"));
        let want: Vec<_> = memory.parts().flat_map(|part| super::super::state_hash::node_digests(&part)).collect();
        let stored = StoredState::of(&memory, folder.path()).expect("stored");
        assert_eq!(std::fs::read_dir(folder.path()).expect("listed").count(), 0, "the files have no names");
        let mut archive = Archive::default();
        stored.put(&mut archive, "state");
        for stored in [stored, StoredState::from_archive(&archive, "state")] {
            let mut other = NodeMemory::new(SHAPE, Timestamp(0));
            stored.restore(&mut other).expect("restored");
            assert_eq!(super::super::state_hash::node_digests(&other.read_all()), want);
        }
    }

    #[test]
    fn refuses_what_does_not_fit() {
        let folder = tempfile::tempdir().expect("a folder");
        let stored = StoredState::of(&memory(), folder.path()).expect("stored");
        for shape in [StateShape { nodes: 9, ..SHAPE }, StateShape { kind: Kind::Double, ..SHAPE }] {
            let mut other = NodeMemory::new(shape, Timestamp(0));
            assert!(matches!(stored.restore(&mut other), Err(Error::Damaged { .. })));
        }
        assert!(StoredState::of(&memory(), &folder.path().join("none")).is_err());
    }
}
