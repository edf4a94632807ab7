//! Node states and matrices as bytes, for messages. Both sides know from the plan what is sent, so lengths alone are checked.
//!
//! A row is its time of last update, its number of pending mails, D_m floats, and for each mail 24 bytes of integers, D_p
//! floats, D_t of a stored time code and D_e f32 features. Numbers are in the machine's byte order: ranks share a program.

use crate::error::{Error, Result};
use crate::memory::{Mail, NodeState, StateShape};
use tch::{Device, Kind, Tensor};
use tidemill_data::id::{EventId, NodeId, Timestamp};

/// The bits of a tensor in row-major order.
pub fn bytes_of(tensor: &Tensor) -> Vec<u8> {
    let tensor = tensor.detach().to_device(Device::Cpu).contiguous();
    let length = tensor.numel() * tensor.kind().elt_size_in_bytes();
    if length == 0 {
        return Vec::new();
    }
    // SAFETY: a contiguous CPU tensor holds this many bytes at its data pointer, and it outlives the copy.
    unsafe { std::slice::from_raw_parts(tensor.data_ptr().cast::<u8>(), length) }.to_vec()
}

/// A matrix whose bits [`bytes_of`] gave.
///
/// # Errors
/// If the bytes are not `rows * width` numbers of `kind`.
pub fn matrix(bytes: &[u8], rows: usize, width: i64, kind: Kind, device: Device) -> Result<Tensor> {
    let expected = rows * width as usize * kind.elt_size_in_bytes();
    if bytes.len() != expected {
        return Err(other_length(expected, bytes.len()));
    }
    Ok(Tensor::from_data_size(bytes, &[rows as i64, width], kind).to_device(device))
}

/// States of some nodes, with the features of their mails' events, as bytes.
///
/// * `features`: `[Q, D_e]` of the state's mails.
pub fn state_bytes(state: &NodeState, features: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(bytemuck::cast_slice(&state.counts));
    bytes.extend_from_slice(bytemuck::cast_slice(&state.last_update));
    bytes.append(&mut bytes_of(&state.rows));
    for mail in &state.mails {
        let (peer, event) = (mail.peer.0.to_ne_bytes(), mail.event.0.to_ne_bytes());
        bytes.extend_from_slice(&[peer, event].concat());
        bytes.extend_from_slice(&[mail.time.0.to_ne_bytes(), mail.elapsed.to_ne_bytes()].concat());
    }
    bytes.append(&mut bytes_of(&state.payload));
    bytes.append(&mut state.code.as_ref().map(bytes_of).unwrap_or_default());
    bytes.extend_from_slice(bytemuck::cast_slice(features));
    bytes
}

/// The states of `nodes` nodes and their mails' features, from [`state_bytes`].
///
/// # Errors
/// If the bytes are fewer or more than such states have.
pub fn state(bytes: &[u8], nodes: usize, shape: StateShape, feature_dim: usize) -> Result<(NodeState, Vec<f32>)> {
    let mut rest = Bytes { all: bytes, at: 0 };
    let counts: Vec<u32> = rest.numbers(nodes, u32::from_ne_bytes)?;
    let last_update: Vec<i64> = rest.numbers(nodes, i64::from_ne_bytes)?;
    let rows = rest.matrix(nodes, shape.memory_dim, shape)?;
    let q = counts.iter().map(|&n| n as usize).sum();
    let mut mails = Vec::with_capacity(q);
    for _ in 0..q {
        let ids = rest.numbers(2, u32::from_ne_bytes)?;
        let times = rest.numbers(2, i64::from_ne_bytes)?;
        let (peer, event) = (NodeId(ids[0]), EventId(ids[1]));
        mails.push(Mail { peer, event, time: Timestamp(times[0]), elapsed: times[1] });
    }
    let payload = rest.matrix(q, shape.payload_dim, shape)?;
    let code = shape.code_dim.map(|width| rest.matrix(q, width, shape)).transpose()?;
    let features = rest.numbers(q * feature_dim, f32::from_ne_bytes)?;
    if rest.at != bytes.len() {
        return Err(other_length(rest.at, bytes.len()));
    }
    let last_update = last_update.into_iter().map(Timestamp).collect();
    Ok((NodeState { rows, last_update, counts, mails, payload, code }, features))
}

/// Bytes of a row with one mail.
pub fn row_bytes(shape: StateShape, feature_dim: usize) -> u64 {
    let floats = shape.memory_dim + shape.payload_dim + shape.code_dim.unwrap_or(0);
    36 + floats as u64 * shape.kind.elt_size_in_bytes() as u64 + 4 * feature_dim as u64
}

/// Bytes that are read one after another.
struct Bytes<'a> {
    all: &'a [u8],
    at: usize,
}

impl Bytes<'_> {
    fn take(&mut self, length: usize) -> Result<&[u8]> {
        let taken = self.all.get(self.at..self.at + length);
        self.at += length;
        taken.ok_or_else(|| other_length(self.at, self.all.len()))
    }

    fn numbers<T, const W: usize>(&mut self, count: usize, of: impl Fn([u8; W]) -> T) -> Result<Vec<T>> {
        let bytes = self.take(count * W)?;
        Ok(bytes.chunks_exact(W).map(|chunk| of(chunk.try_into().expect("chunks of that length"))).collect())
    }

    fn matrix(&mut self, rows: usize, width: i64, shape: StateShape) -> Result<Tensor> {
        let bytes = self.take(rows * width as usize * shape.kind.elt_size_in_bytes())?;
        matrix(bytes, rows, width, shape.kind, shape.device)
    }
}

fn other_length(expected: usize, found: usize) -> Error {
    Error::Comms {
        problem: format!("a peer sent {found} bytes where the plan has {expected}"),
        mend: "start the same program, configuration and data on every rank".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(kind: Kind, code: bool) -> (StateShape, NodeState) {
        let shape = StateShape {
            nodes: 9,
            memory_dim: 3,
            payload_dim: 2,
            code_dim: code.then_some(4),
            kind,
            device: Device::Cpu,
        };
        let mail = |event| Mail { peer: NodeId(7), event: EventId(event), time: Timestamp(-5), elapsed: 1 << 40 };
        let rand = |rows, width| Tensor::rand([rows, width], (kind, Device::Cpu));
        let state = NodeState {
            rows: rand(3, 3),
            last_update: vec![Timestamp(i64::MIN), Timestamp(0), Timestamp(8)],
            counts: vec![2, 0, 1],
            mails: vec![mail(3), mail(4), mail(u32::MAX)],
            payload: rand(3, 2),
            code: code.then(|| rand(3, 4)),
        };
        (shape, state)
    }

    #[test]
    fn states_cross_to_the_bit() {
        for (kind, code) in [(Kind::Float, false), (Kind::Double, true)] {
            let (shape, sent) = example(kind, code);
            let features = [1.5f32, -0.0, 3.0, 4.0, 5.0, f32::MIN_POSITIVE];
            let bytes = state_bytes(&sent, &features);
            let (got, with) = state(&bytes, 3, shape, 2).expect("whole");
            assert_eq!((&got.counts, &got.last_update, &got.mails), (&sent.counts, &sent.last_update, &sent.mails));
            assert_eq!(bytes_of(&got.rows), bytes_of(&sent.rows));
            assert_eq!(bytes_of(&got.payload), bytes_of(&sent.payload));
            assert_eq!(got.code.as_ref().map(bytes_of), sent.code.as_ref().map(bytes_of));
            assert_eq!(bytemuck::cast_slice::<f32, u32>(&with), bytemuck::cast_slice::<f32, u32>(&features));
        }
    }

    #[test]
    fn a_message_of_another_length_is_refused() {
        let (shape, sent) = example(Kind::Float, false);
        let bytes = state_bytes(&sent, &[]);
        assert!(state(&bytes[..bytes.len() - 1], 3, shape, 0).is_err());
        assert!(state(&[bytes.clone(), vec![0]].concat(), 3, shape, 0).is_err());
        assert!(state(&bytes, 4, shape, 0).is_err());
        assert!(matrix(&[0; 15], 2, 2, Kind::Float, Device::Cpu).is_err());
    }

    #[test]
    fn a_row_has_the_bytes_that_costs_are_made_with() {
        let (shape, sent) = example(Kind::Float, true);
        let one = NodeState {
            rows: sent.rows.narrow(0, 0, 1),
            last_update: vec![Timestamp(0)],
            counts: vec![1],
            mails: vec![sent.mails[0]],
            payload: sent.payload.narrow(0, 0, 1),
            code: sent.code.map(|code| code.narrow(0, 0, 1)),
        };
        assert_eq!(state_bytes(&one, &[0.0; 5]).len() as u64, row_bytes(shape, 5));
    }
}
