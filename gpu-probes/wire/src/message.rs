//! Messages between collector and tracer (SOCK_SEQPACKET, one message per packet; descriptors are
//! sent along).
//!
//! ```text
//! collector                         tracer
//!          ◀───────────────────────  COMING (at once: a tracer is here)
//!   HELLO  ───────────────────────▶
//!          ◀───────────────────────  COMING (where it first looks at the process's kernels)
//!          ◀───────────────────────  ARM (+ region, + tag array where asked)   or  DORMANT
//!   ARMED or REFUSED ─────────────▶
//!   … records in the rings …
//!          ◀───────────────────────  RECORD      (where ARM said to wait for it)
//!          ◀───────────────────────  SWITCH      (as often as something else is to be recorded)
//!   IMAGE  ───────────────────────▶             (with demand::DEVICE: code that the program has loaded)
//!          ◀───────────────────────  TWIN        (to each IMAGE)
//!          ◀───────────────────────  READ_DEVICE (as often as the blocks are to be read)
//!          ◀───────────────────────  DISARM      (or the socket closes)
//!   BYE (after the last flush) ───▶
//!
//! dormant collector                 tracer that attaches
//!          ◀───────────────────────  (connects)
//!   COMING ───────────────────────▶
//!          ◀───────────────────────  CALL
//!   … connects to the tracer, as above …
//!   ANSWER ───────────────────────▶
//! ```

/// A message: a kind, up to eight numbers, and a text.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Message {
    pub kind: u32,
    pub words: [u64; 8],
    pub text: String,
}

/// Words: [`crate::VERSION`], the target's own pid, version of the GPU's tracing library (0 if not
/// found), the bits of [`demand`] that the collector supports with it, 1 if it can patch machine code,
/// the number of its [`Vendor`](crate::vendor::Vendor). Text: two lines: that
/// library's path, whose last name is the file's own if it stands in for a vendor's, or why it was not found; why it can't patch machine code, if it can't.
pub const HELLO: u32 = 1;
/// Words: the demand ([`demand`]) with everything that may be asked for during the run, number of rings, bytes per ring, milliseconds between flushes,
/// index of this process in the run, when to record ([`window`]), what to do when another tool in the
/// process uses CUPTI ([`conflict`]), the bits of the demand to record at first. Descriptors: the region, then the tag array if the demand has
/// [`demand::MARKER`], then the device region if it has [`demand::DEVICE`]. Text: five lines: the functions whose calls
/// may be `api` events ([`xputrace_cuda_calls::Functions`]); the GPUs whose launches are recorded, separated by commas,
/// each as [`crate::record::Gpu::is_called`] reads it, empty for all; the functions whose calls are `api` events at first;
/// with [`demand::DEVICE`] what blocks are like ([`crate::device::DeviceRegionShape::to_text`]); likewise, the arrays of Linux that device
/// code uses ([`crate::device::ArrayPlace::all_to_text`]), whose descriptors come behind the others.
pub const ARM: u32 = 2;
/// Nothing to record in this process. Words and text: empty.
pub const DORMANT: u32 = 3;
/// Words: microseconds spent arming. Text: notes for the user, one per line.
pub const ARMED: u32 = 4;
/// Words: CUPTI's result code, 0 if CUPTI was not the cause. Text: what was attempted, and the
/// answer.
pub const REFUSED: u32 = 5;
/// Stop recording, flush, release CUPTI.
pub const DISARM: u32 = 6;
/// The last flush is done. Text: notes, such as what stays in the target.
pub const BYE: u32 = 7;

/// A tracer is here and will answer: from now on the collector waits longer than for a silent one.
pub const COMING: u32 = 8;

/// Record from now on, where ARM said [`window::LATER`]. Words and text: empty.
pub const RECORD: u32 = 9;

/// Record this from now on, and nothing else. Words: demand bits, among those of ARM. Text: the functions whose calls are
/// `api` events, among those of ARM.
pub const SWITCH: u32 = 12;

/// The program has loaded code, and its thread waits for TWIN; or it launches a kernel that it had loaded before; or it has a
/// context in which programs can run. Words: a
/// number of the image that begins at 1 and is not used again, how many PTX modules are in it, size of the memory, the least and
/// the greatest of the process's [`crate::device::ComputeCapabilities`], an [`crate::device::image_kind`]. Descriptor: a sealed
/// memfd of that kind. Text: of a cubin, four lines, each may be empty: the values of [`crate::device::CACHE_VARIABLES`] in the process, and the file that it
/// was loaded from.
pub const IMAGE: u32 = 13;
/// What runs in place of the image's kernels, or in them, or by itself. Words: the number of the image, a [`crate::device::twin_status`], size of
/// the memory. Descriptor, if there is anything: a memfd of that size, sealed against shrinking, with what the status says.
/// Text: empty.
pub const TWIN: u32 = 14;
/// Copy the blocks of all contexts into the device region. Words: a number, which
/// [`answered`](crate::device::Control::answered) is set to when that is done, and a [`crate::device::CopyExtent`]. Text: empty.
pub const READ_DEVICE: u32 = 15;

/// To a dormant collector: connect to a tracer. Words: empty. Text: the tracer's address, as in
/// [`crate::SOCKET_VARIABLE`].
pub const CALL: u32 = 10;
/// What became of a CALL. Words: an [`crate::Answer`]'s code, in 32 bits. Text: empty.
pub const ANSWER: u32 = 11;

/// Returns the name, in the abstract namespace, at which a dormant collector waits for a CALL. `namespace` is the
/// inode of its process's pid namespace, `pid` its process id there.
pub fn dormant_name(namespace: u64, pid: u32) -> String {
    format!("xputrace-dormant-{}-{namespace:x}-{pid}", crate::VERSION)
}

/// When to record. All conditions must hold; without any, always.
pub mod window {
    /// Not before RECORD.
    pub const LATER: u64 = 1;
    /// Between the program's own calls that start and stop the profiler.
    pub const PROFILER: u64 = 2;
    /// While an NVTX range is open whose name is in [`crate::RANGE_VARIABLE`].
    pub const RANGES: u64 = 4;
}

/// What to do when another tool in the process uses CUPTI.
pub mod conflict {
    /// Let it have the records for as long as it uses them.
    pub const YIELD: u64 = 0;
    /// Answer that CUPTI is in use.
    pub const KEEP: u64 = 1;
    /// End the run in this process.
    pub const FAIL: u64 = 2;
}

/// Bits of the demand: what to record beside the calls and activities ([`Details`]), orders of a run, then the calls, the
/// activities and the events of the CPU.
pub mod demand {
    use xputrace_events::{Activities, Activity, Call, Calls, Detail, Details, HostEvent, HostEvents};

    /// In ARM: what is recorded may change during the run.
    pub const SWITCHED: u64 = 1 << 0;
    /// In what records say of their demand, at the same place: it is known.
    pub const TOLD: u64 = SWITCHED;
    /// Send the list of executable mappings (perf could not be opened).
    pub const MAPPINGS: u64 = 1 << 5;

    pub const STACKS: u64 = Detail::Stacks.bit();
    pub const PYTHON: u64 = Detail::Python.bit();
    pub const RANGES: u64 = Detail::Ranges.bit();
    pub const STREAMS: u64 = Detail::Streams.bit();
    /// With [`STREAMS`].
    pub const PRIORITIES: u64 = Detail::Priorities.bit();
    pub const LATENCIES: u64 = Detail::Latencies.bit();
    pub const EXTERNAL: u64 = Detail::ExternalIds.bit();
    pub const MARKER: u64 = Detail::Marker.bit();
    pub const ENDS: u64 = Detail::Ends.bit();
    pub const OUTERMOST: u64 = Detail::Outermost.bit();
    pub const CAPTURES: u64 = Detail::Captures.bit();
    pub const CAPTURES_PYTHON: u64 = Detail::CapturesPython.bit();
    pub const HOST_STACKS: u64 = Detail::CallStacks.bit();
    pub const HOST_PYTHON: u64 = Detail::CallPython.bit();
    pub const HOST_STREAMS: u64 = Detail::CallStreams.bit();
    pub const HOST_RANGES: u64 = Detail::CallRanges.bit();
    pub const HOST_NESTED: u64 = Detail::Nested.bit();

    /// Run twins in place of kernels ([`crate::device`]), with the device region. For the whole run.
    pub const DEVICE: u64 = 1 << 29;

    /// Patch the machine code of kernels by NVIDIA's Sanitizer API, in place of twins; with [`DEVICE`]. CUPTI is not used then,
    /// since the two exclude each other in a process. Any collector takes it: it refuses where the API is missing.
    pub const PATCHES: u64 = 1 << 27;

    /// Record every launch and, with the activity, every kernel, with the times that patches take; with [`PATCHES`].
    pub const PATCHED_KERNELS: u64 = 1 << 26;

    /// Handlers read parameters of kernels, which launches give to patches; with [`PATCHES`].
    pub const ARGUMENTS: u64 = 1 << 25;

    /// What the run orders, beside what is recorded.
    const ORDERS: u64 = SWITCHED | MAPPINGS | DEVICE | PATCHES | PATCHED_KERNELS | ARGUMENTS;

    const _: () = {
        // The sets have 16 bits each, of which they take the lower ones; the rest of the calls' is used by the above.
        let of_sets = calls(Calls::ALL) | activities(Activities::ALL) | host_events(HostEvents::ALL);
        assert!(Details::ALL.bits() & ORDERS == 0 && (Details::ALL.bits() | ORDERS) & of_sets == 0);
        assert!(Call::COUNT < 9 && Activity::COUNT <= 16 && HostEvent::COUNT <= 16);
    };

    const CALLS_AT: u32 = 16;
    const ACTIVITIES_AT: u32 = 32;
    const HOST_EVENTS_AT: u32 = 48;

    /// Returns the bits that record all of these.
    pub const fn of(details: Details, kinds: Calls, of_gpu: Activities, of_host: HostEvents) -> u64 {
        details.bits() | calls(kinds) | activities(of_gpu) | host_events(of_host)
    }

    /// Returns what the record of a launch or of a host event says of the demand that it was recorded under: the
    /// options in the lower half, the activities in the upper one.
    #[inline]
    pub const fn recorded_under(demand: u64) -> u32 {
        ((demand & OPTIONS | TOLD) | (demand >> ACTIVITIES_AT & 0xffff) << 16) as u32
    }

    /// Whether a record that says this was recorded with everything that `needed` has of what it says. Recordings of
    /// earlier versions say nothing, and have everything.
    #[inline]
    pub const fn has_all(told: u32, needed: u32) -> bool {
        told & TOLD as u32 == 0 || needed & !told & !(TOLD as u32) == 0
    }

    /// Whether a record that says this was recorded while any of these activities was. Those of earlier versions were.
    #[inline]
    pub const fn has_any(told: u32, activities: Activities) -> bool {
        told & TOLD as u32 == 0 || Activities::from_bits((told >> 16) as u16).intersects(activities)
    }

    /// What records tell of: the lowest bits.
    const OPTIONS: u64 = 0xffff;

    /// Returns the bits that record these events of the CPU.
    pub const fn host_events(kinds: HostEvents) -> u64 {
        (kinds.bits() as u64) << HOST_EVENTS_AT
    }

    /// Returns the events of the CPU that a demand includes.
    pub const fn host_events_of(demand: u64) -> HostEvents {
        HostEvents::from_bits((demand >> HOST_EVENTS_AT) as u16)
    }

    /// Returns the bits that record these calls.
    pub const fn calls(kinds: Calls) -> u64 {
        (kinds.bits() as u64) << CALLS_AT
    }

    /// Returns the bits that record these activities.
    pub const fn activities(kinds: Activities) -> u64 {
        (kinds.bits() as u64) << ACTIVITIES_AT
    }

    /// Returns the calls that a demand includes.
    pub const fn calls_of(demand: u64) -> Calls {
        Calls::from_bits((demand >> CALLS_AT) as u16)
    }

    /// Returns the activities that a demand includes.
    pub const fn activities_of(demand: u64) -> Activities {
        Activities::from_bits((demand >> ACTIVITIES_AT) as u16)
    }

    /// Calls that launch a kernel or a graph.
    pub const LAUNCHES: u64 = calls(Calls::LAUNCHES);
    pub const KERNELS: u64 = activities(Activities::of(&[Activity::Kernel]));
    pub const MEMSETS: u64 = activities(Activities::of(&[Activity::Memset]));
    pub const GRAPHS: u64 = activities(Activities::of(&[Activity::Graph]));
    pub const MEMSET_CALLS: u64 = calls(Calls::of(&[Call::Memset]));
    pub const MEMCPYS: u64 = activities(Activities::of(&[Activity::Memcpy]));
    pub const MEMCPY_CALLS: u64 = calls(Calls::of(&[Call::Memcpy]));
}

/// Maximum size of an encoded message.
pub const MAX_SIZE: usize = 4 + 64 + MAX_TEXT;
const MAX_TEXT: usize = 3500;

impl Message {
    /// Creates a message; missing words are 0.
    pub fn new(kind: u32, words: &[u64], text: impl Into<String>) -> Self {
        let mut all = [0; 8];
        for (to, from) in all.iter_mut().zip(words) {
            *to = *from;
        }
        Message { kind, words: all, text: text.into() }
    }

    /// Encodes the message; cuts an overlong text at a character boundary.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.kind.to_le_bytes().to_vec();
        for word in self.words {
            out.extend(word.to_le_bytes());
        }
        let cut = (0..=self.text.len().min(MAX_TEXT)).rev().find(|&i| self.text.is_char_boundary(i)).unwrap_or(0);
        out.extend(&self.text.as_bytes()[..cut]);
        out
    }

    /// Decodes a packet; returns `None` if it is too short.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let kind = u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?);
        let mut words = [0; 8];
        for (word, chunk) in words.iter_mut().zip(bytes.get(4..68)?.chunks_exact(8)) {
            *word = u64::from_le_bytes(chunk.try_into().ok()?);
        }
        Some(Message { kind, words, text: String::from_utf8_lossy(&bytes[68..]).into_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_packet_is_a_message_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let Some(message) = Message::decode(&bytes) else { return Ok(()) };
            // Each invalid byte is replaced by at most three bytes.
            prop_assert!(message.text.len() <= bytes.len() * 3);
            prop_assert_eq!(Message::decode(&message.encode()), Some(message));
        }
    }

    #[test]
    fn messages_round_trip_and_short_ones_are_refused() {
        let message = Message::new(HELLO, &[1, 2, 3], "libcupti.so.13 ä");
        assert_eq!(Message::decode(&message.encode()), Some(message));
        assert_eq!(Message::decode(&[1, 0, 0]), None);
        let long = Message::new(BYE, &[], "ä".repeat(4000)).encode();
        assert!(long.len() <= MAX_SIZE && Message::decode(&long).is_some());
    }
}
