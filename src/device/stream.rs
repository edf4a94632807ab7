//! Streams and events: a device's queues of work, and marks in them that other queues wait for.
//!
//! Device-generic: `stream.cpp` speaks to whatever backend libtorch has loaded, and to a twin of its own on the CPU, where work
//! is done when its call returns and a recorded event is past. So the pipeline hands batches over in one way on all devices, and
//! tests on the CPU walk the same path. Deliberately absent: waiting for a whole device, or for a stream from the host.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use tch::{Device, Tensor};

/// What a backend said.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the device's streams can not be used: {0}")]
pub struct StreamError(pub String);

/// A queue of work on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Stream {
    id: i64,
    index: i32,
    kind: i32,
}

/// A mark in a stream.
#[derive(Debug)]
pub struct Event(*mut c_void);

// SAFETY: an event is a handle without ties to a thread; `&mut` or `&` as usual rule who may use it.
unsafe impl Send for Event {}
// SAFETY: what takes `&Event` reads it: to block a stream and to query are const in c10.
unsafe impl Sync for Event {}

unsafe extern "C" {
    fn tidemill_stream_error() -> *const c_char;
    fn tidemill_stream_new(stream: *mut Stream) -> c_int;
    fn tidemill_stream_current(stream: *mut Stream) -> c_int;
    fn tidemill_stream_exchange(stream: *mut Stream) -> c_int;
    fn tidemill_stream_keep(stream: *const Stream, tensor: *const c_void) -> c_int;
    fn tidemill_event_new(at: *const Stream, event: *mut *mut c_void) -> c_int;
    fn tidemill_event_record(event: *mut c_void, stream: *const Stream) -> c_int;
    fn tidemill_event_block(event: *const c_void, stream: *const Stream) -> c_int;
    fn tidemill_event_query(event: *const c_void, past: *mut bool) -> c_int;
    fn tidemill_event_free(event: *mut c_void);
}

fn check(code: c_int) -> Result<(), StreamError> {
    if code == 0 {
        return Ok(());
    }
    // SAFETY: the words of this thread's latest error, ended by a zero, which live until its next one.
    let words = unsafe { CStr::from_ptr(tidemill_stream_error()) };
    Err(StreamError(words.to_string_lossy().lines().next().unwrap_or_default().to_owned()))
}

impl Stream {
    /// The device as the shim takes it: c10's numbers of device types.
    fn on(device: Device) -> Stream {
        let (kind, index) = match device {
            Device::Cpu => (0, 0),
            Device::Cuda(index) => (1, index as i32),
            Device::Vulkan => (10, 0),
            Device::Mps => (13, 0),
        };
        Stream { id: 0, index, kind }
    }

    /// A stream of its own on `device`.
    ///
    /// # Errors
    /// If the device's backend is not loaded, or refuses.
    pub fn new(device: Device) -> Result<Stream, StreamError> {
        let mut stream = Stream::on(device);
        // SAFETY: the shim reads and writes the struct, whose layout is its own, and throws nothing.
        check(unsafe { tidemill_stream_new(&raw mut stream) })?;
        Ok(stream)
    }

    /// The stream that the calling thread gives its work to.
    ///
    /// # Errors
    /// As [`Stream::new`].
    pub fn current(device: Device) -> Result<Stream, StreamError> {
        let mut stream = Stream::on(device);
        // SAFETY: as in `new`.
        check(unsafe { tidemill_stream_current(&raw mut stream) })?;
        Ok(stream)
    }

    /// Makes this the stream that the calling thread gives its work to; returns the former one.
    ///
    /// # Errors
    /// As [`Stream::new`].
    pub fn make_current(self) -> Result<Stream, StreamError> {
        let mut stream = self;
        // SAFETY: as in `new`.
        check(unsafe { tidemill_stream_exchange(&raw mut stream) })?;
        Ok(stream)
    }

    /// Keeps a tensor's memory, made on another stream, from being given away before this stream's work until now is done.
    ///
    /// # Errors
    /// As [`Stream::new`].
    pub fn keep(self, tensor: &Tensor) -> Result<(), StreamError> {
        // SAFETY: a tensor's pointer is an `at::Tensor*`, which is a `TensorBase*` and valid while the reference is.
        check(unsafe { tidemill_stream_keep(&raw const self, tensor.as_ptr().cast()) })
    }
}

impl Event {
    /// An event that marks nothing yet: who waits for it does not wait.
    ///
    /// # Errors
    /// As [`Stream::new`].
    pub fn new(device: Device) -> Result<Event, StreamError> {
        let (at, mut event) = (Stream::on(device), ptr::null_mut());
        // SAFETY: the shim writes a handle, which `drop` gives back.
        check(unsafe { tidemill_event_new(&raw const at, &raw mut event) })?;
        Ok(Event(event))
    }

    /// Marks what the stream has been given until now.
    ///
    /// # Errors
    /// If the stream is another device's, or the backend refuses.
    pub fn record(&mut self, stream: Stream) -> Result<(), StreamError> {
        // SAFETY: the handle is alive and `&mut` keeps others away.
        check(unsafe { tidemill_event_record(self.0, &raw const stream) })
    }

    /// What `stream` is given from now on waits for the mark; the calling thread does not.
    ///
    /// # Errors
    /// As [`Event::record`].
    pub fn hold(&self, stream: Stream) -> Result<(), StreamError> {
        // SAFETY: the handle is alive.
        check(unsafe { tidemill_event_block(self.0, &raw const stream) })
    }

    /// Whether what was marked is done.
    ///
    /// # Errors
    /// As [`Event::record`].
    pub fn is_past(&self) -> Result<bool, StreamError> {
        let mut past = false;
        // SAFETY: the handle is alive.
        check(unsafe { tidemill_event_query(self.0, &raw mut past) })?;
        Ok(past)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made by the shim and given back once.
        unsafe { tidemill_event_free(self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPU: Device = Device::Cpu;

    #[test]
    fn each_thread_has_a_current_stream_of_its_own() {
        let (a, b) = (Stream::new(CPU).expect("a"), Stream::new(CPU).expect("b"));
        assert_ne!(a, b);
        let first = a.make_current().expect("exchanged");
        assert_eq!((Stream::current(CPU).expect("current"), b.make_current().expect("exchanged")), (a, a));
        let elsewhere = std::thread::spawn(|| Stream::current(CPU).expect("current")).join().expect("no panic");
        assert_ne!(elsewhere, b);
        assert_eq!(first.make_current().expect("exchanged"), b);
    }

    #[test]
    fn a_hand_over_between_two_threads() {
        let mut event = Event::new(CPU).expect("an event");
        event.hold(Stream::current(CPU).expect("current")).expect("an event that marks nothing holds up nothing");
        let (tensor, event) = std::thread::spawn(move || {
            let own = Stream::new(CPU).expect("a stream");
            own.make_current().expect("exchanged");
            let tensor = Tensor::from_slice(&[1f32, 2.0]);
            event.record(own).expect("recorded");
            (tensor, event)
        })
        .join()
        .expect("no panic");
        let here = Stream::current(CPU).expect("current");
        event.hold(here).expect("held");
        here.keep(&tensor).expect("kept");
        assert!(event.is_past().expect("answered"));
        assert_eq!(tensor.double_value(&[1]), 2.0);
    }

    /// What a backend throws comes back as its words: a device that is not there, an event that meets another device's stream.
    #[test]
    fn what_is_thrown_is_an_error() {
        let mut event = Event::new(CPU).expect("an event");
        let other = Stream { kind: 13, ..Stream::on(CPU) };
        let error = event.record(other).expect_err("another device");
        assert!(error.0.contains("device type 0") && event.hold(other).is_err(), "{error}");
        if !tch::utils::has_mps() {
            assert!(Stream::new(Device::Mps).is_err() && Event::new(Device::Mps).and_then(|e| e.is_past()).is_err());
        }
    }
}
