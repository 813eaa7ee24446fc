//! A compiled object in Linux: libbpf loads it from its own bytes, with relocations against this machine's Linux (CO-RE).
//!
//! ```text
//! bytes ──open──▶ choose programs and maps ──load──▶ descriptors in the image's order
//!                                              └──▶ the object, for sections that libbpf attaches itself
//! ```

use crate::error::{AttachError, Error};
use crate::libbpf::{self, ObjectRefusal};
use crate::load::{self, LoadedImage, LoadedMap};
use crate::map::MapHandle;
use crate::ring::Ring;
use libbpf_rs::{
    Link, MapCore as _, MapType, Object, OpenMapMut, OpenObject, OpenProgramMut, PerfBuffer, PerfBufferBuilder,
    ProgramAttachType, ProgramType,
};
use std::cell::{Cell, RefCell};
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, RawFd};
use std::rc::Rc;
use xputrace_bytecode::object::is_map_type_of_gpu;
use xputrace_bytecode::{BpfMapId, Home, Image, MapKind, ProgramId, ProgramKind};
use xputrace_model::object::{self, ObjectHome};

/// Given to libbpf as the object's name, which it puts before the names of sections of global variables.
const NAME: &str = "o";
/// Pages of each CPU's buffer of a perf event array; a power of two.
const PERF_PAGES: usize = 64;

/// An object that is loaded.
pub(crate) struct Compiled {
    object: Object,
    /// By index in the image, the names of programs.
    names: Vec<String>,
}

/// Loads an object's programs for Linux, and the maps that they use.
pub(crate) fn load(image: &Image, object: &object::Object, elf: &[u8]) -> Result<(LoadedImage, Compiled), Error> {
    let choice = Choice { image, object };
    let prepare = |it: &mut OpenObject| choice.apply(it);
    let loaded = libbpf::load_prepared(elf, NAME, prepare).map_err(|it| choice.explain(&it))?;
    let parts = choice.descriptors(&loaded)?;
    choice.fill(&parts)?;
    let names = image.programs.iter().map(|it| it.name.clone()).collect();
    Ok((parts, Compiled { object: loaded, names }))
}

/// What of an object is loaded, and how.
struct Choice<'a> {
    image: &'a Image,
    object: &'a object::Object,
}

impl Choice<'_> {
    fn apply(&self, open: &mut OpenObject) -> io::Result<()> {
        for mut map in open.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            let refused = |it| io::Error::other(format!("the map `{name}`: {}", libbpf::reason(&it)));
            self.prepare_map(&mut map).map_err(refused)?;
        }
        for mut program in open.progs_mut() {
            self.prepare_program(&mut program);
        }
        Ok(())
    }

    fn prepare_map(&self, map: &mut OpenMapMut<'_>) -> libbpf_rs::Result<()> {
        // Others are libbpf's own, such as those of `__kconfig`.
        let Some(id) = self.map_id(map.name()) else { return Ok(()) };
        let known = &self.object.maps[id.index()];
        let initial = self.object.initial.iter().find(|it| known.is_variables && it.map == id);
        if let Some(initial) = initial {
            return map.set_initial_value(&initial.value);
        }
        if self.image.maps[id].home != Home::Linux {
            return map.set_autocreate(known.is_variables);
        }
        if is_map_type_of_gpu(known.number) {
            map.set_type(if known.kind == MapKind::Hash { MapType::Hash } else { MapType::Array })?;
        }
        if known.home == ObjectHome::Shared && known.kind == MapKind::Array {
            map.set_map_flags(self.image.maps[id].flags)?;
        }
        Ok(())
    }

    fn prepare_program(&self, program: &mut OpenProgramMut<'_>) {
        let name = program.name().to_string_lossy().into_owned();
        let known = self.image.programs.iter().find(|it| it.name == name);
        let Some(types) = known.and_then(|it| types(&it.kind)) else {
            program.set_autoload(false);
            return;
        };
        if let Some(kind) = types.program {
            program.set_prog_type(kind);
        }
        if let Some(kind) = types.attach {
            program.set_attach_type(kind);
        }
        program.set_autoload(true);
    }

    fn map_id(&self, name: &OsStr) -> Option<BpfMapId> {
        let name = name.to_string_lossy();
        let is_it = |it: &object::ObjectMap| match it.is_variables {
            true => name == it.name || name.strip_prefix(NAME) == Some(&it.name),
            false => name == it.name,
        };
        self.object.maps.iter().position(is_it).map(BpfMapId::at)
    }

    fn descriptors(&self, loaded: &Object) -> Result<LoadedImage, Error> {
        let mut parts = LoadedImage {
            maps: self.image.maps.iter().map(|_| None).collect(),
            programs: self.image.programs.iter().map(|_| None).collect(),
        };
        for map in loaded.maps() {
            let Some(id) = self.map_id(map.name()).filter(|it| self.image.maps[*it].home == Home::Linux) else {
                continue;
            };
            let spec = self.image.maps[id].clone();
            let current = MapHandle::new(spec, load::keep(map.as_fd())?)?;
            parts.maps[id.index()] = Some(LoadedMap { current, outer: None });
        }
        for (at, program) in self.image.programs.iter().enumerate() {
            let found = loaded.progs().find(|it| it.autoload() && it.name() == program.name.as_str());
            parts.programs[at] = found.map(|it| load::keep(it.as_fd())).transpose()?;
        }
        Ok(parts)
    }

    /// Fills maps with what they begin with; sections of global variables have it already.
    fn fill(&self, parts: &LoadedImage) -> Result<(), Error> {
        for it in self.object.initial.iter().filter(|it| !self.object.maps[it.map.index()].is_variables) {
            if let Some(map) = &parts.maps[it.map.index()] {
                map.current.update(&it.key, &it.value, 0)?;
            }
        }
        Ok(())
    }

    /// Says which map or program Linux refused.
    fn explain(&self, refusal: &ObjectRefusal) -> Error {
        if refusal.is_of_permission() {
            return Error::NotPermitted("");
        }
        let what = match (refusal.program(), refusal.map()) {
            (Some(program), _) => format!("the program `{program}`{}", self.section_of(program)),
            (None, Some(map)) => format!("the map `{map}`"),
            (None, None) => format!("the object ({})", refusal.last_words()),
        };
        Error::RefusedObject { what, answer: refusal.answer(), log: load::tail(refusal.verifier_log()) }
    }

    /// Returns a program's section, if its hook is what libbpf reads from there: ` of section S`.
    fn section_of(&self, program: &str) -> String {
        let of = self.image.programs.iter().find(|it| it.name == program).map(|it| &it.kind);
        match of {
            Some(ProgramKind::Section(section)) => format!(" of section `{section}`"),
            _ => String::new(),
        }
    }
}

/// What Linux must know of a program; `None` is what libbpf makes of its section.
struct Types {
    program: Option<ProgramType>,
    attach: Option<ProgramAttachType>,
}

/// Returns the types of a program that runs in Linux.
fn types(kind: &ProgramKind) -> Option<Types> {
    let of = |program, attach| Some(Types { program: Some(program), attach });
    let multi = Some(ProgramAttachType::TraceUprobeMulti);
    match kind {
        // We attach by links with many places, whatever the section says.
        ProgramKind::Uprobe | ProgramKind::Uretprobe => of(ProgramType::Kprobe, multi),
        ProgramKind::Tracepoint { .. } => of(ProgramType::Tracepoint, None),
        ProgramKind::PerfEvent => of(ProgramType::PerfEvent, None),
        ProgramKind::Section(section) => match section.split('/').next().unwrap_or_default() {
            "usdt" => of(ProgramType::Kprobe, multi),
            "kprobe" | "kretprobe" | "ksyscall" | "kretsyscall" => of(ProgramType::Kprobe, None),
            "raw_tp" | "raw_tracepoint" => of(ProgramType::RawTracepoint, None),
            _ => Some(Types { program: None, attach: None }),
        },
        ProgramKind::Syscall | ProgramKind::Device { .. } => None,
    }
}

impl Compiled {
    /// Attaches a program as libbpf does, in every process: at its own section, or at one that needs no more than its name.
    pub(crate) fn attach(&self, program: ProgramId, section: &str) -> Result<Link, AttachError> {
        let name = &self.names[program.index()];
        let of_name = |it: &libbpf_rs::ProgramMut<'_>| it.name() == name.as_str();
        let refused = |answer: String| AttachError::Refused {
            what: format!("the program `{name}` at `{section}`"),
            answer,
            hint: String::new(),
        };
        let found = self.object.progs_mut().find(of_name).ok_or_else(|| refused("it is not loaded".into()))?;
        let (attached, said) = libbpf::listening(|| at(&found, section));
        attached.map_err(|error| match said.lines().last() {
            Some(words) => refused(words.trim_start_matches("libbpf: ").to_owned()),
            None => refused(error.to_string()),
        })
    }

    /// Opens the rings that programs write records to.
    pub(crate) fn rings(&self, image: &Image, maps: &[Option<LoadedMap>]) -> Result<Rings, Error> {
        let mut list = Vec::new();
        for (at, map) in maps.iter().enumerate() {
            let Some(map) = map else { continue };
            let spec = &image.maps[BpfMapId::at(at)];
            let reader = match spec.kind {
                MapKind::Ringbuf => RecordReader::Ring(load::open_ring(map)?),
                MapKind::PerfEventArray => self.perf_reader(&spec.name)?,
                _ => continue,
            };
            list.push((BpfMapId::at(at), reader));
        }
        Ok(Rings { list })
    }

    fn perf_reader(&self, name: &str) -> Result<RecordReader, Error> {
        let refused = |answer| Error::System { what: format!("read the records of `{name}`"), answer };
        let map = self.object.maps().find(|it| it.name() == name);
        let map = map.ok_or_else(|| refused(io::ErrorKind::NotFound.into()))?;
        let (records, lost) = (Rc::new(RefCell::new(Vec::new())), Rc::new(Cell::new(0)));
        let (into, count) = (records.clone(), lost.clone());
        let buffer = PerfBufferBuilder::new(&map)
            .pages(PERF_PAGES)
            .sample_cb(move |_cpu, data| into.borrow_mut().push(data.to_vec()))
            .lost_cb(move |_cpu, n| count.set(count.get() + n))
            .build()
            .map_err(|it| refused(io::Error::other(it)))?;
        Ok(RecordReader::Perf { buffer, records, lost })
    }
}

fn at(program: &libbpf_rs::ProgramMut<'_>, section: &str) -> libbpf_rs::Result<Link> {
    const EVERY_PROCESS: i32 = -1;
    let (kind, target) = section.split_once('/').unwrap_or((section, ""));
    if program.section() == section {
        return program.attach();
    }
    match kind {
        "kprobe" | "kretprobe" => program.attach_kprobe(kind == "kretprobe", target),
        "ksyscall" | "kretsyscall" => program.attach_ksyscall(kind == "kretsyscall", target),
        "raw_tp" | "raw_tracepoint" => program.attach_raw_tracepoint(target),
        _ => {
            let parts: Vec<&str> = target.rsplitn(3, ':').collect();
            match parts[..] {
                [name, provider, file] => program.attach_usdt(EVERY_PROCESS, file, provider, name),
                _ => Err(libbpf_rs::Error::from(io::Error::other("write usdt/FILE:PROVIDER:NAME"))),
            }
        }
    }
}

/// The rings of an object.
#[derive(Default)]
pub(crate) struct Rings {
    list: Vec<(BpfMapId, RecordReader)>,
}

enum RecordReader {
    Ring(Ring),
    /// A buffer for each CPU, whose records come in the order of each.
    Perf {
        buffer: PerfBuffer<'static>,
        records: Rc<RefCell<Vec<Vec<u8>>>>,
        lost: Rc<Cell<u64>>,
    },
}

impl Rings {
    /// Returns the descriptors to wait on.
    pub(crate) fn fds(&self) -> impl Iterator<Item = RawFd> + '_ {
        use std::os::fd::AsRawFd as _;
        self.list.iter().map(|(_, it)| match it {
            RecordReader::Ring(ring) => ring.fd().as_raw_fd(),
            RecordReader::Perf { buffer, .. } => buffer.epoll_fd(),
        })
    }

    /// Passes on all records. Returns `false` if one that is still being written holds back later ones.
    pub(crate) fn drain(&mut self, on_record: &mut dyn FnMut(BpfMapId, &[u8])) -> Result<bool, Error> {
        let mut are_all_read = true;
        for (map, reader) in &mut self.list {
            match reader {
                RecordReader::Ring(ring) => are_all_read &= ring.drain(&mut |record| on_record(*map, record)),
                RecordReader::Perf { buffer, records, .. } => {
                    let answer = buffer.consume();
                    answer.map_err(|it| Error::System { what: "read records".into(), answer: io::Error::other(it) })?;
                    records.take().iter().for_each(|it| on_record(*map, it));
                }
            }
        }
        Ok(are_all_read)
    }

    /// Returns how many records did not fit in.
    pub(crate) fn n_lost(&self) -> u64 {
        let lost = |it: &RecordReader| match it {
            RecordReader::Perf { lost, .. } => lost.get(),
            RecordReader::Ring(_) => 0,
        };
        self.list.iter().map(|it| lost(&it.1)).sum()
    }
}
