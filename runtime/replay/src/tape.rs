//! A recording in memory, and what in it runs programs of Linux.

use rustc_hash::FxHashMap;
use xputrace_model::gpu::GpuKind;
use xputrace_model::loss::{Loss, Losses};
use xputrace_model::stack::StackKey;
use xputrace_recording::{Damage, FrameInfo, Hit, RecordingEntry, RecordingReader};
use xputrace_wire::record::{FramedRecord, Header, Launch, Record, framed, kind, records};
use zerocopy::{FromBytes, IntoBytes};

/// A recording in memory.
pub(crate) struct Tape {
    pub(crate) entries: Vec<RecordingEntry>,
    pub(crate) hits: Vec<Hit>,
    pub(crate) names: FxHashMap<(u32, u32), Vec<u8>>,
    pub(crate) comms: FxHashMap<(u32, u32), [u8; 16]>,
    pub(crate) pids: FxHashMap<u32, u32>,
    pub(crate) frames: FxHashMap<StackKey, Vec<FrameInfo>>,
    pub(crate) gpus: Vec<GpuKind>,
    pub(crate) losses: Losses,
    pub(crate) damage: Option<Damage>,
}

/// An event on a CPU, with its time.
pub(crate) struct Cause {
    pub(crate) time: u64,
    pub(crate) what: What,
}

pub(crate) enum What {
    /// Index into [`Tape::hits`].
    Hit(usize),
    /// A launch, by its location in the entries.
    Launch { entry: usize, ring: usize, offset: usize },
}

impl Tape {
    pub(crate) fn load(mut recording: RecordingReader) -> Self {
        let mut tape = Tape {
            entries: Vec::new(),
            hits: Vec::new(),
            names: FxHashMap::default(),
            comms: FxHashMap::default(),
            pids: FxHashMap::default(),
            frames: FxHashMap::default(),
            gpus: Vec::new(),
            losses: Losses::default(),
            damage: None,
        };
        for entry in &mut recording {
            tape.add(entry);
        }
        tape.damage = recording.damage();
        tape
    }

    fn add(&mut self, entry: RecordingEntry) {
        match entry {
            RecordingEntry::Hit(hit) => self.hits.push(hit),
            RecordingEntry::Symbols(symbols) => self.frames.extend(symbols),
            RecordingEntry::Losses(losses) => {
                let told_here = losses.iter().filter(|it| !matches!(it.0, Loss::LinuxStack | Loss::StackCollision));
                told_here.for_each(|(loss, _, n)| self.losses.add(loss, n));
            }
            RecordingEntry::ProcessStart { process, pid, ref comm, pid_in_target, gpu, .. } => {
                self.pids.insert(process, pid);
                self.gpus.extend(Some(gpu).filter(|it| !self.gpus.contains(it)));
                let tid = if pid_in_target == 0 { pid } else { pid_in_target };
                self.comms.insert((process, tid), xputrace_model::text::padded(comm));
                self.entries.push(entry);
            }
            RecordingEntry::Wire { process, time_nanos, mut rings } => {
                rings.iter_mut().for_each(|ring| self.prepare(process, ring));
                self.entries.push(RecordingEntry::Wire { process, time_nanos, rings });
            }
            RecordingEntry::ProcessEnd { .. } => self.entries.push(entry),
        }
    }

    /// Learns names, and removes the tags that the recorded script set.
    fn prepare(&mut self, process: u32, ring: &mut [u8]) {
        for record in records(ring).map_while(Result::ok) {
            match record {
                Record::Name { id, text } => drop(self.names.insert((process, id), text.to_vec())),
                Record::Thread(it) => drop(self.comms.insert((process, it.tid), it.comm)),
                _ => {}
            }
        }
        let launches: Vec<usize> = launches_in(ring).collect();
        launches.into_iter().for_each(|it| set_tag(ring, it, None));
    }

    /// Returns everything that runs a program of Linux, latest first.
    pub(crate) fn causes(&self, hits_only: bool) -> Vec<Cause> {
        let hit = |(at, it): (usize, &Hit)| Cause { time: it.time_nanos, what: What::Hit(at) };
        let mut causes: Vec<Cause> = self.hits.iter().enumerate().map(hit).collect();
        for (entry, it) in self.entries.iter().enumerate().filter(|_| !hits_only) {
            let RecordingEntry::Wire { rings, .. } = it else { continue };
            for (ring, bytes) in rings.iter().enumerate() {
                for offset in launches_in(bytes) {
                    if let Some(launch) = launch_at(bytes, offset) {
                        causes.push(Cause { time: launch.start, what: What::Launch { entry, ring, offset } });
                    }
                }
            }
        }
        causes.sort_by_key(|it| std::cmp::Reverse(it.time));
        causes
    }

    /// Returns how far the CPU side must be before an entry is handled: a drain holds launches that
    /// started before it was taken.
    pub(crate) fn time_of(&self, at: usize) -> u64 {
        match &self.entries[at] {
            RecordingEntry::Wire { time_nanos, rings, .. } => {
                let starts = rings.iter().flat_map(|ring| launches_in(ring).map(move |it| (ring, it)));
                let starts = starts.filter_map(|(ring, at)| launch_at(ring, at)).map(|it| it.start);
                starts.max().unwrap_or(0).max(*time_nanos)
            }
            RecordingEntry::ProcessEnd { time_nanos, .. } => *time_nanos,
            _ => 0,
        }
    }
}

/// Returns the offsets of the launch records in a ring's bytes.
fn launches_in(ring: &[u8]) -> impl Iterator<Item = usize> {
    let is_launch = |it: &FramedRecord<'_>| it.header.kind == kind::LAUNCH && it.body().len() >= size_of::<Launch>();
    framed(ring).filter(is_launch).map(|it| it.offset)
}

pub(crate) fn launch_at(ring: &[u8], offset: usize) -> Option<Launch> {
    Launch::read_from_prefix(ring.get(offset + size_of::<Header>()..)?).ok().map(|it| it.0)
}

pub(crate) fn set_tag(ring: &mut [u8], offset: usize, tag: Option<i64>) {
    let Some(mut launch) = launch_at(ring, offset) else { return };
    launch.flags = (launch.flags & !Launch::TAGGED) | if tag.is_some() { Launch::TAGGED } else { 0 };
    launch.tag = tag.unwrap_or(0);
    let from = offset + size_of::<Header>();
    ring[from..from + size_of::<Launch>()].copy_from_slice(launch.as_bytes());
}
