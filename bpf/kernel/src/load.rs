//! An image's kernel half into the kernel: maps first, then the programs that name them.
//!
//! Everything ends as descriptors in the order of the image, so that nothing afterwards depends
//! on names.

use crate::error::Error;
use crate::map::MapHandle;
use crate::sys::{self, ProgramType};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use xputrace_bytecode::{Home, Image, MapKind, MapSpec, Program, ProgramKind};

/// Room for the verifier's words; it keeps the last ones when they are more.
const LOG_BYTES: usize = 1 << 20;
/// Lines of it that an error shows.
const LOG_LINES: usize = 12;

/// Maps and programs by their index in the image; `None` for what does not live in the kernel.
pub(crate) struct Loaded {
    pub(crate) maps: Vec<Option<LoadedMap>>,
    pub(crate) programs: Vec<Option<OwnedFd>>,
}

/// A map, and the array around it where it has two generations.
pub(crate) struct LoadedMap {
    pub(crate) current: MapHandle,
    pub(crate) outer: Option<OwnedFd>,
}

/// Loads the maps that live in the kernel and every program that is attached there.
pub(crate) fn load(image: &Image) -> Result<Loaded, Error> {
    let maps = image.maps.iter().map(create).collect::<Result<Vec<_>, _>>()?;
    let programs =
        image.programs.iter().map(|it| load_program(it, image, &maps)).collect::<Result<Vec<_>, _>>()?;
    Ok(Loaded { maps, programs })
}

/// A new inner map of an array or hash of maps.
pub(crate) fn create_inner(outer: &MapSpec) -> Result<(MapSpec, OwnedFd), Error> {
    let inner = outer.inner.as_deref().ok_or_else(|| Error::NotSwappable(outer.name.clone()))?;
    let fd = sys::map_create(inner, None).map_err(|source| refused_map(inner, source))?;
    Ok((inner.clone(), fd))
}

fn create(spec: &MapSpec) -> Result<Option<LoadedMap>, Error> {
    if spec.home != Home::Kernel {
        return Ok(None);
    }
    let map = match spec.kind {
        MapKind::ArrayOfMaps | MapKind::HashOfMaps => create_outer(spec)?,
        _ => {
            let fd = sys::map_create(spec, None).map_err(|source| refused_map(spec, source))?;
            LoadedMap { current: MapHandle::new(spec.clone(), fd), outer: None }
        }
    };
    Ok(Some(map))
}

/// The first inner map serves as the example; in an array it is the first generation too.
fn create_outer(spec: &MapSpec) -> Result<LoadedMap, Error> {
    let (inner_spec, inner) = create_inner(spec)?;
    let outer = sys::map_create(spec, Some(inner.as_fd())).map_err(|source| refused_map(spec, source))?;
    if spec.kind == MapKind::HashOfMaps {
        return Ok(LoadedMap { current: MapHandle::new(spec.clone(), outer), outer: None });
    }
    put_generation(&outer, &inner)
        .map_err(|source| Error::Map { operation: "fill", map: spec.name.clone(), source })?;
    Ok(LoadedMap { current: MapHandle::new(inner_spec, inner), outer: Some(outer) })
}

/// Makes `inner` the map that programs find. The kernel waits for programs that still have the
/// one before (`maybe_wait_bpf_programs` in `kernel/bpf/syscall.c`).
pub(crate) fn put_generation(outer: &OwnedFd, inner: &OwnedFd) -> io::Result<()> {
    sys::map_update(outer.as_fd(), &0u32.to_ne_bytes(), &inner.as_raw_fd().to_ne_bytes(), 0)
}

fn load_program(program: &Program, image: &Image, maps: &[Option<LoadedMap>]) -> Result<Option<OwnedFd>, Error> {
    let kind = match program.kind {
        ProgramKind::Uprobe | ProgramKind::Uretprobe => ProgramType::UprobeMulti,
        ProgramKind::Tracepoint { .. } => ProgramType::Tracepoint,
        ProgramKind::PerfEvent => ProgramType::PerfEvent,
        ProgramKind::Syscall => return Ok(None),
    };
    let insns = patched(program, maps)?;
    match sys::prog_load(kind, &program.name, &insns, None) {
        Ok(fd) => Ok(Some(fd)),
        Err(source) => Err(explain(kind, program, image, &insns, source)),
    }
}

/// The instructions with the maps' descriptors in place.
fn patched(program: &Program, maps: &[Option<LoadedMap>]) -> Result<Vec<[u8; 8]>, Error> {
    let mut insns = program.insns.clone();
    for (slot, map) in &program.map_refs {
        let loaded = maps.get(*map).and_then(Option::as_ref).ok_or(Error::NoSuchMap(*map))?;
        let fd = match &loaded.outer {
            Some(outer) => outer.as_raw_fd(),
            None => loaded.current.fd().as_raw_fd(),
        };
        insns.get_mut(*slot).ok_or(Error::NoSuchMap(*map))?.imm = fd;
    }
    Ok(insns.into_iter().map(|it| it.to_bytes()).collect())
}

/// Loads again with a log, to say which line was refused and why.
fn explain(kind: ProgramType, program: &Program, image: &Image, insns: &[[u8; 8]], source: io::Error) -> Error {
    if source.raw_os_error() == Some(libc::EPERM) {
        return Error::NotPermitted("");
    }
    let mut log = vec![0; LOG_BYTES];
    let reason = match sys::prog_load(kind, &program.name, insns, Some(&mut log)) {
        Ok(_) => source,
        Err(again) => again,
    };
    let end = log.iter().position(|it| *it == 0).unwrap_or(log.len());
    let log = String::from_utf8_lossy(&log[..end]).into_owned();
    Error::Refused { program: program.name.clone(), place: place(program, image, &log), reason, log: tail(&log) }
}

/// The script's line of the last instruction that the verifier looked at.
fn place(program: &Program, image: &Image, log: &str) -> String {
    let line = last_insn(log).and_then(|it| program.line_of(it));
    let source = line.and_then(|it| image.sources.get(it.file));
    match (line, source) {
        (Some(line), Some((name, _))) => format!("{name}:{}", line.line),
        _ => "the script".into(),
    }
}

/// Instructions stand in the log as `12: (79) r0 = *(u64 *)(r6 +4000)`.
fn last_insn(log: &str) -> Option<usize> {
    log.lines().rev().find_map(|line| {
        let (number, rest) = line.split_once(": ")?;
        rest.starts_with('(').then(|| number.parse().ok()).flatten()
    })
}

fn tail(log: &str) -> String {
    let lines: Vec<_> = log.lines().filter(|it| !it.starts_with("processed ")).collect();
    lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
}

fn refused_map(spec: &MapSpec, source: io::Error) -> Error {
    match source.raw_os_error() {
        Some(libc::EPERM) => Error::NotPermitted(""),
        errno => Error::CreateMap {
            map: spec.name.clone(),
            kind: format!("{:?}", spec.kind),
            entries: spec.max_entries,
            source,
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
