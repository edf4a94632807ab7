//! One exchange: joined with a window of contributions, taken in once the sum and all ranks' words on it are here.

use super::{Racom, WORDS, unreadable};
use crate::comms::{Purpose, Tag};
use crate::error::Result;
use crate::gradient::sketch::sketch;
use crate::gradient::window::Window;
use crate::pipeline::flat_sum::FlatSum;
use crate::stats::Timeline;
use std::time::Instant;
use tch::{Kind, Tensor};
use tidemill_models::optimizer::grad_norm;
use tidemill_models::parameters::Parameters;

/// What an exchange under way needs to be taken in.
pub(super) struct Flight {
    started: Instant,
    own: Tensor,
    pub(super) sum: FlatSum,
    number: u64,
    windows: Vec<Option<Window>>,
}

impl Racom {
    /// Joins the next exchange with the contributions since the last, and returns at once.
    pub(super) fn join(&mut self, parameters: &Parameters) -> Result<()> {
        let own = self.sum.take().unwrap_or_else(|| parameters.grads().zeros_like());
        let next = Window { first: self.position, end: self.position, ..Window::default() };
        let mut window = std::mem::replace(&mut self.open, next);
        window.took_part.resize(parameters.names().count(), false);
        window.norm = grad_norm(&own);
        window.sketch = sketch_of(parameters.values());
        let number = self.say(&window.to_bytes())?;
        let sum = self.start_sum(&own)?;
        let mut windows = vec![None; self.comm.world()];
        windows[self.comm.rank()] = Some(window);
        self.flight = Some(Flight { started: Instant::now(), own, sum, number, windows });
        Ok(())
    }

    pub(super) fn start_sum(&mut self, tensor: &Tensor) -> Result<FlatSum> {
        self.sums += 1;
        FlatSum::start(&self.comm, self.sums, tensor)
    }

    /// Sends the same words to all others; their number.
    pub(super) fn say(&mut self, bytes: &[u8]) -> Result<u64> {
        let tag = Tag { purpose: Purpose::Gradient, sequence: WORDS | self.words };
        self.words += 1;
        self.peers().try_for_each(|peer| self.comm.send(peer, tag, bytes.to_vec()))?;
        Ok(tag.sequence)
    }

    pub(super) fn peers(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.comm.rank();
        (0..self.comm.world()).filter(move |&rank| rank != own)
    }

    /// Takes the exchange under way in if it is complete; false if it is not finite.
    pub(super) fn take_in(&mut self, times: &mut Timeline) -> Result<bool> {
        let peers = self.peers();
        let Some(flight) = &mut self.flight else { return Ok(true) };
        let mut complete = flight.sum.progress()?;
        for peer in peers.filter(|&peer| flight.windows[peer].is_none()).collect::<Vec<_>>() {
            let tag = Tag { purpose: Purpose::Gradient, sequence: flight.number };
            match self.comm.try_receive(peer, tag)? {
                Some(message) => flight.windows[peer] = Some(window(&message.bytes)?),
                None => complete = false,
            }
        }
        if complete { self.wait(times) } else { Ok(true) }
    }

    /// Takes the exchange under way in once it is complete; false if it is not finite.
    pub(super) fn wait(&mut self, times: &mut Timeline) -> Result<bool> {
        let Some(flight) = self.flight.take() else { return Ok(true) };
        let total = flight.sum.wait()?;
        let tag = Tag { purpose: Purpose::Gradient, sequence: flight.number };
        let mut windows = Vec::new();
        for (peer, known) in flight.windows.into_iter().enumerate() {
            windows.push(match known {
                Some(window) => window,
                None => window(&self.comm.receive(peer, tag)?.bytes)?,
            });
        }
        times.add_exchange(windows[self.comm.rank()].end.saturating_sub(1), flight.started);
        let norm = grad_norm(&total);
        self.arrive(&(total - flight.own), &windows);
        self.note(&windows);
        self.judge(&windows, norm);
        Ok(norm.is_finite())
    }

    /// Keeps the others' part of a sum for the next step.
    fn arrive(&mut self, others: &Tensor, windows: &[Window]) {
        let own = self.comm.rank();
        for (rank, window) in windows.iter().enumerate() {
            assert_eq!(window.first, self.here[rank], "a rank's windows follow each other");
            self.here[rank] = window.end;
            if rank == own || window.batches() == 0 {
                continue;
            }
            self.contributions += window.batches();
            let age = (self.position - 1).saturating_sub(window.first) as u64;
            self.controller.staleness_max = self.controller.staleness_max.max(age);
        }
        let theirs = || windows.iter().enumerate().filter(|&(rank, window)| rank != own && window.batches() > 0);
        if theirs().next().is_none() {
            return;
        }
        match &mut self.arrived {
            Some(arrived) => drop(arrived.g_add_(others)),
            None => {
                self.arrived = Some(others.copy());
                self.arrived_took_part.clear();
            }
        }
        for (_, window) in theirs() {
            self.arrived_took_part.resize(window.took_part.len(), false);
            self.arrived_took_part.iter_mut().zip(&window.took_part).for_each(|(ours, &theirs)| *ours |= theirs);
        }
    }
}

fn sketch_of(values: &Tensor) -> Vec<f32> {
    let values = Vec::<f64>::try_from(values.detach().to_kind(Kind::Double)).expect("a flat tensor");
    sketch(values.into_iter())
}

fn window(bytes: &[u8]) -> Result<Window> {
    Window::from_bytes(bytes).ok_or_else(unreadable)
}
