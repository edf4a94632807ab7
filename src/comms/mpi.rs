//! MPI by way of rsmpi: start, frames out and in without blocking, abort. The only file that names the crate.
//!
//! All calls but [`World::start`]'s are made by the thread that started it (`MPI_THREAD_FUNNELED`); a `World` is not `Send`.
//! The calls are the C interface's: rsmpi's own requests live in scopes, and a queue of sends has none.

use super::wire::{BLOCK, BLOCKED_FROM};
use crate::error::{Error, Result};
use mpi::Threading;
use mpi::environment::Universe;
use mpi::ffi;
use mpi::topology::Communicator as _;
use std::ffi::c_int;
use std::mem::ManuallyDrop;

/// A frame with the peer and its number among the peer's.
type Numbered = (usize, u64, Vec<u8>);

/// What MPI said of an operation that failed, with the peer if it is known.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) peer: Option<usize>,
    pub(super) problem: String,
}

/// MPI between its initialisation and its finalisation. Dropped without [`World::finalize`], MPI is left as it is: to
/// finalize is collective, and a lost rank would hold it up.
pub(super) struct World {
    universe: ManuallyDrop<Universe>,
    rank: usize,
    size: usize,
    sends: Vec<Transfer>,
    /// Messages matched so far, by sender.
    matched: Vec<u64>,
    receives: Vec<Transfer>,
    /// Blocks of [`BLOCK`] bytes.
    blocks: ffi::MPI_Datatype,
}

/// A transfer under way. Its buffer may neither move nor go before MPI is done with it.
struct Transfer {
    request: ffi::MPI_Request,
    peer: usize,
    /// Which message of its sender this is; MPI matches them in the order they were sent.
    number: u64,
    buffer: ManuallyDrop<Vec<u8>>,
}

impl World {
    /// Initialises MPI; the calling thread owns it from now on.
    ///
    /// # Errors
    /// MPI is in use already, or its library allows no second thread in the process.
    pub(super) fn start() -> Result<World> {
        let refused = |problem: &str| Error::Comms {
            problem: problem.to_owned(),
            mend: "start tidemill with mpirun, once per process".to_owned(),
        };
        let (universe, level) =
            mpi::initialize_with_threading(Threading::Funneled).ok_or_else(|| refused("MPI was initialised before"))?;
        if level < Threading::Funneled {
            return Err(refused("this MPI library does not allow threads beside its own"));
        }
        let world = universe.world();
        let place = |number: i32| usize::try_from(number).expect("ranks are not negative");
        let (rank, size) = (place(world.rank()), place(world.size()));
        let (sends, receives) = (Vec::new(), Vec::new());
        let (universe, matched) = (ManuallyDrop::new(universe), vec![0; size]);
        Ok(World { universe, rank, size, sends, matched, receives, blocks: blocks() })
    }

    pub(super) fn rank(&self) -> usize {
        self.rank
    }

    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Starts to send a frame.
    pub(super) fn send(&mut self, to: usize, frame: Vec<u8>) -> std::result::Result<(), Fault> {
        let (count, datatype) = self.count(frame.len());
        let mut send = Transfer { request: null_request(), peer: to, number: 0, buffer: ManuallyDrop::new(frame) };
        // SAFETY: the buffer holds `count` of `datatype` and stays where it is until the request is complete; this thread
        // owns MPI, which is initialised.
        let code = unsafe {
            ffi::MPI_Isend(
                send.buffer.as_ptr().cast(),
                count,
                datatype,
                c_rank(to),
                TAG,
                world(),
                &raw mut send.request,
            )
        };
        check(code).map_err(|problem| Fault { peer: Some(to), problem })?;
        if send.is_done()? {
            drop(send.take());
        } else {
            self.sends.push(send);
        }
        Ok(())
    }

    /// Moves transfers on; the frames that have come, each with its sender and its number among that sender's; whether anything
    /// happened.
    pub(super) fn advance(&mut self, frames: &mut Vec<Numbered>) -> std::result::Result<bool, Fault> {
        let before = frames.len();
        while let Some(mut receive) = self.match_next()? {
            if receive.is_done()? {
                frames.push(receive.take());
            } else {
                self.receives.push(receive);
            }
        }
        let mut sent = Vec::new();
        settle(&mut self.sends, &mut sent)?;
        settle(&mut self.receives, frames)?;
        Ok(frames.len() > before || !sent.is_empty())
    }

    /// Whether sends or receives are under way.
    pub(super) fn is_busy(&self) -> bool {
        !self.sends.is_empty() || !self.receives.is_empty()
    }

    /// Whether every send has left.
    pub(super) fn has_sent_all(&self) -> bool {
        self.sends.is_empty()
    }

    /// Finalizes MPI, together with all other ranks.
    pub(super) fn finalize(mut self) {
        assert!(!self.is_busy(), "nothing is under way at the end");
        // SAFETY: taken once, and `self` goes with it.
        drop(unsafe { ManuallyDrop::take(&mut self.universe) });
    }

    /// Ends every rank at once, without any collective.
    pub(super) fn abort(&self, exit_code: u8) -> ! {
        self.universe.world().abort(i32::from(exit_code))
    }

    /// Starts to receive the next frame that anyone has sent, if there is one.
    fn match_next(&mut self) -> std::result::Result<Option<Transfer>, Fault> {
        let unknown = |problem| Fault { peer: None, problem };
        let (mut flag, mut message, mut status) = (0, null_message(), empty_status());
        // SAFETY: all pointers are to locals; this thread owns MPI, which is initialised.
        let code = unsafe {
            ffi::MPI_Improbe(ffi::RSMPI_ANY_SOURCE, TAG, world(), &raw mut flag, &raw mut message, &raw mut status)
        };
        check(code).map_err(unknown)?;
        if flag == 0 {
            return Ok(None);
        }
        let peer = usize::try_from(status.MPI_SOURCE).expect("a sender is a rank");
        let length = self.length(&status).map_err(|problem| Fault { peer: Some(peer), problem })?;
        let mut receive = Transfer {
            request: null_request(),
            peer,
            number: self.matched[peer],
            buffer: ManuallyDrop::new(Vec::with_capacity(length)),
        };
        self.matched[peer] += 1;
        let (count, datatype) = self.count(length);
        // SAFETY: the buffer has room for `count` of `datatype` and stays where it is until the request is complete.
        let code = unsafe {
            let buffer = receive.buffer.as_mut_ptr().cast();
            ffi::MPI_Imrecv(buffer, count, datatype, &raw mut message, &raw mut receive.request)
        };
        check(code).map_err(|problem| Fault { peer: Some(peer), problem })?;
        // SAFETY: the bytes are read once the request is complete, when MPI has written all of them.
        unsafe { receive.buffer.set_len(length) };
        Ok(Some(receive))
    }

    /// How MPI counts a frame of so many bytes.
    fn count(&self, length: usize) -> (c_int, ffi::MPI_Datatype) {
        let whole = |count: usize| c_int::try_from(count).expect("a message is shorter than 8 TiB");
        if length >= BLOCKED_FROM { (whole(length / BLOCK), self.blocks) } else { (whole(length), byte()) }
    }

    /// Bytes of a message that was matched.
    fn length(&self, status: &ffi::MPI_Status) -> std::result::Result<usize, String> {
        for (datatype, size) in [(byte(), 1), (self.blocks, BLOCK)] {
            let mut count = 0;
            // SAFETY: both pointers are to live values; the datatypes are MPI's own and one that was committed.
            check(unsafe { ffi::MPI_Get_count(status, datatype, &raw mut count) })?;
            // Undefined, a negative number, if `int` can not hold it.
            if let Ok(count) = usize::try_from(count) {
                return Ok(count * size);
            }
        }
        Err("a message has an impossible length".to_owned())
    }
}

impl Transfer {
    fn is_done(&mut self) -> std::result::Result<bool, Fault> {
        let mut flag = 0;
        // SAFETY: the request is one of MPI's, or null once it is complete, which is complete too.
        let code = unsafe { ffi::MPI_Test(&raw mut self.request, &raw mut flag, ffi::RSMPI_STATUS_IGNORE) };
        check(code).map_err(|problem| Fault { peer: Some(self.peer), problem })?;
        Ok(flag != 0)
    }

    /// The peer, the number and the buffer, once the transfer is done. One that is not leaks its buffer when dropped: MPI may use it.
    fn take(self) -> Numbered {
        (self.peer, self.number, ManuallyDrop::into_inner(self.buffer))
    }
}

/// Moves transfers that are done to `done`.
fn settle(transfers: &mut Vec<Transfer>, done: &mut Vec<Numbered>) -> std::result::Result<(), Fault> {
    let mut at = 0;
    while at < transfers.len() {
        if transfers[at].is_done()? {
            done.push(transfers.remove(at).take());
        } else {
            at += 1;
        }
    }
    Ok(())
}

/// All frames carry one tag; their trailers tell them apart.
const TAG: c_int = 0;

fn c_rank(rank: usize) -> c_int {
    c_int::try_from(rank).expect("MPI's ranks are ints")
}

fn world() -> ffi::MPI_Comm {
    // SAFETY: a constant of the C library.
    unsafe { ffi::RSMPI_COMM_WORLD }
}

fn byte() -> ffi::MPI_Datatype {
    // SAFETY: a constant of the C library.
    unsafe { ffi::RSMPI_UINT8_T }
}

fn null_request() -> ffi::MPI_Request {
    // SAFETY: a constant of the C library.
    unsafe { ffi::RSMPI_REQUEST_NULL }
}

fn null_message() -> ffi::MPI_Message {
    // SAFETY: a constant of the C library.
    unsafe { ffi::RSMPI_MESSAGE_NULL }
}

fn empty_status() -> ffi::MPI_Status {
    // SAFETY: a C struct of numbers, for which zeros are values.
    unsafe { std::mem::zeroed() }
}

/// Makes the datatype of blocks, and has errors returned: a lost peer is to be named, not to end the process at once.
fn blocks() -> ffi::MPI_Datatype {
    let mut blocks = byte();
    // SAFETY: this thread has just initialised MPI; the pointers are to a local.
    unsafe {
        ffi::MPI_Comm_set_errhandler(world(), ffi::RSMPI_ERRORS_RETURN);
        ffi::MPI_Type_contiguous(BLOCK as c_int, byte(), &raw mut blocks);
        ffi::MPI_Type_commit(&raw mut blocks);
    }
    blocks
}

/// MPI's words for a code that is not success.
fn check(code: c_int) -> std::result::Result<(), String> {
    if code == ffi::MPI_SUCCESS as c_int {
        return Ok(());
    }
    let mut text = [0u8; ffi::MPI_MAX_ERROR_STRING as usize];
    let mut length = 0;
    // SAFETY: the buffer has the length that MPI demands.
    unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr().cast(), &raw mut length) };
    let text = &text[..usize::try_from(length).unwrap_or(0).min(text.len())];
    Err(format!("MPI says {}", String::from_utf8_lossy(text).trim()))
}
