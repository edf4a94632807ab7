//! The content hash: SHA-256 over tick, columns, features and id map.
//!
//! Each part is preceded by its name and length, so no two different streams feed the same bytes. Chunks are joined, so
//! the hash does not depend on how a file is cut.

use super::{IdMap, Inner, RawId, SpaceIds};
use crate::stream::Columns;
use sha2::{Digest, Sha256};
use std::fmt::Write;

pub(crate) fn content_hash(inner: &Inner) -> String {
    let mut sha = Sha256::new();
    let events = inner.meta.events;
    part(&mut sha, "tick", inner.meta.tick.per_second);
    part(&mut sha, "first_destination", u64::from(inner.meta.first_destination));
    column(&mut sha, "src", events, inner, |c| bytemuck::cast_slice(&c.source));
    column(&mut sha, "dst", events, inner, |c| bytemuck::cast_slice(&c.destination));
    column(&mut sha, "t", events, inner, |c| bytemuck::cast_slice(&c.time));
    column(&mut sha, "row", events, inner, |c| bytemuck::cast_slice(&c.row));
    labels(&mut sha, inner);
    if inner.feature_dim > 0 {
        part(&mut sha, "features", inner.feature_dim as u64);
        for chunk in &inner.chunks {
            sha.update(chunk.features.as_ref().map_or(&[][..], |f| bytemuck::cast_slice(f)));
            inner.release_features(chunk);
        }
    }
    if let Some(features) = &inner.node_features {
        part(&mut sha, "node_features", features.dim as u64);
        sha.update(bytemuck::cast_slice::<f32, u8>(&features.rows));
    }
    id_map(&mut sha, &inner.ids);
    sha.finalize().iter().fold(String::with_capacity(64), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

fn part(sha: &mut Sha256, name: &str, number: u64) {
    sha.update(name.as_bytes());
    sha.update([0]);
    sha.update(number.to_le_bytes());
}

fn column(sha: &mut Sha256, name: &str, number: u64, inner: &Inner, bytes: impl Fn(&Columns) -> &[u8]) {
    part(sha, name, number);
    inner.chunks.iter().for_each(|chunk| sha.update(bytes(chunk)));
}

fn labels(sha: &mut Sha256, inner: &Inner) {
    let chunks = inner.chunks.iter().filter_map(|c| c.labels.as_ref().map(|l| (l, c.time.len())));
    for (k, (labels, len)) in chunks.enumerate() {
        if k == 0 {
            part(sha, "label", inner.meta.events);
        }
        let bytes: Vec<u8> = (0..len).flat_map(|i| labels.get(i).map_or([0, 0], |label| [1, label as u8])).collect();
        sha.update(bytes);
    }
}

fn id_map(sha: &mut Sha256, ids: &IdMap) {
    for space in std::iter::once(&ids.source).chain(&ids.destination) {
        let kind = if matches!(space, SpaceIds::Integers(_)) { "integers" } else { "texts" };
        part(sha, kind, space.len() as u64);
        for i in 0..space.len() {
            match space.get(i) {
                RawId::Integer(id) => sha.update(id.to_le_bytes()),
                RawId::Text(id) => {
                    sha.update((id.len() as u64).to_le_bytes());
                    sha.update(id.as_bytes());
                }
            }
        }
    }
}
