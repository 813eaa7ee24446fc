//! `xputrace build`: a script as an object for other loaders.

use crate::cli::{Run, Script};
use crate::compiled::{Compiled, compile_named};
use crate::console;
use crate::status::MISTAKE;
use anyhow::{Context, Result, bail};
use std::fs::{self, Metadata, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use xputrace_bytecode::object::{self, Loaders, LossSlot, Place};
use xputrace_bytecode::{Image, ProgramId};
use xputrace_linux::place_for_libbpf;
use xputrace_model::plan::{LossSite, Plan, Probe, Target};
use xputrace_model::schema::Event;

/// Writes the compiled script, and says what is in the object.
pub fn build(run: &Run) -> Result<ExitCode> {
    let compiled = match compile_named(run)?.ready_or(MISTAKE) {
        Ok(compiled) => compiled,
        Err(status) => return Ok(status),
    };
    refuse_switches(&compiled)?;
    refuse_usdt(&compiled.plan)?;
    let loaders = run.options.loaders.unwrap_or_default();
    let path = run.options.output.clone().unwrap_or_else(|| default_object(run.script.as_ref()));
    let image = &compiled.plan.image;
    let bytes = object::write_for(image, loaders, &places(&compiled.plan), &losses(&compiled.plan))?;
    write_whole(&path, &bytes).with_context(|| format!("cannot write {}", path.display()))?;
    console::print(format_args!("{}: {}\n", path.display(), contents(image, loaders)))?;
    Ok(ExitCode::SUCCESS)
}

fn refuse_switches(compiled: &Compiled) -> Result<()> {
    let Some(switch) = compiled.plan.switches.first() else { return Ok(()) };
    bail!(
        "cannot build an object: the script enables or disables `{}` (line {}) while it runs, which other loaders cannot do",
        switch.name,
        switch.site.line
    );
}

fn refuse_usdt(plan: &Plan) -> Result<()> {
    let Some(probe) = plan.probes.iter().find(|it| it.event == Event::Usdt) else { return Ok(()) };
    bail!(
        "cannot build an object: other loaders do not tell a script's programs where `{}` (line {}) has its arguments; run the \
         script with `xputrace run`",
        probe.name,
        probe.site.line
    );
}

/// Returns where each program of the image is attached, if that is a function.
fn places(plan: &Plan) -> Vec<Option<Place>> {
    let mut places = vec![None; plan.image.programs.len()];
    for probe in &plan.probes {
        let place = place(probe);
        let programs = [probe.program, probe.entry_program].into_iter().flatten();
        programs.map(ProgramId::index).for_each(|it| places[it].clone_from(&place));
    }
    places
}

/// Returns what the slots of the loss maps count.
fn losses(plan: &Plan) -> Vec<LossSlot> {
    let slot = |it: &LossSite| LossSlot {
        kind: it.loss.name().into(),
        file: plan.sources.files.get(it.site.file.0 as usize).map_or_else(String::new, |it| it.name.clone()),
        line: it.site.line,
    };
    plan.loss_sites.iter().map(slot).collect()
}

/// Writes a file as a whole: if that fails, the one that is there stays as it is, unless it can only be written in place.
fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let known = fs::metadata(path).ok();
    // Devices and pipes can't be replaced.
    if known.as_ref().is_some_and(|it| !it.is_file()) {
        return fs::write(path, bytes);
    }
    // A link stays one.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    match replace(&path, known.as_ref(), bytes) {
        Err(error) if IN_PLACE_ALONE.contains(&error.kind()) => fs::write(&path, bytes),
        result => result,
    }
}

/// Where the file alone may be writable, is mounted by itself, or can't be given to its owner.
const IN_PLACE_ALONE: [io::ErrorKind; 3] =
    [io::ErrorKind::PermissionDenied, io::ErrorKind::ReadOnlyFilesystem, io::ErrorKind::ResourceBusy];

/// Puts a new file in the place of the known one, with its owner and mode.
fn replace(path: &Path, known: Option<&Metadata>, bytes: &[u8]) -> io::Result<()> {
    let directory = path.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // As for any new file, the umask decides.
    let mut draft = tempfile::Builder::new().permissions(Permissions::from_mode(0o666)).tempfile_in(directory)?;
    // First, as those who may not read the file may not read its draft.
    if let Some(known) = known {
        let made = draft.as_file().metadata()?;
        if (made.uid(), made.gid()) != (known.uid(), known.gid()) {
            fchown(draft.as_file(), Some(known.uid()), Some(known.gid()))?;
        }
        draft.as_file().set_permissions(known.permissions())?;
    }
    draft.write_all(bytes)?;
    draft.persist(path).map(drop).map_err(|it| it.error)
}

fn place(probe: &Probe) -> Option<Place> {
    match &probe.target {
        Target::Function { object, function } => place_for_libbpf(object, function),
        _ => None,
    }
}

/// Counts what the object contains, and what of it no loader takes.
fn contents(image: &Image, loaders: Loaders) -> String {
    let count = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    let (programs, maps) = (count(image.programs.len(), "program"), count(image.maps.len(), "map"));
    match image.programs.iter().filter(|it| !object::is_loaded(it, loaders)).count() {
        0 => format!("{programs}, {maps}"),
        skipped => format!("{programs} ({skipped} of them for xputrace alone), {maps}"),
    }
}

fn default_object(script: Option<&Script>) -> PathBuf {
    match script {
        Some(Script::Named(name)) => {
            PathBuf::from(Path::new(name).file_stem().unwrap_or_default()).with_extension("bpf.o")
        }
        _ => PathBuf::from("script.bpf.o"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(file: &Path) -> u32 {
        fs::metadata(file).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_file_keeps_its_mode_and_its_neighbours() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str| directory.path().join(name);
        fs::write(file("x.bpf.o.part"), "a neighbour").unwrap();
        fs::write(file("x.bpf.o"), "old").unwrap();
        fs::set_permissions(file("x.bpf.o"), Permissions::from_mode(0o640)).unwrap();
        write_whole(&file("x.bpf.o"), b"new").unwrap();
        assert_eq!(fs::read_to_string(file("x.bpf.o")).unwrap(), "new");
        assert_eq!(mode(&file("x.bpf.o")), 0o640);
        assert_eq!(fs::read_to_string(file("x.bpf.o.part")).unwrap(), "a neighbour");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_new_file_has_the_mode_of_any_new_file_and_a_link_stays_one() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str| directory.path().join(name);
        fs::write(file("plain"), "").unwrap();
        write_whole(&file("x.bpf.o"), b"1").unwrap();
        assert_eq!(mode(&file("x.bpf.o")), mode(&file("plain")));
        std::os::unix::fs::symlink("x.bpf.o", file("link")).unwrap();
        write_whole(&file("link"), b"2").unwrap();
        assert!(fs::symlink_metadata(file("link")).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(file("x.bpf.o")).unwrap(), "2");
    }
}
