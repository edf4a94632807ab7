//! The manifest: the small file, written last, that makes a folder of shards a checkpoint.
//!
//! It is readable JSON, names its shards with length and hash, and carries a hash of itself.
//!
//! Versions: `format` grows when an older program could misread a checkpoint. A program reads its own and refuses newer ones.

use super::CheckpointError;
use crate::trainer::durable::{self, Written};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;

/// The format that this program writes, and the newest it reads.
pub const FORMAT: u32 = 1;

/// The manifest's file name.
pub const FILE: &str = "manifest.json";

/// A place in the training run, between two batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Position {
    /// The epoch, from 1.
    pub epoch: u32,
    /// How many of the epoch's batches are done.
    pub batch: u64,
}

impl Position {
    /// The checkpoint's folder, such as `e0003-b000120`.
    pub fn folder(self) -> String {
        format!("e{:04}-b{:06}", self.epoch, self.batch)
    }

    /// The position that a folder is named after; `None` for any other name.
    pub fn from_folder(name: &str) -> Option<Position> {
        let (epoch, batch) = name.strip_prefix('e')?.split_once("-b")?;
        let position = Position { epoch: epoch.parse().ok()?, batch: batch.parse().ok()? };
        (position.folder() == name).then_some(position)
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epoch {}, batch {}", self.epoch, self.batch)
    }
}

/// One rank's file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// The rank that wrote it.
    pub rank: u32,
    /// Its name within the checkpoint's folder.
    pub file: String,
    /// Its length in bytes.
    pub bytes: u64,
    /// Its sha256, lower-case hexadecimal.
    pub sha256: String,
}

impl Shard {
    /// Compares the file's length and hash with those it should have.
    pub(super) fn check(&self, folder: &Path, found: &Written) -> Result<(), CheckpointError> {
        let file = folder.join(&self.file);
        if found.bytes != self.bytes {
            return Err(CheckpointError::Length { file, expected: self.bytes, found: found.bytes });
        }
        if found.sha256 != self.sha256 {
            return Err(CheckpointError::Checksum { file });
        }
        Ok(())
    }
}

/// What a checkpoint is: where it was taken, by what, and of which files it consists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Format of the manifest and its shards.
    pub format: u32,
    /// The program that wrote it, with its version.
    pub program: String,
    /// Where in the run it was taken.
    pub position: Position,
    /// Digest of the part of the config that a resumed run must share, if the store was given one.
    pub config_digest: Option<String>,
    /// Wall-clock time in whole seconds since 1970-01-01 UTC.
    pub saved_unix_s: u64,
    /// The shards, by rank.
    pub shards: Vec<Shard>,
}

impl Manifest {
    /// Writes the manifest durably: from then on the folder is a checkpoint.
    pub(super) fn write(&self, folder: &Path) -> Result<(), CheckpointError> {
        let path = folder.join(FILE);
        let json = |source| CheckpointError::Manifest { file: path.clone(), source };
        let mut document = serde_json::to_value(self).map_err(json)?;
        document[SELF_HASH] = hash_of(&document).into();
        let mut text = serde_json::to_vec_pretty(&document).map_err(json)?;
        text.push(b'\n');
        durable::write_bytes(&path, &text)?;
        Ok(())
    }

    /// Reads and checks the manifest of a folder, but none of its shards.
    pub(super) fn read(folder: &Path) -> Result<Manifest, CheckpointError> {
        let file = folder.join(FILE);
        if !file.exists() {
            return Err(CheckpointError::Unfinished { folder: folder.to_path_buf() });
        }
        let json = |source| CheckpointError::Manifest { file: file.clone(), source };
        let mut document: serde_json::Value = serde_json::from_slice(&durable::read_file(&file)?).map_err(json)?;
        let stated = document.as_object_mut().and_then(|fields| fields.remove(SELF_HASH));
        if stated.as_ref().and_then(|hash| hash.as_str()) != Some(&hash_of(&document)) {
            return Err(CheckpointError::Checksum { file });
        }
        refuse_newer(&file, &document)?;
        let manifest: Manifest = serde_json::from_value(document).map_err(json)?;
        let ranks = manifest.shards.iter().map(|shard| shard.rank);
        if Some(manifest.position.folder().as_ref()) != folder.file_name() || !ranks.eq(0..manifest.ranks()) {
            return Err(CheckpointError::Misplaced { file, position: manifest.position });
        }
        Ok(manifest)
    }

    /// How many ranks wrote it.
    pub fn ranks(&self) -> u32 {
        u32::try_from(self.shards.len()).expect("ranks are counted in u32")
    }
}

/// The manifest's hash of itself: sha256 of its compact JSON without this field.
const SELF_HASH: &str = "sha256";

fn hash_of(document: &serde_json::Value) -> String {
    durable::sha256_hex(document.to_string().as_bytes())
}

/// A newer format may have other fields, so only those two are looked at.
fn refuse_newer(file: &Path, document: &serde_json::Value) -> Result<(), CheckpointError> {
    let found = document["format"].as_u64().unwrap_or(0);
    if found <= u64::from(FORMAT) {
        return Ok(());
    }
    let program = document["program"].as_str().unwrap_or("a newer program").to_string();
    Err(CheckpointError::NewerFormat { file: file.to_path_buf(), found, program })
}
