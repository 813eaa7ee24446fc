//! Loads an image's Linux half: builds an object in memory, which libbpf loads.
//!
//! ```text
//! Image ──LinuxPart──▶ Image without the tracer's half ──object::write──▶ ELF ──libbpf──▶ descriptors
//! ```
//!
//! So Linux knows the script's lines (in the verifier's log and in bpftool's output) and the types
//! of keys and values. The result is descriptors in the image's order; nothing later depends on
//! names.

use crate::error::Error;
use crate::libbpf::{self, ObjectRefusal};
use crate::map::MapHandle;
use crate::ring::Ring;
use crate::sys;
use libbpf_rs::{MapCore as _, Object};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use xputrace_bytecode::object::{self, ObjectNames};
use xputrace_bytecode::{BpfMapId, Home, Image, MapSpec, Program, ProgramKind};

/// Number of log lines shown in an error.
const LOG_LINES: usize = 12;

/// Maps and programs by their index in the image; `None` for those that do not live in Linux.
pub(crate) struct LoadedImage {
    pub(crate) maps: Vec<Option<LoadedMap>>,
    pub(crate) programs: Vec<Option<OwnedFd>>,
}

/// A map, and the array around it if it has two generations.
pub(crate) struct LoadedMap {
    pub(crate) current: MapHandle,
    pub(crate) outer: Option<OwnedFd>,
}

/// Loads the maps that live in Linux and every program that is attached there.
pub(crate) fn load(image: &Image) -> Result<LoadedImage, Error> {
    let part = LinuxPart::of(image)?;
    if part.image.maps.is_empty() && part.image.programs.is_empty() {
        return part.descriptors(image, Descriptors::default());
    }
    let names = object::names(&part.image);
    let object =
        libbpf::load(&object::write(&part.image).map_err(Error::Object)?).map_err(|it| part.explain(&names, &it))?;
    part.descriptors(image, Descriptors::of(&object, names)?)
}

/// Creates an inner map of an array or hash of maps.
pub(crate) fn create_inner(outer: &MapSpec) -> Result<(MapSpec, OwnedFd), Error> {
    let inner = outer.inner.as_deref().ok_or_else(|| Error::NotSwappable(outer.name.clone()))?;
    let fd = sys::map_create(inner).map_err(|it| refused_map(inner, it))?;
    Ok((inner.clone(), fd))
}

/// The image without what does not live in Linux.
struct LinuxPart {
    image: Image,
    /// Index of each map and program in the whole image.
    maps: Vec<usize>,
    programs: Vec<usize>,
}

impl LinuxPart {
    fn of(whole: &Image) -> Result<LinuxPart, Error> {
        let maps: Vec<usize> = positions(&whole.maps, |it| it.home == Home::Linux);
        let programs: Vec<usize> =
            positions(&whole.programs, |it| !matches!(it.kind, ProgramKind::Syscall | ProgramKind::Device { .. }));
        let mut image = Image { sources: whole.sources.clone(), ..Image::default() };
        image.maps = maps.iter().map(|it| whole.maps[*it].clone()).collect();
        for index in &programs {
            let mut program = whole.programs[*index].clone();
            for (_, map) in &mut program.map_refs {
                let at = maps.binary_search(&map.index()).map_err(|_| Error::NoSuchMap(*map))?;
                *map = BpfMapId::at(at);
            }
            image.programs.push(program);
        }
        Ok(LinuxPart { image, maps, programs })
    }

    /// Reorders the object's descriptors to match the whole image.
    fn descriptors(&self, whole: &Image, mut found: Descriptors) -> Result<LoadedImage, Error> {
        let mut loaded = LoadedImage {
            maps: whole.maps.iter().map(|_| None).collect(),
            programs: whole.programs.iter().map(|_| None).collect(),
        };
        for (at, index) in self.maps.iter().enumerate() {
            loaded.maps[*index] = Some(found.map(at, &self.image.maps[at])?);
        }
        for (at, index) in self.programs.iter().enumerate() {
            loaded.programs[*index] = Some(found.program(at)?);
        }
        Ok(loaded)
    }

    /// Says which map or program failed, and at which line of the script.
    fn explain(&self, names: &ObjectNames, refusal: &ObjectRefusal) -> Error {
        let answer = || refusal.answer();
        if refusal.is_of_permission() {
            return Error::NotPermitted("");
        }
        let by_name = |names: &[String], name: &str| names.iter().position(|it| it == name);
        if let Some(at) = refusal.program().and_then(|it| by_name(&names.programs, it)) {
            let program = &self.image.programs[at];
            let log = refusal.verifier_log();
            let place = place(program, &self.image, log);
            return Error::Refused { program: program.name.clone(), place, answer: answer(), log: tail(log) };
        }
        match refusal.map().and_then(|it| by_name(&names.maps, it)) {
            Some(at) => refused_map(&self.image.maps[at], answer()),
            None => Error::System {
                what: format!("load the programs into Linux ({})", refusal.last_words()),
                answer: answer(),
            },
        }
    }
}

fn positions<T>(all: &[T], wanted: impl Fn(&T) -> bool) -> Vec<usize> {
    all.iter().enumerate().filter(|(_, it)| wanted(it)).map(|(at, _)| at).collect()
}

/// Descriptors of a loaded object by name; they outlive the object.
#[derive(Default)]
struct Descriptors {
    names: ObjectNames,
    maps: HashMap<String, OwnedFd>,
    programs: HashMap<String, OwnedFd>,
}

impl Descriptors {
    fn of(object: &Object, names: ObjectNames) -> Result<Descriptors, Error> {
        let mut found = Descriptors { names, ..Descriptors::default() };
        for map in object.maps() {
            found.maps.insert(map.name().to_string_lossy().into_owned(), keep(map.as_fd())?);
        }
        for program in object.progs() {
            found.programs.insert(program.name().to_string_lossy().into_owned(), keep(program.as_fd())?);
        }
        Ok(found)
    }

    /// For an array of maps, also takes the map in slot 0, its first generation.
    fn map(&mut self, at: usize, spec: &MapSpec) -> Result<LoadedMap, Error> {
        let fd = take(&mut self.maps, &self.names.maps[at])?;
        let Some(inner_name) = &self.names.inner_maps[at] else {
            return Ok(LoadedMap { current: MapHandle::new(spec.clone(), fd)?, outer: None });
        };
        let inner = spec.inner.as_deref().ok_or_else(|| Error::NotSwappable(spec.name.clone()))?;
        let current = MapHandle::new(inner.clone(), take(&mut self.maps, inner_name)?)?;
        Ok(LoadedMap { current, outer: Some(fd) })
    }

    fn program(&mut self, at: usize) -> Result<OwnedFd, Error> {
        take(&mut self.programs, &self.names.programs[at])
    }
}

/// Returns a descriptor that outlives libbpf's object.
pub(crate) fn keep(fd: BorrowedFd<'_>) -> Result<OwnedFd, Error> {
    let what = || "keep what was loaded into Linux".to_owned();
    fd.try_clone_to_owned().map_err(|answer| Error::System { what: what(), answer })
}

/// Opens a map's ring for reading.
pub(crate) fn open_ring(map: &LoadedMap) -> Result<Ring, Error> {
    let fd = map.current.try_clone_fd()?;
    Ring::new(fd, map.current.spec().max_entries).map_err(|it| map.current.error("map the ring of", it))
}

fn take(from: &mut HashMap<String, OwnedFd>, name: &str) -> Result<OwnedFd, Error> {
    let answer = || io::Error::new(io::ErrorKind::NotFound, "the object does not hold it");
    let missing = || Error::System { what: format!("find `{name}` among what was loaded"), answer: answer() };
    from.remove(name).ok_or_else(missing)
}

/// Makes `inner` the map that programs find. Linux waits for programs that still use the previous
/// one (`maybe_wait_bpf_programs` in `kernel/bpf/syscall.c`).
pub(crate) fn put_generation(outer: &OwnedFd, inner: &OwnedFd) -> io::Result<()> {
    sys::map_update(outer.as_fd(), &0u32.to_ne_bytes(), &inner.as_raw_fd().to_ne_bytes(), 0)
}

/// Returns the script's line of the last instruction that the verifier examined.
fn place(program: &Program, image: &Image, log: &str) -> String {
    let line = last_insn(log).and_then(|it| program.line_of(it));
    let source = line.and_then(|it| image.sources.get(it.file));
    match (line, source) {
        (Some(line), Some((name, _))) => format!("{name}:{}", line.line),
        _ => "the script".into(),
    }
}

/// Finds the last instruction in the log, such as `12: (79) r0 = *(u64 *)(r6 +4000)`.
fn last_insn(log: &str) -> Option<usize> {
    log.lines().rev().find_map(|line| {
        let (number, rest) = line.split_once(": ")?;
        rest.starts_with('(').then(|| number.parse().ok()).flatten()
    })
}

pub(crate) fn tail(log: &str) -> String {
    let lines: Vec<_> = log.lines().filter(|it| !it.starts_with("processed ")).collect();
    lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
}

fn refused_map(spec: &MapSpec, answer: io::Error) -> Error {
    match answer.raw_os_error() {
        Some(libc::EPERM) => Error::NotPermitted(""),
        errno => Error::CreateMap {
            map: spec.name.clone(),
            kind: format!("{:?}", spec.kind),
            entries: spec.max_entries,
            answer,
            hint: match errno {
                Some(libc::ENOMEM) => "; declare it smaller: map(#{size: …})",
                Some(libc::E2BIG) => "; it is too big: declare it smaller, map(#{size: …})",
                _ => "",
            },
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "0: R1=ctx() R10=fp0\n; x @ a.rhai:3\n0: (79) r0 = *(u64 *)(r1 +4000)\n\
                       invalid bpf_context access off=4000 size=8\nprocessed 1 insns (limit 1000000)\n";

    #[test]
    fn the_refused_instruction_is_found_in_the_log() {
        assert_eq!(last_insn(LOG), Some(0));
        assert_eq!(last_insn(""), None);
        assert!(tail(LOG).ends_with("invalid bpf_context access off=4000 size=8"));
    }
}
