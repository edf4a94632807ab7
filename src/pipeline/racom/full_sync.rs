//! A full sync, on all ranks after the same batch: what is not applied yet is, and parameters and moments become equal.

use super::{News, Racom, unreadable};
use crate::comms::{Purpose, Tag};
use crate::error::Result;
use crate::stats::Timeline;
use tch::Tensor;
use tidemill_models::optimizer::{Optimizer, grad_norm};
use tidemill_models::parameters::Parameters;

/// What a full sync found still to be applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gathered {
    /// Nothing.
    Nothing,
    /// The gradient at hand.
    Rest,
    /// A gradient that is not finite.
    NotFinite,
}

/// Why a full sync is forced.
pub const DIVERGENCE: &str = "divergence";

impl Racom {
    /// First half of a full sync, called by all ranks after the same batch: every contribution is here. What of them was in no
    /// step yet is added to the gradient, which the caller has zeroed.
    ///
    /// # Errors
    /// A lost peer.
    pub fn gather(&mut self, parameters: &mut Parameters, times: &mut Timeline) -> Result<Gathered> {
        self.contributions = 0;
        loop {
            if self.flight.is_none() {
                if self.here.iter().all(|&here| here == self.position) {
                    break;
                }
                self.join(parameters)?;
            }
            if !self.wait(times)? {
                return Ok(Gathered::NotFinite);
            }
        }
        let rest = self.arrived.is_some();
        self.add_arrived(parameters);
        Ok(if rest { Gathered::Rest } else { Gathered::Nothing })
    }

    /// Second half: parameters and moments become the ranks' mean.
    ///
    /// # Errors
    /// A lost peer.
    pub fn average(
        &mut self,
        parameters: &mut Parameters,
        optimizer: &mut Optimizer,
        reason: &'static str,
    ) -> Result<()> {
        let (first, second) = optimizer.moments();
        let flat = Tensor::cat(&[&parameters.values().detach(), first, second], 0);
        let mean = self.start_sum(&flat)?.wait()? / self.comm.world() as f64;
        let parts = mean.split(parameters.count(), 0);
        let [values, first, second] = [&parts[0], &parts[1], &parts[2]];
        let apart = length(&(parameters.values().detach() - values)) / length(values).max(f64::MIN_POSITIVE);
        let (mut farthest, mut steps, mut own_steps) = (apart, optimizer.steps(), optimizer.own_steps().to_vec());
        let mut words = vec![apart.to_bits(), steps, self.controller.staleness_max];
        words.extend(&own_steps);
        let sequence = self.say(bytemuck::cast_slice(&words))?;
        for peer in self.peers() {
            let bytes = self.comm.receive(peer, Tag { purpose: Purpose::Gradient, sequence })?.bytes;
            let words: Vec<u64> = bytemuck::allocation::pod_collect_to_vec(&bytes);
            let [theirs_apart, theirs_steps, age, theirs @ ..] = &words[..] else { return Err(unreadable()) };
            if theirs.len() != own_steps.len() {
                return Err(unreadable());
            }
            farthest = farthest.max(f64::from_bits(*theirs_apart));
            steps = steps.max(*theirs_steps);
            self.controller.staleness_max = self.controller.staleness_max.max(*age);
            own_steps.iter_mut().zip(theirs).for_each(|(own, &theirs)| *own = (*own).max(theirs));
        }
        optimizer.restore(steps, &own_steps, first, second)?;
        parameters.set_values(values)?;
        let reason = self.sync_at.take().map_or(reason, |_| DIVERGENCE);
        self.controller.forced += u64::from(reason == DIVERGENCE);
        self.controller.divergence_max = self.controller.divergence_max.max(farthest);
        self.controller.divergence = 0.0;
        if let Some((at, _)) = &mut self.stop_at {
            *at = self.position; // all ranks are here, and know of it
        }
        self.news.push(News::Synced { batch: self.position, reason, divergence: farthest });
        Ok(())
    }
}

fn length(flat: &Tensor) -> f64 {
    grad_norm(flat)
}
