//! The whole state of a run, to and from a checkpoint: parameters, optimizer, node state, history, and the best epoch's
//! parameters and node state.

use super::archive::{Archive, ArrayData};
use super::checkpoint::{CheckpointStore, Position, Saved, Shard};
use super::metrics_log::MetricsLog;
use super::run_folder::RunFolder;
use super::stored_state::StoredState;
use super::{History, Trainer};
use crate::error::{Error, Result};
use crate::partition::PartitionTable;
use crate::pipeline::racom::{Controller, Racom};
use crate::sampler::SampleHash;
use serde_json::json;
use sha2::{Digest, Sha256};
use std::path::Path;
use std::sync::Arc;
use tch::{Device, Kind, Tensor};
use tidemill_models::parameters::Parameters;

/// What a checkpoint must share with the run at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SameRun {
    /// Configuration and stream, to go on with it.
    Required,
    /// Of this stream, to score it, maybe in another way.
    SameData,
}

/// Parameters and node state of the epoch with the best validation AP, as training left them.
pub struct Best {
    /// The epoch, from 1.
    pub epoch: u32,
    /// `[P]`.
    pub values: Tensor,
    /// Node state before the validation events, of this rank's nodes.
    pub(super) state: StoredState,
    /// Who owned which node then; absent alone.
    pub(super) owners: Option<Arc<PartitionTable>>,
}

impl Best {
    /// Copies the parameters; takes over the state.
    pub(super) fn new(
        epoch: u32,
        parameters: &Parameters,
        state: StoredState,
        owners: Option<Arc<PartitionTable>>,
    ) -> Best {
        Best { epoch, values: parameters.values().detach().copy(), state, owners }
    }
}

impl Trainer {
    /// Stores the node state beside the run's results, or where the system keeps temporary files.
    pub(super) fn store_state(&self) -> Result<StoredState> {
        let folder = self.run_folder().map_or_else(std::env::temp_dir, Path::to_path_buf);
        StoredState::of(&self.pipeline.memory(), &folder)
    }

    /// Writes a checkpoint of the whole state, if the run has a folder: each rank its own nodes' state, the manifest last.
    pub(super) fn checkpoint(&mut self) -> Result<()> {
        if self.run.is_none() {
            return Ok(());
        }
        self.join_sample_hash()?;
        let metrics = self.run.as_mut().and_then(|run| run.metrics.as_mut());
        let offset = metrics.map_or(Ok(0), MetricsLog::sync)?;
        let archive = self.to_archive(offset)?;
        let position = Position { epoch: self.history.epoch, batch: self.history.batch as u64 };
        let store = self.run.as_ref().expect("as above").store.clone();
        if self.comm.world() == 1 {
            return warn_of_leftovers(store.save(position, &archive)?);
        }
        let shard = store.write_shard(position, self.comm.rank() as u32, &archive)?;
        let sequence = self.next_collective();
        let shards = self.comm.gather(0, sequence, serde_json::to_vec(&shard).expect("a shard has a JSON form"))?;
        if self.is_first() {
            let shards: Vec<Shard> =
                shards.iter().map(|shard| serde_json::from_slice(shard).expect("a shard that a rank wrote")).collect();
            warn_of_leftovers(store.commit(position, shards)?)?;
        }
        let sequence = self.next_collective();
        self.comm.barrier(sequence)
    }

    /// Takes over the newest intact checkpoint of a run, whatever number of ranks wrote it.
    ///
    /// # Errors
    /// If there is none, or it is of another configuration.
    pub(super) fn load_checkpoint(&mut self, folder: &RunFolder, same: SameRun) -> Result<Archive> {
        let latest = CheckpointStore::new(folder.checkpoint_dir(), self.config.train.keep_checkpoints).latest()?;
        for skipped in &latest.skipped {
            tracing::warn!("passed over a checkpoint: {skipped}");
        }
        let ranks = latest.checkpoint.manifest().ranks();
        let mut shards: Vec<Archive> =
            (0..ranks).map(|rank| latest.checkpoint.read_shard(rank)).collect::<std::result::Result<_, _>>()?;
        let other = match same {
            SameRun::Required => shards[0].meta["digest"] != self.digest(),
            SameRun::SameData => shards[0].meta["stream"] != self.stream.hash(),
        };
        if other {
            return Err(Error::OtherRun { folder: folder.path().to_owned() });
        }
        self.restore(&shards)?;
        Ok(shards.swap_remove(0))
    }

    /// Digest of all that a run which goes on must share: the stream, and every key that changes its meaning.
    fn digest(&self) -> String {
        let text = self.config.fixed_on_resume().to_toml() + &self.stream.hash();
        Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn to_archive(&self, metrics_offset: u64) -> Result<Archive> {
        let meta = json!({
            "digest": self.digest(),
            "stream": self.stream.hash(),
            "history": self.history,
            "metrics_offset": metrics_offset,
            "queue_lengths": self.pipeline.queue_lengths().in_force(),
            "optimizer_steps": self.sync.stage().optimizer().steps(),
            "best_epoch": self.best.as_ref().map(|best| best.epoch),
            "racom": self.sync.stage().racom().map(Racom::controller),
        });
        let mut archive = Archive::new(meta);
        let (first, second) = self.sync.stage().optimizer().moments();
        let own_steps = self.sync.stage().optimizer().own_steps();
        archive.insert("optimizer.steps", &[own_steps.len()], own_steps.to_vec());
        put(&mut archive, "parameters", self.model.parameters().values());
        put(&mut archive, "optimizer.first_moment", first);
        put(&mut archive, "optimizer.second_moment", second);
        self.store_state()?.put(&mut archive, "state");
        if let Some(best) = &self.best {
            put(&mut archive, "best.parameters", &best.values);
            best.state.put(&mut archive, "best.state");
        }
        Ok(archive)
    }

    /// Takes over the state of a checkpoint, from all its shards.
    pub(super) fn restore(&mut self, shards: &[Archive]) -> Result<()> {
        let (archive, spec) = (&shards[0], (self.pipeline.memory().shape().kind, self.device));
        self.history = serde_json::from_value::<History>(archive.meta["history"].clone())
            .map_err(|error| damaged("history", &error.to_string()))?;
        if !self.is_first() {
            self.history.sample_hash = SampleHash::default(); // the first rank has the whole
        }
        self.model.parameters_mut().set_values(&tensor(archive, "parameters", spec)?)?;
        let steps = archive.meta["optimizer_steps"].as_u64().ok_or_else(|| damaged("optimizer_steps", "is absent"))?;
        let first = tensor(archive, "optimizer.first_moment", spec)?;
        let second = tensor(archive, "optimizer.second_moment", spec)?;
        let own_steps = archive.get("optimizer.steps")?;
        let own_steps = own_steps.values::<u64>().ok_or_else(|| damaged("optimizer.steps", "holds no u64 values"))?;
        self.sync.stage_mut().optimizer_mut().restore(steps, own_steps, &first, &second)?;
        if let Ok(lengths) = serde_json::from_value(archive.meta["queue_lengths"].clone()) {
            self.pipeline.queue_lengths().restore(lengths);
        }
        let counts = serde_json::from_value::<Option<Controller>>(archive.meta["racom"].clone())
            .map_err(|error| damaged("racom", &error.to_string()))?;
        if let (Some(racom), Some(counts)) = (self.sync.stage_mut().racom_mut(), counts) {
            racom.restore(counts);
        }
        let pass = self.passes.train(self.history.epoch);
        self.best = match archive.meta["best_epoch"].as_u64() {
            Some(epoch) => {
                let owners = pass.owners_after(self.epoch_batches(&pass));
                self.put_shards(shards, "best.state", owners.clone())?;
                let (values, state) = (tensor(archive, "best.parameters", spec)?, self.store_state()?);
                Some(Best { epoch: epoch as u32, values, state, owners })
            }
            None => None,
        };
        let done = if self.history.batch > 0 { self.history.batch } else { self.epoch_batches(&pass) };
        self.put_shards(shards, "state", pass.owners_after(done))
    }

    fn put_shards(&mut self, shards: &[Archive], name: &str, owners: Option<Arc<PartitionTable>>) -> Result<()> {
        let parts: Vec<StoredState> = shards.iter().map(|shard| StoredState::from_archive(shard, name)).collect();
        self.put_state(&parts.iter().collect::<Vec<_>>(), owners)
    }

    /// Parameters and node state of the best epoch become the current ones.
    pub fn restore_best(&mut self) -> Result<()> {
        if let Some(best) = self.best.take() {
            self.model.parameters_mut().set_values(&best.values)?;
            self.put_state(&[&best.state], best.owners.clone())?;
            self.best = Some(best);
        }
        Ok(())
    }
}

fn warn_of_leftovers(saved: Saved) -> Result<()> {
    if let Some(error) = saved.not_removed {
        tracing::warn!("an old checkpoint stays: {error}");
    }
    Ok(())
}

fn put(archive: &mut Archive, name: &str, tensor: &Tensor) {
    let tensor = tensor.detach().to_device(Device::Cpu).contiguous();
    let shape: Vec<usize> = tensor.size().iter().map(|&n| n as usize).collect();
    let flat = tensor.view([-1]);
    match tensor.kind() {
        Kind::Double => archive.insert(name, &shape, Vec::<f64>::try_from(flat).expect("a flat f64 tensor on the CPU")),
        Kind::Float => archive.insert(name, &shape, Vec::<f32>::try_from(flat).expect("a flat f32 tensor on the CPU")),
        kind => unreachable!("state is f32 or f64, not {kind:?}"),
    }
}

fn tensor(archive: &Archive, name: &str, (kind, device): (Kind, Device)) -> Result<Tensor> {
    let array = archive.get(name)?;
    let shape: Vec<i64> = array.shape().iter().map(|&n| n as i64).collect();
    let flat = match array.data() {
        ArrayData::F32(values) if kind == Kind::Float => Tensor::from_slice(values),
        ArrayData::F64(values) if kind == Kind::Double => Tensor::from_slice(values),
        other => return Err(damaged(name, &format!("holds {:?} values, {kind:?} wanted", other.dtype()))),
    };
    Ok(flat.view(shape.as_slice()).to_device(device))
}

fn damaged(name: &str, problem: &str) -> Error {
    Error::Damaged { name: name.to_owned(), problem: problem.to_owned() }
}
