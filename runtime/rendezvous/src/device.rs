//! What a run with device code exchanges with a collector: images and twins as files in memory, and the device region.
//!
//! The memory is read and written as a file, never mapped: the other side may write it at any time, and resize its own.

use super::region::sealed_memory;
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use xputrace_model::plan::{Condition, LaunchFilter, SwitchId};
use xputrace_wire::device::{
    self, ArrayPlace, ComputeCapabilities, ContextSlot, Control, CopyExtent, DeviceCopy, DeviceRegionShape,
    ImageOutcome, LoadedCode, MOST_CONDITIONS, MOST_CONTEXTS, MOST_IMAGE_BYTES, PID_TGID, ProgramsAccount,
    ProgramsState, RingPlace, RingRead, Sampled, Unprobed, image_kind,
};
use xputrace_wire::message::Message;
use xputrace_wire::region::PAGE;

/// How often to read a copy of a block until it was not written meanwhile.
const MOST_LOOKS: usize = 16;

/// What device memory is like at first, and what decides at launches.
#[derive(Debug, Default)]
pub struct DeviceBlock {
    pub initial: Vec<u8>,
    /// Where its ring is, if it has one.
    pub ring: Option<RingPlace>,
    /// Arrays of Linux that device code uses where they are; at most [`MOST_ARRAYS`](xputrace_wire::device::MOST_ARRAYS).
    pub arrays: Vec<(ArrayPlace, OwnedFd)>,
    /// Whether handlers read GPUs' timers.
    pub reads_clock: bool,
    /// Whether handlers read parameters of kernels.
    pub reads_arguments: bool,
    /// What decides at launches: [`xputrace_model::plan::Plan::conditions`].
    pub conditions: Vec<Condition>,
    /// Whether there are programs that run in kernels of their own.
    pub has_programs: bool,
}

/// The device region of a target.
#[derive(Debug)]
pub struct DeviceRegion {
    file: File,
    shape: DeviceRegionShape,
}

/// What a collector has counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounts {
    /// The number of the last request that is done.
    pub answered: u64,
    /// Launches that ran a twin, and programs in kernels of their own.
    pub swapped: u64,
    /// Contexts in which twins ran and that have no last copy: so far, or where something ended too early.
    pub n_unfinished: u64,
    /// What CUDA answered, by context, where a block could not be copied.
    pub failures: BTreeSet<u32>,
    /// Launches of patched kernels whose handlers read parameters, and had none.
    pub without_arguments: u64,
    /// Launches that ran the original, by [`Unprobed`].
    pub unprobed: [u64; Unprobed::COUNT],
    /// Images, by [`ImageOutcome`].
    pub images: [u64; ImageOutcome::COUNT],
    /// What is known of the clocks of contexts in which twins ran.
    pub clocks: Clocks,
    /// Launches, by condition.
    pub conditions: [ConditionCounts; MOST_CONDITIONS],
    /// What has become of programs that it was to run in kernels of their own.
    pub programs: ProgramsOutcome,
}

/// What has become of programs that a process was to run in kernels of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramsOutcome {
    pub state: ProgramsState,
    /// How many were launched.
    pub launched: u64,
    /// What CUDA answered where something failed.
    pub failure: u32,
    /// Where their context is among those of the process.
    pub slot: usize,
}

impl Default for ProgramsOutcome {
    fn default() -> Self {
        ProgramsOutcome { state: ProgramsState::Waiting, launched: 0, failure: 0, slot: 0 }
    }
}

impl ProgramsOutcome {
    /// Whether they are all that has run in a context.
    fn has_all_of(&self, slot: usize, ran: u64) -> bool {
        (self.slot, self.launched) == (slot, ran)
    }
}

/// How GPUs' timers were put on the tracer's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clocks {
    /// How far times were from CLOCK_MONOTONIC at most, in nanoseconds, where that was measured; 0 if it wasn't anywhere.
    pub most_error_nanos: u64,
    /// What was added to the timer of one of them last, in nanoseconds.
    pub offset_nanos: i64,
    /// In how many contexts the GPU's timer could not be measured.
    pub n_unmeasured: u64,
}

impl Clocks {
    /// Returns those of both.
    pub fn and(self, other: Clocks) -> Clocks {
        Clocks {
            most_error_nanos: self.most_error_nanos.max(other.most_error_nanos),
            offset_nanos: if other.most_error_nanos > 0 { other.offset_nanos } else { self.offset_nanos },
            n_unmeasured: self.n_unmeasured + other.n_unmeasured,
        }
    }
}

/// What a collector has counted for a condition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConditionCounts {
    pub sampled: Sampled,
    /// Chosen launches that ran the original.
    pub unprobed: u64,
}

impl DeviceRegion {
    /// Creates the region of a process, whose blocks are like this at first and have its id. `takes_times` says that its
    /// patches read GPUs' timers too.
    ///
    /// # Errors
    /// The block is too large, or the memory cannot be had.
    pub fn new(block: &DeviceBlock, takes_times: bool, pid: u32) -> io::Result<Self> {
        let DeviceBlock { initial, ring, reads_clock, conditions, has_programs, .. } = block;
        let shape = DeviceRegionShape { block_bytes: initial.len() as u64, ring: *ring };
        if !shape.is_sound() {
            return Err(io::Error::other(format!("the script's maps on the GPU need {} bytes", initial.len())));
        }
        let file = File::from(sealed_memory(shape.size())?);
        file.write_all_at(&shape.block_bytes.to_le_bytes(), offset_of!(Control, block_bytes) as u64)?;
        let flags = [
            (*reads_clock || takes_times, offset_of!(Control, reads_clock)),
            (*has_programs, offset_of!(Control, has_programs)),
        ];
        for (flag, offset) in flags {
            file.write_all_at(&u32::from(flag).to_le_bytes(), offset as u64)?;
        }
        file.write_all_at(initial, shape.initial_offset() as u64)?;
        if initial.len() >= PID_TGID + size_of::<u64>() {
            let id = [pid.to_le_bytes(); 2].concat();
            file.write_all_at(&id, (shape.initial_offset() + PID_TGID) as u64)?;
        }
        let region = DeviceRegion { file, shape };
        for (at, LaunchFilter { every, tag, stream }) in
            conditions.iter().map(|it| it.launches).enumerate().take(MOST_CONDITIONS)
        {
            let write =
                |offset: usize, bytes: &[u8]| region.file.write_all_at(bytes, (condition_offset(at) + offset) as u64);
            write(offset_of!(device::Condition, every), &every.to_le_bytes())?;
            write(offset_of!(device::Condition, tag), &tag.unwrap_or(0).to_le_bytes())?;
            write(offset_of!(device::Condition, has_tag), &u32::from(tag.is_some()).to_le_bytes())?;
            write(offset_of!(device::Condition, stream), &stream.unwrap_or(0).to_le_bytes())?;
            write(offset_of!(device::Condition, has_stream), &u32::from(stream.is_some()).to_le_bytes())?;
        }
        Ok(region)
    }

    /// Says which conditions launches can meet from now on.
    ///
    /// # Errors
    /// The system's, which writing memory of our own does not have.
    pub fn switch(&self, conditions: &[Condition], is_on: impl Fn(SwitchId) -> bool) -> io::Result<()> {
        for (at, it) in conditions.iter().enumerate().take(MOST_CONDITIONS) {
            let is_off = u32::from(!it.switch.is_none_or(&is_on));
            let offset = condition_offset(at) + offset_of!(device::Condition, is_off);
            self.file.write_all_at(&is_off.to_le_bytes(), offset as u64)?;
        }
        Ok(())
    }

    pub(super) fn shape(&self) -> DeviceRegionShape {
        self.shape
    }

    /// Whether blocks have a ring.
    pub fn has_ring(&self) -> bool {
        self.shape.ring.is_some()
    }

    pub(super) fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Returns what the collector has counted so far.
    ///
    /// # Errors
    /// The system's, which reading memory of our own does not have.
    pub fn counts(&self) -> io::Result<DeviceCounts> {
        let page = self.control()?;
        let word = |offset: usize| word_at(&page, offset);
        let swapped = (0..MOST_CONTEXTS).map(|it| word(offset_in(it, offset_of!(ContextSlot, swapped))));
        // A process that ended amid a copy left none that can be read.
        let has_last = (0..MOST_CONTEXTS).map(|it| {
            let is_readable = word(offset_in(it, offset_of!(ContextSlot, generation))).is_multiple_of(2);
            is_readable && word(offset_in(it, offset_of!(ContextSlot, is_last))) as u32 != 0
        });
        let clock = |slot: usize| {
            let most_error_nanos = word(offset_in(slot, offset_of!(ContextSlot, clock_error)));
            let offset_nanos = word(offset_in(slot, offset_of!(ContextSlot, clock_offset))) as i64;
            Clocks { most_error_nanos, offset_nanos, n_unmeasured: u64::from(most_error_nanos == 0) }
        };
        let ran = (0..MOST_CONTEXTS).zip(swapped.clone()).filter(|it| it.1 > 0);
        let programs = programs_outcome(&page);
        // What programs did that have ended was copied behind that.
        let is_complete =
            |slot: usize, ran: u64| programs.state == ProgramsState::Done && programs.has_all_of(slot, ran);
        Ok(DeviceCounts {
            clocks: ran.fold(Clocks::default(), |all, it| all.and(clock(it.0))),
            answered: word(offset_of!(Control, answered)),
            swapped: swapped.clone().fold(0, u64::saturating_add),
            n_unfinished: (0..MOST_CONTEXTS)
                .zip(swapped.zip(has_last))
                .filter(|(slot, (ran, has_last))| *ran > 0 && !has_last && !is_complete(*slot, *ran))
                .count() as u64,
            failures: (0..MOST_CONTEXTS)
                .map(|it| word(offset_in(it, offset_of!(ContextSlot, failure))) as u32)
                .filter(|it| *it != 0)
                .collect(),
            without_arguments: word(offset_of!(Control, without_arguments)),
            unprobed: std::array::from_fn(|it| word(offset_of!(Control, unprobed) + it * 8)),
            images: std::array::from_fn(|it| word(offset_of!(Control, images) + it * 8)),
            conditions: std::array::from_fn(|it| {
                let count = |offset: usize| word(condition_offset(it) + offset);
                let (met, chosen) =
                    (count(offset_of!(device::Condition, met)), count(offset_of!(device::Condition, chosen)));
                let unprobed = count(offset_of!(device::Condition, unprobed));
                ConditionCounts { sampled: Sampled { met, chosen }, unprobed }
            }),
            programs,
        })
    }

    /// Returns so much of the last copy of each context's block, with the context's place; contexts without one are left out.
    ///
    /// # Errors
    /// The system's, as above.
    pub fn copies(&self, extent: CopyExtent) -> io::Result<Vec<DeviceCopy>> {
        let control = self.control()?;
        let copy = |slot: usize| {
            let word = |field: usize| word_at(&control, offset_in(slot, field)) as u32;
            let (context, is_last) =
                (word(offset_of!(ContextSlot, context)), word(offset_of!(ContextSlot, is_last)) != 0);
            let block = self.copy(slot, extent).transpose()?;
            Some(block.map(|block| DeviceCopy { slot, context, is_last, block }))
        };
        (0..MOST_CONTEXTS).filter_map(copy).collect()
    }

    /// Tells the collector how far a context's ring was read.
    ///
    /// # Errors
    /// The system's, as above.
    pub fn set_read(&self, RingRead { slot, position, .. }: RingRead) -> io::Result<()> {
        self.file.write_all_at(&position.to_le_bytes(), offset_in(slot, offset_of!(ContextSlot, read)) as u64)
    }

    /// Returns so much of a context's copy, unless there is none, or the collector never stops to write it.
    fn copy(&self, slot: usize, extent: CopyExtent) -> io::Result<Option<Vec<u8>>> {
        let generation =
            || Ok::<_, io::Error>(word_at(&self.control()?, offset_in(slot, offset_of!(ContextSlot, generation))));
        let mut block = vec![0; self.shape.bytes_of(extent)];
        for _ in 0..MOST_LOOKS {
            let before = generation()?;
            if before == 0 {
                return Ok(None);
            }
            self.file.read_exact_at(&mut block, self.shape.copy_offset(slot) as u64)?;
            if before % 2 == 0 && generation()? == before {
                return Ok(Some(block));
            }
            std::thread::yield_now();
        }
        Ok(None)
    }

    fn control(&self) -> io::Result<[u8; PAGE]> {
        let mut page = [0; PAGE];
        self.file.read_exact_at(&mut page, 0)?;
        Ok(page)
    }
}

/// Returns where a field of a context's slot is in the control page.
const fn offset_in(slot: usize, field: usize) -> usize {
    offset_of!(Control, slots) + slot * size_of::<ContextSlot>() + field
}

/// Returns where a condition is in the control page.
fn condition_offset(at: usize) -> usize {
    offset_of!(Control, conditions) + at * size_of::<device::Condition>()
}

/// Reads what a collector says of programs. A state that there isn't is none.
fn programs_outcome(page: &[u8; PAGE]) -> ProgramsOutcome {
    let word = |field: usize| word_at(page, offset_of!(Control, programs) + field) as u32;
    let state = word(offset_of!(ProgramsAccount, state));
    ProgramsOutcome {
        state: ProgramsState::ALL.get(state as usize).copied().unwrap_or(ProgramsState::Waiting),
        launched: word(offset_of!(ProgramsAccount, launched)).into(),
        failure: word(offset_of!(ProgramsAccount, failure)),
        slot: word(offset_of!(ProgramsAccount, slot)) as usize,
    }
}

fn word_at(page: &[u8; PAGE], offset: usize) -> u64 {
    let bytes = page.get(offset..offset + 8).and_then(|it| it.try_into().ok());
    bytes.map_or(0, u64::from_le_bytes)
}

/// Code that a program has loaded; one of its threads waits for the answer.
#[derive(Debug)]
pub struct LoadedImage {
    /// The collector's number for it.
    pub number: u64,
    /// What the process's GPUs are.
    pub capabilities: ComputeCapabilities,
    memory: OwnedFd,
    n_bytes: u64,
    /// One of `image_kind`.
    kind: u64,
    /// Of a cubin, as in `message::IMAGE`.
    text: String,
}

/// Whether it is memory that can't shrink: only memory has seals, and a read of another file may wait for ever.
fn is_sealed(memory: &OwnedFd) -> bool {
    // SAFETY: a descriptor of ours.
    let seals = unsafe { libc::fcntl(memory.as_raw_fd(), libc::F_GET_SEALS) };
    seals >= 0 && seals & libc::F_SEAL_SHRINK != 0
}

impl LoadedImage {
    /// Takes what an IMAGE says.
    pub(super) fn new(message: Message, memory: OwnedFd) -> Self {
        let Message { words: [number, _, n_bytes, least, greatest, kind, ..], text, .. } = message;
        let capabilities = ComputeCapabilities { least: least as u32, greatest: greatest as u32 };
        LoadedImage { number, capabilities, memory, n_bytes, kind, text }
    }

    /// Whether it is a kernel that was loaded before the collector came: files are searched for it.
    pub fn is_kernel(&self) -> bool {
        self.kind == image_kind::KERNEL
    }

    /// Whether it is none: the process has a context in which programs can run.
    pub fn is_context(&self) -> bool {
        self.kind == image_kind::PROGRAMS
    }

    /// Passes it to `f`.
    ///
    /// # Errors
    /// It is larger than images are, shorter than the collector said, or malformed.
    pub fn read<T>(self, f: impl FnOnce(&LoadedCode<'_>) -> T) -> io::Result<T> {
        if self.n_bytes > MOST_IMAGE_BYTES {
            return Err(io::Error::other(format!("an image of {} bytes", self.n_bytes)));
        }
        if !is_sealed(&self.memory) {
            return Err(io::Error::other("an image that is not in sealed memory"));
        }
        let mut bytes = vec![0; self.n_bytes as usize];
        File::from(self.memory).read_exact_at(&mut bytes, 0)?;
        let loaded = LoadedCode::decode(self.kind, &bytes, &self.text);
        Ok(f(&loaded.ok_or_else(|| io::Error::other("an image that is malformed"))?))
    }
}

/// Puts bytes into memory that can be sent.
pub(super) fn memory_with(bytes: &[u8]) -> io::Result<OwnedFd> {
    let file = File::from(sealed_memory(bytes.len())?);
    file.write_all_at(bytes, 0)?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use xputrace_wire::message;

    const BLOCK: [u8; 24] = [7; 24];

    fn block(initial: &[u8]) -> DeviceBlock {
        DeviceBlock { initial: initial.to_vec(), ..DeviceBlock::default() }
    }

    fn write(region: &DeviceRegion, offset: usize, word: u64) {
        region.file.write_all_at(&word.to_le_bytes(), offset as u64).unwrap();
    }

    fn slot(at: usize) -> usize {
        offset_of!(Control, slots) + at * size_of::<ContextSlot>()
    }

    #[test]
    fn a_block_begins_with_the_initial_bytes_and_has_no_copy() {
        let region = DeviceRegion::new(&block(&BLOCK), false, 0x11).unwrap();
        let mut initial = [0; 24];
        region.file.read_exact_at(&mut initial, region.shape.initial_offset() as u64).unwrap();
        assert_eq!(initial[..8], BLOCK[..8]);
        assert_eq!((&initial[8..16], &initial[16..]), (&[0x11, 0, 0, 0, 0x11, 0, 0, 0][..], &BLOCK[16..]));
        assert!(region.copies(CopyExtent::Whole).unwrap().is_empty());
        assert_eq!(region.counts().unwrap(), DeviceCounts::default());
        assert!(DeviceRegion::new(&block(&[0; 9]), false, 0x11).is_err());
    }

    #[test]
    fn copies_are_those_that_are_complete() {
        let region = DeviceRegion::new(&block(&BLOCK), false, 0x11).unwrap();
        for (at, generation) in [(0, 2), (1, 3), (15, 4)] {
            write(&region, slot(at) + offset_of!(ContextSlot, generation), generation);
            region.file.write_all_at(&[at as u8; 24], region.shape.copy_offset(at) as u64).unwrap();
        }
        write(&region, slot(15) + offset_of!(ContextSlot, context), 7 << 32 | 3);
        let copy = |slot, context| DeviceCopy { slot, context, is_last: false, block: vec![slot as u8; 24] };
        assert_eq!(region.copies(CopyExtent::Whole).unwrap(), [copy(0, 0), copy(15, 3)]);
    }

    #[test]
    fn launches_of_all_contexts_are_counted_together() {
        let region = DeviceRegion::new(&block(&BLOCK), false, 0x11).unwrap();
        (0..3).for_each(|it| write(&region, slot(it) + offset_of!(ContextSlot, swapped), 10));
        write(&region, offset_of!(Control, unprobed) + 8 * Unprobed::Cooperative as usize, 5);
        write(&region, offset_of!(Control, images) + 8 * ImageOutcome::Twinned as usize, 2);
        write(&region, offset_of!(Control, without_arguments), 6);
        let counts = region.counts().unwrap();
        assert_eq!(counts.without_arguments, 6);
        assert_eq!((counts.swapped, counts.unprobed[Unprobed::Cooperative as usize]), (30, 5));
        assert_eq!(counts.images[ImageOutcome::Twinned as usize], 2);
        assert_eq!(counts.n_unfinished, 3);
        [1, 5].into_iter().for_each(|it| write(&region, slot(it) + offset_of!(ContextSlot, is_last), 1));
        assert_eq!(region.counts().unwrap().n_unfinished, 2, "nothing ran in the last one");
        write(&region, slot(1) + offset_of!(ContextSlot, generation), 3);
        assert_eq!(region.counts().unwrap().n_unfinished, 3, "its process ended amid a copy");
        [0, 2].into_iter().for_each(|it| write(&region, slot(it) + offset_of!(ContextSlot, failure), 700));
        assert_eq!(region.counts().unwrap().failures, BTreeSet::from([700]));
    }

    #[test]
    fn what_has_become_of_programs_is_read() {
        let region = DeviceRegion::new(&DeviceBlock { has_programs: true, ..block(&BLOCK) }, false, 0x11).unwrap();
        let flag = word_at(&region.control().unwrap(), offset_of!(Control, has_programs)) as u32;
        assert_eq!((flag, region.counts().unwrap().programs), (1, ProgramsOutcome::default()));
        let at = offset_of!(Control, programs);
        write(&region, at, 2 << 32 | ProgramsState::NotLaunched as u64);
        write(&region, at + offset_of!(ProgramsAccount, failure), 3 << 32 | 701);
        let expected = ProgramsOutcome { state: ProgramsState::NotLaunched, launched: 2, failure: 701, slot: 3 };
        assert_eq!(region.counts().unwrap().programs, expected);
        // Where nothing else has run and all have ended, no copy is missing.
        write(&region, slot(3) + offset_of!(ContextSlot, swapped), 2);
        assert_eq!(region.counts().unwrap().n_unfinished, 1);
        write(&region, at, 2 << 32 | ProgramsState::Done as u64);
        assert_eq!(region.counts().unwrap().n_unfinished, 0);
        write(&region, slot(3) + offset_of!(ContextSlot, swapped), 3);
        assert_eq!(region.counts().unwrap().n_unfinished, 1, "a twin has run, too");
        write(&region, at, 99);
        assert_eq!(region.counts().unwrap().programs.state, ProgramsState::Waiting, "there is no such state");
    }

    #[test]
    fn conditions_are_told_and_switched_and_their_launches_counted() {
        let filter = |every, tag| LaunchFilter { every, tag, stream: None };
        let of = |launches, switch| Condition { launches, switch };
        let conditions = [
            of(filter(100, None), None),
            of(filter(1, Some(-7)), Some(SwitchId(0))),
            of(filter(2, None), Some(SwitchId(1))),
        ];
        let region =
            DeviceRegion::new(&DeviceBlock { conditions: conditions.to_vec(), ..block(&BLOCK) }, false, 0x11).unwrap();
        let word = |at: usize, offset: usize| {
            let mut word = [0; 8];
            region.file.read_exact_at(&mut word, (condition_offset(at) + offset) as u64).unwrap();
            u64::from_le_bytes(word)
        };
        let [every, tag, flags] = [
            offset_of!(device::Condition, every),
            offset_of!(device::Condition, tag),
            offset_of!(device::Condition, has_tag),
        ];
        let told = |at| [every, tag, flags].map(|it| word(at, it));
        assert_eq!([0, 1, 2, 3].map(told), [[100, 0, 0], [1, -7i64 as u64, 1], [2, 0, 0], [0; 3]]);
        region.switch(&conditions, |it| it == SwitchId(0)).unwrap();
        // `is_off` is behind `has_tag`.
        assert_eq!([0, 1, 2].map(|at| word(at, flags) >> 32), [0, 0, 1]);
        write(&region, condition_offset(1) + offset_of!(device::Condition, met), 9);
        write(&region, condition_offset(1) + offset_of!(device::Condition, chosen), 5);
        write(&region, condition_offset(1) + offset_of!(device::Condition, unprobed), 2);
        let counts = region.counts().unwrap().conditions;
        assert_eq!(counts[1], ConditionCounts { sampled: Sampled { met: 9, chosen: 5 }, unprobed: 2 });
        assert_eq!(counts[0], ConditionCounts::default());
    }

    #[test]
    fn an_image_that_is_not_as_the_collector_says_is_refused() {
        let image = |n_bytes, kind| {
            let message = Message::new(message::IMAGE, &[1, 0, n_bytes, 90, 90, kind], "/cache\n\n/home\n/a/b.cubin");
            LoadedImage::new(message, memory_with(&[1; 40]).unwrap()).read(|it| format!("{it:?}"))
        };
        assert!(image(41, image_kind::PORTABLE).is_err(), "shorter");
        assert!(image(40, image_kind::PORTABLE).is_err(), "malformed");
        assert!(image(u64::MAX, image_kind::CUBIN).is_err(), "huge");
        assert!(image(40, image_kind::PROGRAMS + 1).is_err(), "of no kind");
        let endless = Message::new(message::IMAGE, &[1, 0, 40, 90, 90, image_kind::PORTABLE], "");
        let endless = LoadedImage::new(endless, File::open("/dev/zero").unwrap().into()).read(|_| ());
        assert!(endless.is_err_and(|it| it.to_string().contains("sealed")), "a file");
        assert_eq!(image(0, image_kind::PORTABLE).unwrap(), "Portable([])");
        assert_eq!(
            image(2, image_kind::CUBIN).unwrap(),
            r#"Cubin(Cubin { bytes: [1, 1], variables: [Some("/cache"), None, Some("/home")], file: Some("/a/b.cubin") })"#
        );
    }

    proptest! {
        #[test]
        fn any_words_in_the_region_are_survived(writes in proptest::collection::vec((0usize..PAGE / 8, any::<u64>()), 0..60)) {
            let region = DeviceRegion::new(&block(&BLOCK), false, 0x11).unwrap();
            for (at, word) in writes {
                write(&region, at * 8, word);
            }
            prop_assert!(region.copies(CopyExtent::Whole).unwrap().len() <= MOST_CONTEXTS);
            let _ = region.counts().unwrap();
        }
    }
}
