//! Code inside the GPU's kernels: what collector and tracer exchange to run a *twin* in place of a kernel.
//!
//! ```text
//! collector                                      tracer
//! module is loaded ── IMAGE: the PTX in it ────▶ weaves
//! loads it         ◀─ TWIN: code, kernels ─────  (or: nothing to probe in it)
//! launch of a kernel ─▶ its twin
//!                  ◀─ READ_DEVICE ─────────────
//! block ─▶ slot of its context ────────────────▶ interprets it
//! ```
//! All device maps of a process are in one *block* of bytes, whose offsets are relative to its beginning. The collector
//! allocates one in each context, fills it with the initial bytes, and knows nothing of it but its size.
//!
//! Some handlers run at some launches only. What decides is a *condition* ([`Condition`]), of which a kernel's handlers have
//! [`MOST_KERNEL_CONDITIONS`] at most. The kernel has a twin for each subset of them ([`Choice`]), and at each launch the
//! collector takes that of the conditions which hold, or the original where no handler is to run.
//!
//! What a twin has, besides its kernels:
//!
//! ```text
//! .visible .global .align 8 .u64 xpt_device[N];     the block's address, for handlers without a condition and those of each
//!                                                   one; 0 where they are to do nothing
//! .visible .const .align 8 .u64 xpt_globals[N];     addresses of the original's variables, where the twin names any
//! .visible .const .align 8 .u64 xpt_names[N];       string ids of names, where the twin reads any
//! ```
//! All are set in each context before a twin is launched there.
//!
//! Code that was loaded before the collector came is asked for by the symbols of its kernels, at the first launch of each
//! ([`image_kind::KERNEL`]); nobody waits for the answer.
//!
//! A *patch* is for kernels without PTX: functions that NVIDIA's Sanitizer API has a kernel's machine code call. The tracer answers
//! with [`Patches`] then. A launch gives them the address of its kernel's words ([`kernel_words`]), or 0 if they are to do
//! nothing.
//!
//! A compiled object may have programs that run in kernels of their own, once in a run. Where a process has a context with a
//! block, its collector says so ([`image_kind::PROGRAMS`]); the tracer answers one of them with [`Programs`], which the collector
//! launches there, and says in [`ProgramsAccount`] what became of them.
//!
//! A block may have a *ring* of records ([`RingPlace`]). Twins put records into it, and the tracer says in [`ContextSlot::read`] how far it
//! has read: the collector writes that into the block before it copies it.
//!
//! The device region is a sealed memfd of the tracer's: [`Control`] in one page, the initial bytes, and a copy of the
//! block of each context. Sizes come with messages, never from this memory.

use crate::region::PAGE;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64};
pub use xputrace_events::device::{MOST_ARGUMENTS, MOST_CONDITIONS, MOST_KERNEL_CONDITIONS};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The twin's variable for the block's address: 8 bytes for handlers without a condition, then 8 for each condition, by its
/// number, as far as the twin has any. Nodes of graphs keep their twins: this is what switches those off.
pub const BLOCK_VARIABLE: &str = "xpt_device";
/// The twin's variable for addresses of the original's variables: 8 bytes each, in the order of [`Twin::variables`].
pub const GLOBALS_VARIABLE: &str = "xpt_globals";
/// The twin's variable for string ids of names: 8 bytes each, of its kernels in the order of [`Twin::kernels`], and behind them of
/// functions that they call.
pub const NAMES_VARIABLE: &str = "xpt_names";
/// Offset in the block of the word with the process id in its upper half, and the same id in the lower one.
pub const PID_TGID: usize = 8;
/// Offset in the block of the word that handlers add to `%globaltimer`, so that it is CLOCK_MONOTONIC in nanoseconds. Only the
/// collector writes it.
pub const CLOCK_OFFSET: usize = 16;
/// Offset in the block of the word that says whether patches do anything: 1, or 0 for nothing. The tracer's initial bytes set
/// it. Twins have [`BLOCK_VARIABLE`] for that.
pub const ENABLED: usize = 0;

/// What a twin's symbol has behind the original's. C++ compilers make no such names, and PTX accepts them.
const TWIN_SUFFIX: &str = "$xpt";

/// Returns the symbol of a kernel's twin.
pub fn twin_symbol(original: &str) -> String {
    format!("{original}{TWIN_SUFFIX}")
}

/// Returns the symbol of the kernel that a symbol is the twin of; the symbol itself if it is no twin's.
pub fn original_symbol(symbol: &str) -> &str {
    symbol.strip_suffix(TWIN_SUFFIX).unwrap_or(symbol)
}

/// Contexts of a process that can have a block.
pub const MOST_CONTEXTS: usize = 16;
/// Size of the largest block.
pub const MOST_BLOCK_BYTES: u64 = 1 << 30;
/// Size of the largest memory with an image or a twin.
pub const MOST_IMAGE_BYTES: u64 = 64 << 20;

/// Lists the variants once: their positions follow from it.
macro_rules! counted {
    ($(#[$of:meta])* $Name:ident { $( $(#[$doc:meta])* $Kind:ident, )* }) => {
        $(#[$of])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum $Name { $( $(#[$doc])* $Kind, )* }

        impl $Name {
            /// Every variant, by position.
            pub const ALL: &'static [$Name] = &[$( $Name::$Kind ),*];
            pub const COUNT: usize = $Name::ALL.len();
        }
    };
}

counted! {
    /// Why a launch of a kernel that has a twin ran the original. New reasons come last.
    Unprobed {
        /// The context was not prepared in time, or could not be.
        NotReady,
        /// A cooperative launch: the twin may not fit on the GPU as a whole, and the driver would refuse it.
        Cooperative,
        /// Nobody names the context in which it runs, or there are more than [`MOST_CONTEXTS`].
        NoContext,
        /// The twin did not take an attribute of the original, such as its dynamic shared memory.
        AttributeRefused,
        /// Its blocks have more threads than a twin has registers for.
        BlockTooLarge,
        /// The twin may not fit on the GPU as a whole where the original does: blocks that wait for each other would never
        /// end.
        MayNotFit,
        /// A node of a graph, for patches with `every` or a tag: the nodes of a kernel have the same words there.
        InGraph,
        /// Its code was loaded before we came, and no file of the program has it.
        NotInFiles,
        /// Likewise, and its file has machine code of it alone.
        NoPortableCode,
        /// Likewise, and the PTX that its file has is not that of its code.
        OlderPortableCode,
        /// Likewise, and files have different kernels of its name.
        Ambiguous,
        /// Likewise, and the kernel of its name has other parameters, or the driver does not tell them.
        Unlike,
        /// Likewise, and its twin could not be made or loaded.
        NoTwin,
        /// Likewise, and it is not known yet whether it has a twin.
        NotKnown,
        /// It may be such a kernel, of more than the collector has room for.
        TooManyKernels,
    }
}

counted! {
    /// What became of an image that the program loaded. New outcomes come last.
    ImageOutcome {
        /// Its twin is loaded.
        Twinned,
        /// The tracer has nothing to probe in it.
        NothingToProbe,
        /// It has no PTX, and none was found elsewhere.
        NoPortableCode,
        /// Its PTX is larger than [`MOST_IMAGE_BYTES`].
        TooLarge,
        /// Its memory could not be read, or is not as its headers say.
        Unreadable,
        /// The tracer could not make a twin.
        NotWoven,
        /// The tracer did not answer in time, or what it sent could not be used.
        NoAnswer,
        /// The driver did not load the twin, or lacks something that it needs.
        NotLoaded,
        /// A file that could not be read.
        File,
        /// The collector has no room for more kernels.
        TableFull,
        /// It has PTX, but its code for this GPU was made from other PTX.
        OlderPortableCode,
        /// Of a kernel alone: no file of the program has it.
        NotInFiles,
        /// Likewise: the program's files have different ones of its name.
        Ambiguous,
        /// Likewise: that of the twin has other parameters, or the driver does not tell them.
        Unlike,
    }
}

counted! {
    /// What became of the programs that a process got to run in kernels of their own. New ones come last.
    ProgramsState {
        /// Nothing was launched so far.
        Waiting,
        /// They were launched, and have not all ended.
        Running,
        /// All have ended.
        Done,
        /// The driver did not load their code.
        NotLoaded,
        /// It refused a launch: that behind [`ProgramsAccount::launched`].
        NotLaunched,
        /// A kernel failed while they ran, which may be one of theirs.
        Failed,
        /// Their context had ended, or the run, before they had.
        CutOff,
    }
}

/// What a collector says of the programs that it was asked to run.
#[repr(C)]
#[derive(Default, Debug)]
pub struct ProgramsAccount {
    /// A [`ProgramsState`].
    pub state: AtomicU32,
    /// How many were launched, in their order.
    pub launched: AtomicU32,
    /// What CUDA answered (`CUresult`) where something failed.
    pub failure: AtomicU32,
    /// The slot of their context.
    pub slot: AtomicU32,
}

/// The device region's first page.
#[repr(C, align(64))]
#[derive(Default, Debug)]
pub struct Control {
    /// Size of a block, for readers of the memory; the collector takes it from ARM.
    pub block_bytes: AtomicU64,
    /// The number of the last READ_DEVICE that is done in all contexts.
    pub answered: AtomicU64,
    /// Number of contexts that have had a block so far: the first of `slots` are theirs.
    pub contexts: AtomicU32,
    /// 1 if handlers read the GPU's timer, from the tracer: then the collector measures what [`CLOCK_OFFSET`] is to be.
    pub reads_clock: AtomicU32,
    /// 1 if the tracer has programs that run in kernels of their own, and wants to know of a context for them.
    pub has_programs: AtomicU32,
    pub unused: AtomicU32,
    pub programs: ProgramsAccount,
    /// Launches that ran the original, indexed by [`Unprobed`].
    pub unprobed: [AtomicU64; Unprobed::COUNT],
    /// Images, indexed by [`ImageOutcome`].
    pub images: [AtomicU64; ImageOutcome::COUNT],
    /// Launches of patched kernels whose handlers read parameters, and had none.
    pub without_arguments: AtomicU64,
    pub slots: [ContextSlot; MOST_CONTEXTS],
    /// Those of the script's first, from the tracer.
    pub conditions: [Condition; MOST_CONDITIONS],
}

/// What decides at a launch whether some handlers run. The tracer writes what it asks for, the collector counts.
#[repr(C)]
#[derive(Default, Debug)]
pub struct Condition {
    /// The first of so many launches of a kernel, of those that meet the rest. 0 and 1: all.
    pub every: AtomicU64,
    /// The tag that a launch must have, if `has_tag` is 1.
    pub tag: AtomicU64,
    pub has_tag: AtomicU32,
    /// 1 while no launch meets it.
    pub is_off: AtomicU32,
    /// The id of the stream that a launch must be in, if `has_stream` is 1.
    pub stream: AtomicU32,
    pub has_stream: AtomicU32,
    /// Launches that met the rest.
    pub met: AtomicU64,
    /// Those of them that `every` chose.
    pub chosen: AtomicU64,
    /// Those of the chosen that ran the original all the same: [`Control::unprobed`] has them too.
    pub unprobed: AtomicU64,
}

/// Number of choices that a kernel's conditions leave.
pub const CHOICES: usize = 1 << MOST_KERNEL_CONDITIONS;

/// Which of a kernel's conditions a twin is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "u32", try_from = "u32")]
pub struct Choice {
    /// The numbers of the conditions that the kernel's handlers have, in ascending order; the same in all of its twins.
    pub conditions: [Option<u8>; MOST_KERNEL_CONDITIONS],
    /// The twin is for launches at which these hold, and no other: bit `n` for the n-th of `conditions`.
    pub holding: u8,
}

/// A byte for each condition, its number plus one, and one for those that hold.
impl From<Choice> for u32 {
    fn from(it: Choice) -> u32 {
        let [a, b, c] = it.conditions.map(|it| it.map_or(0, |it| it + 1));
        u32::from_le_bytes([a, b, c, it.holding])
    }
}

impl TryFrom<u32> for Choice {
    type Error = &'static str;

    fn try_from(word: u32) -> Result<Self, &'static str> {
        let [conditions @ .., holding] = word.to_le_bytes();
        let is_sound = conditions.iter().all(|it| usize::from(*it) <= MOST_CONDITIONS);
        let n = conditions.iter().take_while(|it| **it != 0).count();
        let is_sound = is_sound && conditions[n..].iter().all(|it| *it == 0) && holding >> n == 0;
        let choice = Choice { conditions: conditions.map(|it| it.checked_sub(1)), holding };
        is_sound.then_some(choice).ok_or("there can't be such conditions")
    }
}

/// A context that has a block, or had one.
#[repr(C, align(64))]
#[derive(Default, Debug)]
pub struct ContextSlot {
    /// CUPTI's id of the context.
    pub context: AtomicU32,
    /// The ordinal of its GPU in the process.
    pub device: AtomicU32,
    /// Odd while the block is being copied; grows by two with each copy. Whoever reads the copy reads this before and
    /// after.
    pub generation: AtomicU64,
    /// Launches that ran a twin, and programs that were launched in kernels of their own.
    pub swapped: AtomicU64,
    /// 1 once the context or the run has ended, and the block was copied right before.
    pub is_last: AtomicU32,
    /// What CUDA answered (`CUresult`) when the block could not be copied for the first time; 0 if it always could be.
    pub failure: AtomicU32,
    /// How much of the ring the tracer has read: the word at [`RingPlace::tail`]. Only the tracer writes it.
    pub read: AtomicU64,
    /// The word at [`CLOCK_OFFSET`], an `i64`.
    pub clock_offset: AtomicU64,
    /// How far handlers' times were from CLOCK_MONOTONIC at most, in nanoseconds; 0 if that was not measured.
    pub clock_error: AtomicU64,
}

const _: () = assert!(size_of::<Control>() <= PAGE);

/// Where a block has its ring, in bytes from its beginning. What is before the slots, the slots, and what comes from the head on
/// are copied one after another, since what a copy has of one piece tells what the pieces before it have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingPlace {
    /// The word that says how much was read.
    pub tail: u64,
    /// The first slot.
    pub slots: u64,
    /// The word that says how much was written, behind the slots.
    pub head: u64,
    /// Where the rest of the block begins, which isn't the ring's.
    pub end: u64,
}

/// Arrays in a program's memory that device code uses, at most. Each takes a descriptor of the ARM message.
pub const MOST_ARRAYS: usize = 8;

/// An array of Linux that device code uses where it is: the process maps it, and tells the GPU of it. It is one memory for
/// programs in Linux, this process, and its GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrayPlace {
    /// Where in a block the array's address is to be, as an offset from the block's own.
    pub at: u64,
    /// Size of the array.
    pub bytes: u64,
}

impl ArrayPlace {
    /// Whether both sides can work with these numbers, for blocks of that size.
    pub const fn is_sound(self, block_bytes: u64) -> bool {
        let ArrayPlace { at, bytes } = self;
        at.is_multiple_of(8) && at < block_bytes && block_bytes - at >= 8 && bytes > 0 && bytes <= MOST_BLOCK_BYTES
    }

    /// Returns a list as text.
    ///
    /// ```
    /// use xputrace_wire::device::ArrayPlace;
    /// let all = [ArrayPlace { at: 16, bytes: 4096 }, ArrayPlace { at: 24, bytes: 8 }];
    /// assert_eq!(ArrayPlace::all_to_text(&all), "16 4096,24 8");
    /// assert_eq!(ArrayPlace::all_of_text("16 4096,24 8"), Some(all.to_vec()));
    /// ```
    pub fn all_to_text(all: &[ArrayPlace]) -> String {
        all.iter().map(|it| format!("{} {}", it.at, it.bytes)).collect::<Vec<_>>().join(",")
    }

    /// Inverts [`ArrayPlace::all_to_text`]; `None` if the text is malformed, or the list too long.
    pub fn all_of_text(text: &str) -> Option<Vec<ArrayPlace>> {
        let one = |it: &str| {
            let (at, bytes) = it.split_once(' ')?;
            Some(ArrayPlace { at: at.parse().ok()?, bytes: bytes.parse().ok()? })
        };
        let all = text.split(',').filter(|it| !it.is_empty()).map(one).collect::<Option<Vec<_>>>()?;
        (all.len() <= MOST_ARRAYS).then_some(all)
    }
}

/// How much of a block is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum CopyExtent {
    Whole,
    /// What is needed to read the ring: everything before [`RingPlace::end`].
    Ring,
}

impl CopyExtent {
    /// Inverts `as u64`; what isn't known is everything.
    pub const fn of_word(word: u64) -> Self {
        if word == CopyExtent::Ring as u64 { CopyExtent::Ring } else { CopyExtent::Whole }
    }
}

/// Sizes that define a device region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRegionShape {
    /// Size of a block: a multiple of 8.
    pub block_bytes: u64,
    /// Where a block has its ring, if it has one.
    pub ring: Option<RingPlace>,
}

impl DeviceRegionShape {
    /// Whether both sides can work with these sizes.
    pub const fn is_sound(self) -> bool {
        self.block_bytes >= 8
            && self.block_bytes.is_multiple_of(8)
            && self.block_bytes <= MOST_BLOCK_BYTES
            && match self.ring {
                Some(RingPlace { tail, slots, head, end }) => {
                    tail < slots && slots - tail >= 8 && slots <= head && head < end && end <= self.block_bytes
                }
                None => true,
            }
    }

    /// Returns the size as text, with the place of the ring if there is one: numbers in decimal.
    ///
    /// ```
    /// use xputrace_wire::device::{DeviceRegionShape, RingPlace};
    /// let shape = DeviceRegionShape { block_bytes: 64, ring: Some(RingPlace { tail: 16, slots: 24, head: 40, end: 48 }) };
    /// assert_eq!(shape.to_text(), "64 16 24 40 48");
    /// assert_eq!(DeviceRegionShape::of_text("64 16 24 40 48"), Some(shape));
    /// ```
    pub fn to_text(self) -> String {
        match self.ring {
            Some(RingPlace { tail, slots, head, end }) => {
                format!("{} {tail} {slots} {head} {end}", self.block_bytes)
            }
            None => self.block_bytes.to_string(),
        }
    }

    /// Inverts [`DeviceRegionShape::to_text`]; `None` if the text is malformed.
    pub fn of_text(text: &str) -> Option<Self> {
        let numbers = text.split(' ').map(|it| it.parse().ok()).collect::<Option<Vec<u64>>>()?;
        match numbers[..] {
            [block_bytes] => Some(DeviceRegionShape { block_bytes, ring: None }),
            [block_bytes, tail, slots, head, end] => {
                Some(DeviceRegionShape { block_bytes, ring: Some(RingPlace { tail, slots, head, end }) })
            }
            _ => None,
        }
    }

    /// Returns the size of what is copied.
    pub fn bytes_of(self, extent: CopyExtent) -> usize {
        let ring = self.ring.filter(|_| extent == CopyExtent::Ring);
        ring.map_or(self.block_bytes, |it| it.end) as usize
    }

    /// Returns what is copied, one piece after another.
    pub fn pieces(self, extent: CopyExtent) -> impl Iterator<Item = Range<usize>> {
        let end = self.bytes_of(extent);
        let cuts = self.ring.map_or([0; 2], |it| [it.slots as usize, it.head as usize]);
        let pieces = [0..cuts[0], cuts[0]..cuts[1], cuts[1]..end];
        pieces.into_iter().filter(|it| !it.is_empty())
    }

    /// Returns the size of the whole region.
    pub const fn size(self) -> usize {
        PAGE + (1 + MOST_CONTEXTS) * self.stride()
    }

    /// Returns the offset of the initial bytes.
    pub const fn initial_offset(self) -> usize {
        PAGE
    }

    /// Returns the offset of the copy for slot `index`, below [`MOST_CONTEXTS`].
    pub const fn copy_offset(self, index: usize) -> usize {
        PAGE + (1 + index) * self.stride()
    }

    const fn stride(self) -> usize {
        (self.block_bytes as usize).next_multiple_of(PAGE)
    }
}

/// Status of a TWIN message.
pub mod twin_status {
    /// The image has nothing to probe. No descriptor.
    pub const NOTHING: u64 = 0;
    /// The descriptor is a memfd with [`DeviceCode`](super::DeviceCode).
    pub const WOVEN: u64 = 1;
    /// The tracer could not make a twin. No descriptor.
    pub const FAILED: u64 = 2;
    /// The tracer has not found its PTX. No descriptor.
    pub const NO_PORTABLE_CODE: u64 = 3;
    /// The kernel's PTX in the program's files is not that of its code. No descriptor.
    pub const OLDER_PORTABLE_CODE: u64 = 4;
    /// The program's files have different kernels of this name. No descriptor.
    pub const AMBIGUOUS: u64 = 5;
    /// No file of the program has a kernel of this name. No descriptor.
    pub const NOT_IN_FILES: u64 = 6;
    /// The tracer works on as many images of the process as it may. No descriptor.
    pub const TOO_MANY: u64 = 7;
}

/// What the memory that an IMAGE comes with has.
pub mod image_kind {
    /// PTX, as [`decode_image`](super::decode_image) reads it.
    pub const PORTABLE: u64 = 0;
    /// Machine code alone, an ELF file: somebody may have kept its PTX.
    pub const CUBIN: u64 = 1;
    /// The symbol of a kernel whose code was loaded before the collector came: the program's files may have its PTX.
    pub const KERNEL: u64 = 2;
    /// Nothing: the process has a context in which [`Programs`](super::Programs) can run.
    pub const PROGRAMS: u64 = 3;
}

counted! {
    /// A place in machine code that a patch's function can be called at. Its function's parameters are the Sanitizer API's
    /// (`sanitizer_patching.h`).
    #[derive(Serialize, Deserialize)]
    PatchPoint {
        /// Before a thread's first instruction.
        Entry,
        /// After its last one.
        Exit,
        /// Before an access to global memory, also by generic addresses.
        Global,
        /// To the block's shared memory.
        Shared,
        /// To the thread's local memory.
        Local,
        /// Before a barrier of the block.
        Barrier,
        /// Before a call of a function.
        Call,
    }
}

impl PatchPoint {
    /// Returns the symbol of its function.
    pub const fn symbol(self) -> &'static str {
        match self {
            PatchPoint::Entry => "xpt_entry",
            PatchPoint::Exit => "xpt_exit",
            PatchPoint::Global => "xpt_global",
            PatchPoint::Shared => "xpt_shared",
            PatchPoint::Local => "xpt_local",
            PatchPoint::Barrier => "xpt_barrier",
            PatchPoint::Call => "xpt_call",
        }
    }
}

/// Offsets of the words that a kernel has in device memory, where it is patched.
pub mod kernel_words {
    /// Address of the context's block.
    pub const BLOCK: usize = 0;
    /// String id of the kernel's name.
    pub const NAME: usize = 8;
    /// A bit for each handler that runs in it, by its index.
    pub const HANDLERS: usize = 16;
    /// Address of the context's memory for times ([`crate::times`]); 0 if the launch takes none.
    pub const TIMES: usize = 24;
    /// Address of the first group that launches of this kind use.
    pub const GROUPS: usize = 32;
    /// 1 in a node of a graph.
    pub const IS_NODE: usize = 40;
    /// A bit for each of the kernel's parameters that are behind the words, by its number.
    pub const HAS_ARGUMENTS: usize = 48;
    /// Bytes of them all.
    pub const BYTES: usize = 56;

    /// Where a launch that has words of its own has the parameters: 8 bytes for each of the first
    /// [`MOST_ARGUMENTS`](xputrace_events::device::MOST_ARGUMENTS).
    pub const ARGUMENTS: usize = BYTES;
}

/// Handlers of a run that patches can have.
pub const MOST_PATCH_HANDLERS: usize = 64;

/// Environment variables that say where Triton keeps what it compiles (`triton/knobs.py`): the directory; the directory
/// that has `.triton/cache`; likewise without that one. Programs set them while they run.
pub const CACHE_VARIABLES: [&str; 3] = ["TRITON_CACHE_DIR", "TRITON_HOME", "HOME"];

/// The compute capabilities of a process's GPUs, such as 90; 0 if they are not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ComputeCapabilities {
    pub least: u32,
    pub greatest: u32,
}

/// How an image's PTX is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// As text; bytes from the first 0 on are padding.
    Plain,
    /// An LZ4 block, without a frame.
    Lz4,
    /// A zstd frame.
    Zstd,
}

impl Codec {
    const ALL: [Codec; 3] = [Codec::Plain, Codec::Lz4, Codec::Zstd];
}

/// Which GPUs beside those of its number PTX is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Portability {
    /// That and later ones.
    Later,
    /// Exactly that one (`sm_90a`).
    Exact,
    /// Those of its family (`sm_100f`).
    Family,
}

impl Portability {
    const ALL: [Portability; 3] = [Portability::Later, Portability::Exact, Portability::Family];
}

/// One PTX module of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortableCode<'a> {
    pub codec: Codec,
    pub portability: Portability,
    /// The GPU's number, such as 90; 0 if only the text says it.
    pub sm: u32,
    /// Size of the text when decompressed; 0 if it is not known.
    pub text_bytes: u64,
    pub stored: Cow<'a, [u8]>,
}

/// Precedes the bytes of each PTX module in the memory that an IMAGE comes with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PortableHead {
    codec: u32,
    portability: u32,
    sm: u32,
    unused: u32,
    text_bytes: u64,
    stored_bytes: u64,
}

impl PortableHead {
    /// Describes PTX, of which `stored_bytes` follow, padded to a multiple of 8.
    pub fn of(code: &PortableCode<'_>, stored_bytes: u64) -> Self {
        let PortableCode { codec, portability, sm, text_bytes, .. } = *code;
        PortableHead { codec: codec as u32, portability: portability as u32, sm, unused: 0, text_bytes, stored_bytes }
    }
}

/// Returns how many bytes are between the end of so many and the next multiple of 8.
pub const fn padding_of(bytes: u64) -> usize {
    (bytes.wrapping_neg() % 8) as usize
}

/// Encodes the PTX of an image.
pub fn encode_image(all: &[PortableCode<'_>]) -> Vec<u8> {
    let mut out = Vec::new();
    for it in all {
        out.extend(PortableHead::of(it, it.stored.len() as u64).as_bytes());
        out.extend(it.stored.iter());
        out.extend(&[0; 8][..padding_of(it.stored.len() as u64)]);
    }
    out
}

/// Decodes the PTX of an image; `None` if the bytes are malformed.
pub fn decode_image(bytes: &[u8]) -> Option<Vec<PortableCode<'_>>> {
    let (mut rest, mut all) = (bytes, Vec::new());
    while !rest.is_empty() {
        let (head, behind) = PortableHead::read_from_prefix(rest).ok()?;
        let (stored, behind) = behind.split_at_checked(usize::try_from(head.stored_bytes).ok()?)?;
        rest = behind.get(padding_of(head.stored_bytes)..)?;
        all.push(PortableCode {
            codec: *Codec::ALL.get(head.codec as usize)?,
            portability: *Portability::ALL.get(head.portability as usize)?,
            sm: head.sm,
            text_bytes: head.text_bytes,
            stored: stored.into(),
        });
    }
    Some(all)
}

/// What the tracer has made for a program's GPUs: the memory that a TWIN message comes with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeviceCode {
    /// One at least.
    Twins(Vec<Twin>),
    Patches(Patches),
    /// What the process runs in kernels of their own.
    Programs(Programs),
}

impl DeviceCode {
    /// Returns the twins; [`ImageOutcome::NoAnswer`] if it is something else, which was not asked for.
    pub fn twins(self) -> Result<Vec<Twin>, ImageOutcome> {
        if let DeviceCode::Twins(it) = self { Ok(it) } else { Err(ImageOutcome::NoAnswer) }
    }

    /// Returns the patches; [`ImageOutcome::NoAnswer`] if it is something else, which was not asked for.
    pub fn patches(self) -> Result<Patches, ImageOutcome> {
        if let DeviceCode::Patches(it) = self { Ok(it) } else { Err(ImageOutcome::NoAnswer) }
    }

    /// Returns the programs; [`ImageOutcome::NoAnswer`] if it is something else, which was not asked for.
    pub fn programs(self) -> Result<Programs, ImageOutcome> {
        if let DeviceCode::Programs(it) = self { Ok(it) } else { Err(ImageOutcome::NoAnswer) }
    }

    /// Encodes it, with [`postcard`].
    ///
    /// ```
    /// use xputrace_wire::device::{Choice, DeviceCode, Twin};
    /// let (kernels, choices) = (vec!["scale".into()], vec![Choice::default()]);
    /// let twins = DeviceCode::Twins(vec![Twin { code: b".version 8.0".into(), kernels, choices, ..Twin::default() }]);
    /// assert_eq!(DeviceCode::decode(&twins.encode()), Some(twins));
    /// ```
    pub fn encode(&self) -> Vec<u8> {
        // Only what has no known length, or a text that can't be written, fails.
        postcard::to_allocvec(self).unwrap_or_default()
    }

    /// Inverts [`DeviceCode::encode`]; `None` if the bytes are malformed, or there can't be such code.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (code, rest) = postcard::take_from_bytes::<DeviceCode>(bytes).ok()?;
        let is_sound = match &code {
            DeviceCode::Twins(all) => all.iter().all(Twin::is_sound),
            DeviceCode::Patches(it) => it.kernels.iter().all(PatchedKernel::is_sound),
            DeviceCode::Programs(_) => true,
        };
        (is_sound && rest.is_empty()).then_some(code)
    }
}

/// What runs in place of some kernels of an image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Twin {
    /// PTX or a cubin, as `cuLibraryLoadData` takes it. Its kernels' symbols are those of [`twin_symbol`].
    pub code: Vec<u8>,
    /// The symbols of the originals.
    pub kernels: Vec<String>,
    /// The original's variables whose addresses are the elements of [`GLOBALS_VARIABLE`].
    pub variables: Vec<String>,
    /// The elements of [`NAMES_VARIABLE`], one for each kernel or more; empty if the twin has no such variable.
    pub names: Vec<u64>,
    /// At which launches they run, a kernel each.
    pub choices: Vec<Choice>,
}

impl Twin {
    fn is_sound(&self) -> bool {
        let has_names = self.names.is_empty() || self.names.len() >= self.kernels.len();
        has_names && self.choices.len() == self.kernels.len()
    }
}

/// What is patched into a module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Patches {
    /// A cubin with a function for each of `points`; the same for all modules of a run on GPUs of one kind.
    pub code: Vec<u8>,
    pub points: Vec<PatchPoint>,
    pub kernels: Vec<PatchedKernel>,
}

/// A kernel that handlers run in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PatchedKernel {
    pub symbol: String,
    /// String id of its name.
    pub name: u64,
    /// The conditions that its handlers have; none holds.
    pub conditions: Choice,
    /// A bit for each handler that runs, by index: where these conditions hold, by [`Choice::holding`].
    pub handlers: [u64; CHOICES],
    /// Its parameters, by number: those that its handlers read, and that they can have.
    pub parameters: Parameters,
    /// A bit for each of [`PatchedKernel::handlers`]: one of them reads parameters.
    pub reading: u8,
}

/// What a launch gives to a kernel, and where: [`Parameter::NONE`] is not asked for.
pub type Parameters = [Parameter; MOST_ARGUMENTS];

/// A parameter of a kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Parameter {
    /// In the packed parameters.
    pub offset: u32,
    /// 1 to 8.
    pub bytes: u32,
}

impl Parameter {
    pub const NONE: Parameter = Parameter { offset: 0, bytes: 0 };
    /// Size of the largest that handlers can have.
    pub const MOST_BYTES: u32 = 8;
}

impl PatchedKernel {
    fn is_sound(&self) -> bool {
        let fits = |it: &Parameter| it.bytes <= Parameter::MOST_BYTES;
        self.conditions.holding == 0 && self.parameters.iter().all(fits)
    }
}

/// Programs that run in kernels of their own, once, one after another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Programs {
    /// PTX or a cubin, as `cuLibraryLoadData` takes it, with [`BLOCK_VARIABLE`].
    pub code: Vec<u8>,
    /// In their order.
    pub launches: Vec<ProgramLaunch>,
}

/// A kernel without parameters, and how it is launched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramLaunch {
    pub symbol: String,
    /// Blocks, as `x y z`.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
}

/// What a program has loaded, or launched.
#[derive(Debug)]
pub enum LoadedCode<'a> {
    Portable(Vec<PortableCode<'a>>),
    Cubin(Cubin<'a>),
    /// A kernel that was loaded before the collector came, by its symbol.
    Kernel(&'a str),
    /// Nothing: it has a context in which programs can run.
    Context,
}

impl<'a> LoadedCode<'a> {
    /// Decodes what an IMAGE of this [`image_kind`] comes with, and its text; `None` if that is malformed.
    pub fn decode(kind: u64, bytes: &'a [u8], text: &'a str) -> Option<Self> {
        match kind {
            image_kind::PORTABLE => decode_image(bytes).map(LoadedCode::Portable),
            image_kind::CUBIN => Some(LoadedCode::Cubin(Cubin::new(bytes, text))),
            image_kind::KERNEL => std::str::from_utf8(bytes).ok().map(LoadedCode::Kernel),
            image_kind::PROGRAMS => Some(LoadedCode::Context),
            _ => None,
        }
    }
}

/// Machine code without its PTX, and what its process says of where that may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cubin<'a> {
    pub bytes: &'a [u8],
    /// The values of [`CACHE_VARIABLES`] in the process.
    pub variables: [Option<&'a str>; CACHE_VARIABLES.len()],
    /// The file that it was loaded from.
    pub file: Option<&'a str>,
}

impl<'a> Cubin<'a> {
    fn new(bytes: &'a [u8], text: &'a str) -> Self {
        let mut lines = text.split('\n').map(|it| Some(it).filter(|it| !it.is_empty()));
        let mut next = || lines.next().flatten();
        Cubin { bytes, variables: std::array::from_fn(|_| next()), file: next() }
    }
}

/// What becomes of an image.
#[derive(Clone, Debug)]
pub enum Woven {
    /// Nothing in it is probed.
    Nothing,
    Code(DeviceCode),
    /// It should have a twin, but has none.
    Failed,
    /// As many of its process are worked on as may be.
    TooMany,
    /// Its PTX was not found.
    NoPortableCode,
    /// The kernel's PTX in the program's files is not that of its code.
    OlderPortableCode,
    /// The program's files have different kernels of this name.
    Ambiguous,
    /// No file of the program has a kernel of this name.
    NotInFiles,
}

impl Woven {
    /// Returns the [`twin_status`], and what its memory has, if it comes with any.
    pub fn encode(&self) -> (u64, Option<Vec<u8>>) {
        match self {
            Woven::Nothing => (twin_status::NOTHING, None),
            Woven::Failed => (twin_status::FAILED, None),
            Woven::TooMany => (twin_status::TOO_MANY, None),
            Woven::NoPortableCode => (twin_status::NO_PORTABLE_CODE, None),
            Woven::OlderPortableCode => (twin_status::OLDER_PORTABLE_CODE, None),
            Woven::Ambiguous => (twin_status::AMBIGUOUS, None),
            Woven::NotInFiles => (twin_status::NOT_IN_FILES, None),
            Woven::Code(code) => (twin_status::WOVEN, Some(code.encode())),
        }
    }
}

/// How many launches a condition has chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sampled {
    /// Launches that meet it, but for its `every`.
    pub met: u64,
    /// Those at which its handlers were to run.
    pub chosen: u64,
}

impl Sampled {
    /// Adds counts, which may be from memory that the program can write.
    pub fn add(&mut self, other: Sampled) {
        self.met = self.met.saturating_add(other.met);
        self.chosen = self.chosen.saturating_add(other.chosen);
    }
}

/// A copy of what one context has of a process's device memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceCopy {
    /// The context's place among those of its process.
    pub slot: usize,
    /// The vendor's id of the context.
    pub context: u32,
    /// Whether the context, or the run in its process, had ended.
    pub is_last: bool,
    /// All of the block, or what its ring needs.
    pub block: Vec<u8>,
}

/// How much of a context's ring was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingRead {
    /// The context's place among those of its process.
    pub slot: usize,
    /// Slots of the ring that twins may use again, of all that were ever taken.
    pub position: u64,
    /// Whether there was anything to read: more may follow soon.
    pub found_any: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_twins_symbol_leads_to_the_originals() {
        assert_eq!(original_symbol(&twin_symbol("_Z5scalePf")), "_Z5scalePf");
        assert_eq!(original_symbol("_Z5scalePf"), "_Z5scalePf");
    }

    #[test]
    fn copies_do_not_overlap_and_are_inside() {
        for block_bytes in [8, 4096, 4104, MOST_BLOCK_BYTES] {
            let shape = DeviceRegionShape { block_bytes, ring: None };
            assert!(shape.is_sound());
            let ends = |from: usize| from + block_bytes as usize;
            assert!(ends(shape.initial_offset()) <= shape.copy_offset(0));
            (1..MOST_CONTEXTS).for_each(|it| assert!(ends(shape.copy_offset(it - 1)) <= shape.copy_offset(it)));
            assert!(ends(shape.copy_offset(MOST_CONTEXTS - 1)) <= shape.size());
        }
        for block_bytes in [0, 12, MOST_BLOCK_BYTES + 8, u64::MAX] {
            assert!(!DeviceRegionShape { block_bytes, ring: None }.is_sound(), "{block_bytes}");
        }
    }

    #[test]
    fn the_pieces_of_a_block_are_copied_in_order() {
        let shape = |ring| DeviceRegionShape { block_bytes: 64, ring };
        let pieces = |ring, extent| shape(ring).pieces(extent).collect::<Vec<_>>();
        let ring = RingPlace { tail: 16, slots: 24, head: 40, end: 48 };
        assert_eq!(pieces(None, CopyExtent::Ring), vec![Range { start: 0, end: 64 }]);
        assert_eq!(pieces(Some(ring), CopyExtent::Whole), [0..24, 24..40, 40..64]);
        assert_eq!(pieces(Some(ring), CopyExtent::Ring), [0..24, 24..40, 40..48]);
        assert!(shape(Some(ring)).is_sound());
        let odd = [
            RingPlace { tail: 17, ..ring },
            RingPlace { tail: u64::MAX, ..ring },
            RingPlace { slots: 41, ..ring },
            RingPlace { head: 48, ..ring },
            RingPlace { end: 65, ..ring },
        ];
        odd.into_iter().for_each(|it| assert!(!shape(Some(it)).is_sound(), "{it:?}"));
        for text in ["", "64 ", "64 16 24 40", "64 16 24 40 48 56", "64 -1 24 40 48"] {
            assert_eq!(DeviceRegionShape::of_text(text), None, "{text}");
        }
    }

    #[test]
    fn an_image_round_trips_and_less_of_it_is_refused() {
        let ptx = |codec, portability, sm, text: &'static [u8]| PortableCode {
            codec,
            portability,
            sm,
            text_bytes: 100,
            stored: text.into(),
        };
        let all = [
            ptx(Codec::Plain, Portability::Later, 0, b".version 8.0\n"),
            ptx(Codec::Zstd, Portability::Exact, 90, b"12345678"),
            ptx(Codec::Lz4, Portability::Family, 100, b""),
        ];
        let bytes = encode_image(&all);
        assert_eq!(decode_image(&bytes).as_deref(), Some(&all[..]));
        let wholes: Vec<usize> = (0..=bytes.len()).filter(|it| decode_image(&bytes[..*it]).is_some()).collect();
        assert_eq!(wholes, [0, 48, 88, 120], "after each PTX");
    }

    fn patches(parameter_bytes: u32) -> DeviceCode {
        let kernel = |symbol: &str, name, conditions, handlers| PatchedKernel {
            symbol: symbol.into(),
            name,
            conditions: Choice { conditions, holding: 0 },
            handlers,
            parameters: [Parameter { offset: 8, bytes: parameter_bytes }; MOST_ARGUMENTS],
            reading: 0x81,
        };
        let some = [Some(4), Some(31), None];
        let kernels = vec![kernel("gemm", 7, [None; 3], [1 << 63; 8]), kernel("softmax", 9, some, [3; 8])];
        let points = vec![PatchPoint::Entry, PatchPoint::Barrier];
        DeviceCode::Patches(Patches { code: vec![0, 1, 2], points, kernels })
    }

    fn twin(names: Vec<u64>, choice: Choice) -> DeviceCode {
        let (kernels, variables) = (vec!["a".into(), "b".into()], vec!["table".into()]);
        let twin = Twin { code: vec![0, 1, 2], kernels, variables, names, choices: vec![Choice::default(), choice] };
        DeviceCode::Twins(vec![twin, Twin::default()])
    }

    #[test]
    fn code_round_trips_and_less_or_more_of_it_is_refused() {
        let choice = Choice { conditions: [Some(0), Some(31), None], holding: 2 };
        let launch = |symbol: &str, n| ProgramLaunch { symbol: symbol.into(), grid: [n, 1, 1], block: [32, n, 1] };
        let programs = Programs { code: vec![0, 1, 2], launches: vec![launch("run", 4), launch("gemm", 7)] };
        for code in [twin(vec![7, 8, 9], choice), patches(8), DeviceCode::Programs(programs)] {
            let bytes = code.encode();
            assert_eq!(DeviceCode::decode(&bytes), Some(code));
            (0..bytes.len()).for_each(|it| assert_eq!(DeviceCode::decode(&bytes[..it]), None, "{it}"));
            assert_eq!(DeviceCode::decode(&[&bytes[..], &[0]].concat()), None);
        }
    }

    #[test]
    fn code_that_there_cannot_be_is_refused() {
        let is_refused = |code: DeviceCode| DeviceCode::decode(&code.encode()).is_none();
        assert!(is_refused(twin(vec![7], Choice::default())), "a kernel without a name");
        assert!(is_refused(patches(9)), "a parameter that is too large");
    }

    #[test]
    fn a_choice_of_conditions_that_there_are_not_is_refused() {
        let choice = |conditions, holding| Choice { conditions, holding };
        for it in [choice([None; 3], 0), choice([Some(3), None, None], 1), choice([Some(0), Some(1), Some(31)], 7)] {
            assert_eq!(Choice::try_from(u32::from(it)), Ok(it));
        }
        for word in [[1, 0, 0, 2], [0, 1, 0, 0], [33, 0, 0, 0], [0, 0, 0, 1]] {
            assert!(Choice::try_from(u32::from_le_bytes(word)).is_err(), "{word:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_code_or_refused(kind in 0u8..4, bytes in proptest::collection::vec(0u8..4, 0..120)) {
            if let Some(code) = DeviceCode::decode(&[&[kind], &bytes[..]].concat()) {
                prop_assert_eq!(DeviceCode::decode(&code.encode()), Some(code));
            }
        }

        #[test]
        fn any_bytes_are_an_image_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Some(all) = decode_image(&bytes) {
                let again = encode_image(&all);
                prop_assert_eq!(decode_image(&again), Some(all));
            }
        }

        #[test]
        fn heads_of_any_sizes_are_survived(
            codec in 0u32..4, sm in any::<u32>(), stored in any::<u64>(), bytes in proptest::collection::vec(any::<u8>(), 0..64)
        ) {
            let head = PortableHead { codec, portability: 0, sm, unused: 0, text_bytes: stored, stored_bytes: stored % 80 };
            let huge = PortableHead { stored_bytes: stored, ..head };
            for head in [head, huge] {
                let bytes = [head.as_bytes(), &bytes].concat();
                if let Some(all) = decode_image(&bytes) {
                    prop_assert!(all.iter().map(|it| it.stored.len()).sum::<usize>() <= bytes.len());
                }
            }
        }
    }
}
