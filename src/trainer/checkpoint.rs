//! The checkpoint store: whole states of a run on disk, from which it goes on after any interruption.
//!
//! ```text
//! checkpoint/
//!   e0003-b000120/            epoch 3, 120 batches done
//!     rank-0.safetensors      one shard a rank: an Archive
//!     manifest.json           written last; names the shards with length and sha256
//! ```
//!
//! Invariants:
//! - A folder is a checkpoint from the moment its manifest is there, and the manifest is written only after every shard is
//!   durable. Killed at any moment, the store holds the old checkpoints or the old ones and the new one.
//! - A shard that a manifest names is never overwritten; saving again at the same position uses another file name.
//! - Older checkpoints go only after the new manifest is durable.
//!
//! Under several ranks each calls [`CheckpointStore::write_shard`], then one of them [`CheckpointStore::commit`] with all
//! ranks' shards, and none starts the next checkpoint before that returned. [`CheckpointStore::save`] does both for one rank.
//!
//! Absent: what the state is (the trainer's business), and any communication.

mod manifest;
#[cfg(test)]
mod tests;

pub use manifest::{FORMAT, Manifest, Position, Shard};

use super::archive::{Archive, ArchiveError};
use super::durable::{self, FileError, Written};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use thiserror::Error;

/// A checkpoint that can not be written or read.
#[derive(Debug, Error)]
pub enum CheckpointError {
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// A shard whose contents are not what they should be, though its hash is.
    #[error("can not read the checkpoint file {}", file.display())]
    Archive {
        /// The shard.
        file: PathBuf,
        /// What is wrong with it.
        source: ArchiveError,
    },
    /// A manifest that is no manifest.
    #[error("can not read the checkpoint manifest {}", file.display())]
    Manifest {
        /// The manifest.
        file: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// A folder without a manifest: saving was interrupted.
    #[error("the checkpoint {} is unfinished: it has no manifest", folder.display())]
    Unfinished {
        /// The checkpoint's folder.
        folder: PathBuf,
    },
    /// A file of another length than the manifest says.
    #[error("the checkpoint file {} is damaged: {found} bytes long, expected {expected}", file.display())]
    Length {
        /// The shard.
        file: PathBuf,
        /// Length in the manifest.
        expected: u64,
        /// Length on disk.
        found: u64,
    },
    /// A file with other contents than were written.
    #[error("the checkpoint file {} is damaged: its checksum does not match", file.display())]
    Checksum {
        /// The shard or manifest.
        file: PathBuf,
    },
    /// A manifest in a folder of another name, or without a shard for each rank.
    #[error("the checkpoint manifest {} does not belong there: it says {position}", file.display())]
    Misplaced {
        /// The manifest.
        file: PathBuf,
        /// The position that it states.
        position: Position,
    },
    /// Written by a newer program.
    #[error(
        "the checkpoint {} has format {found}, written by {program}; this program reads up to format {FORMAT}: use that version",
        file.display()
    )]
    NewerFormat {
        /// The manifest.
        file: PathBuf,
        /// Its format.
        found: u64,
        /// The program that wrote it.
        program: String,
    },
    /// Another config than the run's.
    #[error(
        "the checkpoint {} was made with another config: only epochs, patience, logging, threads and ranks may differ",
        folder.display()
    )]
    OtherConfig {
        /// The checkpoint's folder.
        folder: PathBuf,
    },
    /// A rank without a shard.
    #[error("the checkpoint at {position} has {ranks} shards, none for rank {rank}")]
    NoShard {
        /// The checkpoint's position.
        position: Position,
        /// The rank asked for.
        rank: u32,
        /// How many ranks wrote it.
        ranks: u32,
    },
    /// No save was ever finished.
    #[error("there is no finished checkpoint in {}: the run was stopped before its first one", dir.display())]
    Empty {
        /// The store's folder.
        dir: PathBuf,
    },
    /// Every checkpoint is damaged.
    #[error("none of the {count} checkpoints in {} is intact", dir.display())]
    NoneIntact {
        /// The store's folder.
        dir: PathBuf,
        /// How many there are.
        count: usize,
        /// What is wrong with the newest.
        #[source]
        newest: Box<CheckpointError>,
    },
}

/// A checkpoint just saved.
#[derive(Debug)]
pub struct Saved {
    /// Its folder.
    pub folder: PathBuf,
    /// Why an older checkpoint could not be removed, if so: worth a warning, the new one is safe.
    pub not_removed: Option<FileError>,
}

/// The newest intact checkpoint.
#[derive(Debug)]
pub struct Latest {
    /// The checkpoint, its checksums verified.
    pub checkpoint: Checkpoint,
    /// Newer ones that were passed over, newest first, and why: worth a warning each.
    pub skipped: Vec<CheckpointError>,
}

/// A run's checkpoints.
#[derive(Clone, Debug)]
pub struct CheckpointStore {
    dir: PathBuf,
    keep: usize,
    config_digest: Option<String>,
}

impl CheckpointStore {
    /// A store in `dir`, which is made at the first save; the last `keep` checkpoints stay (at least one).
    pub fn new(dir: impl Into<PathBuf>, keep: usize) -> CheckpointStore {
        CheckpointStore { dir: dir.into(), keep: keep.max(1), config_digest: None }
    }

    /// Labels what is saved with the digest of the part of the config that a resumed run must share, and refuses to open
    /// what carries another one. Without it any checkpoint opens.
    pub fn for_config(self, digest: impl Into<String>) -> CheckpointStore {
        CheckpointStore { config_digest: Some(digest.into()), ..self }
    }

    /// The store's folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Saves the state of a run on one rank.
    ///
    /// # Errors
    /// What went wrong; the checkpoints from before are as they were, and nothing half-written is left if the disk allows.
    pub fn save(&self, position: Position, archive: &Archive) -> Result<Saved, CheckpointError> {
        let shard = self.write_shard(position, 0, archive)?;
        let file = shard.file.clone();
        self.commit(position, vec![shard]).inspect_err(|_| self.discard(position, &file))
    }

    /// Writes one rank's part. It counts only once [`CheckpointStore::commit`] has named it.
    ///
    /// # Errors
    /// What went wrong; nothing half-written is left if the disk allows.
    pub fn write_shard(&self, position: Position, rank: u32, archive: &Archive) -> Result<Shard, CheckpointError> {
        let folder = self.folder(position);
        let file = unlisted_name(&folder, rank);
        let Written { bytes, sha256 } = durable::create_folders(&folder)
            .and_then(|()| durable::write_file(&folder.join(&file), |writer| archive.write_to(writer)))
            .inspect_err(|_| self.discard(position, &file))?;
        Ok(Shard { rank, file, bytes, sha256 })
    }

    /// Makes the shards of all ranks a checkpoint, then removes those no longer kept.
    ///
    /// Checkpoints at later positions are removed too: the run has gone back behind them.
    ///
    /// # Errors
    /// What went wrong; the checkpoints from before are as they were.
    ///
    /// # Panics
    /// If there is not one shard for each of the ranks `0..shards.len()`.
    pub fn commit(&self, position: Position, mut shards: Vec<Shard>) -> Result<Saved, CheckpointError> {
        shards.sort_by_key(|shard| shard.rank);
        assert!(shards.iter().map(|shard| shard.rank as usize).eq(0..shards.len()), "one shard a rank: {shards:?}");
        let folder = self.folder(position);
        let manifest = Manifest {
            format: FORMAT,
            program: concat!("tidemill ", env!("CARGO_PKG_VERSION")).to_string(),
            position,
            config_digest: self.config_digest.clone(),
            saved_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            shards,
        };
        manifest.write(&folder)?;
        Ok(Saved { folder, not_removed: self.prune(&manifest).err() })
    }

    /// Finds the newest intact checkpoint; verifies every byte of it.
    ///
    /// # Errors
    /// [`CheckpointError::Empty`] if no save was finished, [`CheckpointError::NoneIntact`] with the newest one's fault, or
    /// [`CheckpointError::NewerFormat`] and [`CheckpointError::OtherConfig`]: falling back behind such an intact one would
    /// lose work without need.
    pub fn latest(&self) -> Result<Latest, CheckpointError> {
        let mut skipped = Vec::new();
        for &position in self.positions()?.iter().rev() {
            match self.open(position) {
                Ok(checkpoint) => return Ok(Latest { checkpoint, skipped }),
                Err(error @ (CheckpointError::NewerFormat { .. } | CheckpointError::OtherConfig { .. })) => {
                    return Err(error);
                }
                Err(error) => skipped.push(error),
            }
        }
        let (dir, count) = (self.dir.clone(), skipped.len());
        let finished = |error: &CheckpointError| !matches!(error, CheckpointError::Unfinished { .. });
        match skipped.into_iter().find(finished) {
            None => Err(CheckpointError::Empty { dir }),
            Some(newest) => Err(CheckpointError::NoneIntact { dir, count, newest: Box::new(newest) }),
        }
    }

    /// Opens the checkpoint at a position; verifies every byte of it.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn open(&self, position: Position) -> Result<Checkpoint, CheckpointError> {
        let folder = self.folder(position);
        let manifest = Manifest::read(&folder)?;
        for shard in &manifest.shards {
            shard.check(&folder, &durable::hash_file(&folder.join(&shard.file))?)?;
        }
        if self.config_digest.as_ref().is_some_and(|digest| manifest.config_digest.as_ref() != Some(digest)) {
            return Err(CheckpointError::OtherConfig { folder });
        }
        Ok(Checkpoint { folder, manifest })
    }

    /// Positions that have a folder, oldest first, unfinished and damaged ones included.
    ///
    /// # Errors
    /// If the store's folder can not be listed.
    pub fn positions(&self) -> Result<Vec<Position>, FileError> {
        if !self.dir.exists() {
            return Ok(Vec::new());
        }
        let names = durable::list_folder(&self.dir)?;
        let mut positions: Vec<_> = names.iter().filter_map(|name| Position::from_folder(name)).collect();
        positions.sort_unstable();
        Ok(positions)
    }

    fn folder(&self, position: Position) -> PathBuf {
        self.dir.join(position.folder())
    }

    /// Removes what a failed save has written: its shard, and the folder if that leaves it empty.
    fn discard(&self, position: Position, file: &str) {
        let folder = self.folder(position);
        if !listed_files(&folder).contains(file) {
            // The failure itself is what gets reported; what can not be removed now is never read and removed later.
            let _ = durable::remove_file(&folder.join(file));
            let _ = durable::remove_folder(&folder);
        }
    }

    /// Removes what is no longer kept, and leftovers in the new checkpoint's own folder.
    fn prune(&self, new: &Manifest) -> Result<(), FileError> {
        let folder = self.folder(new.position);
        let named = listed_files(&folder);
        for name in durable::list_folder(&folder)?.iter().filter(|name| !named.contains(*name)) {
            durable::remove_file(&folder.join(name))?;
        }
        let positions = self.positions()?;
        let finished: BTreeSet<Position> =
            positions.iter().copied().filter(|&position| Manifest::read(&self.folder(position)).is_ok()).collect();
        let kept: BTreeSet<Position> = finished.range(..=new.position).rev().take(self.keep).copied().collect();
        // A later folder without a manifest may be the next checkpoint, on its way from another rank.
        let abandoned = |position: &&Position| **position < new.position || finished.contains(position);
        positions
            .iter()
            .filter(|position| !kept.contains(position))
            .filter(abandoned)
            .try_for_each(|&position| remove_checkpoint(&self.folder(position)))
    }
}

/// A checkpoint on disk whose checksums were verified.
#[derive(Debug)]
pub struct Checkpoint {
    folder: PathBuf,
    manifest: Manifest,
}

impl Checkpoint {
    /// Its folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Its manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Where in the run it was taken.
    pub fn position(&self) -> Position {
        self.manifest.position
    }

    /// Reads one rank's part; its checksum is verified again, on the bytes that are used. The arrays stay in the file.
    ///
    /// # Errors
    /// If there is no such rank, or the file has changed or is no archive.
    pub fn read_shard(&self, rank: u32) -> Result<Archive, CheckpointError> {
        let shard = self.manifest.shards.get(rank as usize).ok_or(CheckpointError::NoShard {
            position: self.manifest.position,
            rank,
            ranks: self.manifest.ranks(),
        })?;
        let file = self.folder.join(&shard.file);
        let map = durable::map_file(&file)?;
        shard.check(&self.folder, &Written { bytes: map.len() as u64, sha256: durable::sha256_hex(&map) })?;
        Archive::from_map(map).map_err(|source| CheckpointError::Archive { file, source })
    }
}

/// The files that a folder's manifest makes part of a checkpoint, itself included; none without a readable manifest.
fn listed_files(folder: &Path) -> BTreeSet<String> {
    match Manifest::read(folder) {
        Ok(manifest) => {
            manifest.shards.into_iter().map(|shard| shard.file).chain([manifest::FILE.to_string()]).collect()
        }
        Err(_) => BTreeSet::new(),
    }
}

/// `rank-0.safetensors`, or `rank-0.2.safetensors` and so on where the folder's manifest names that already.
fn unlisted_name(folder: &Path, rank: u32) -> String {
    let listed = listed_files(folder);
    (1..)
        .map(|attempt| match attempt {
            1 => format!("rank-{rank}.safetensors"),
            _ => format!("rank-{rank}.{attempt}.safetensors"),
        })
        .find(|name| !listed.contains(name))
        .expect("a manifest names finitely many files")
}

/// Removes a checkpoint, its manifest first: interrupted, it is an unfinished one, not a damaged one.
fn remove_checkpoint(folder: &Path) -> Result<(), FileError> {
    durable::remove_file(&folder.join(manifest::FILE))?;
    durable::sync_folder(folder)?;
    for name in durable::list_folder(folder)? {
        durable::remove_file(&folder.join(name))?;
    }
    durable::remove_folder(folder)
}
