//! Puts the plan together.

use crate::set::Setter;
use crate::{ObjectError, ReadFile, Wishes, helpers, listed, maps, section};
use std::sync::Arc;
use xputrace_bytecode::object::{self, Contents, ReadProgram};
use xputrace_bytecode::{Image, Program, ProgramId, ProgramKind};
use xputrace_model::diagnostic::{FileId, Site, SourceFile, Sources};
use xputrace_model::object::Object;
use xputrace_model::plan::{Activities, Activity, Demand, DeviceEvent, KernelPattern, Place, Plan, Probe, Target};
use xputrace_model::schema::Event;

/// Converts an object to what a run needs. `file` is its name in messages.
///
/// # Errors
/// The bytes are no such object, it does what is not supported, or a wish names what it doesn't have.
pub fn plan(file: &str, bytes: &[u8], wishes: &Wishes, read: &ReadFile<'_>) -> Result<Plan, ObjectError> {
    let mut contents = object::read(bytes)?;
    attach(&mut contents, &wishes.attach)?;
    if contents.programs.is_empty() {
        return Err(ObjectError::NoPrograms);
    }
    let specs = contents.maps.iter().map(maps::spec).collect::<Result<Vec<_>, _>>()?;
    let shown = maps::shown(&contents.maps, &specs, wishes)?;
    let mut setter = Setter { maps: &contents.maps, specs: &specs, initial: maps::variables(&contents.maps) };
    wishes.set.iter().try_for_each(|it| setter.set(it, read))?;
    let object =
        Object { file: file.to_owned(), maps: shown, initial: setter.initial, allows_exit: wishes.allows_exit };
    let mut plan = Plan {
        sources: sources(file, &contents.sources),
        image: Image { maps: specs, programs: Vec::new(), sources: contents.sources.clone() },
        demand: demand(wishes),
        object: Some(Arc::new(object)),
        ..Plan::default()
    };
    for name in &wishes.on_gpu {
        program(&contents.programs, name, &format!("--on-gpu {name}"))?;
    }
    for program in &contents.programs {
        add(program, wishes, &mut plan)?;
    }
    // What runs at a kernel's exit sees what was done at its entry, whatever their order in the object.
    plan.probes.sort_by_key(|it| it.event == Event::Device(DeviceEvent::Exit));
    Ok(plan)
}

/// Moves programs to the sections that the user wants them in.
fn attach(contents: &mut Contents, wishes: &[String]) -> Result<(), ObjectError> {
    for wish in wishes {
        let option = format!("--attach {wish}");
        let Some((name, section)) = wish.split_once('=') else {
            return Err(ObjectError::Option { option, what: "write PROGRAM=SECTION, as in f=kprobe/KERNEL".into() });
        };
        let at = program(&contents.programs, name, &option)?;
        section.clone_into(&mut contents.programs[at].section);
    }
    Ok(())
}

/// Returns the position of a program.
fn program(programs: &[ReadProgram], name: &str, option: &str) -> Result<usize, ObjectError> {
    let found = programs.iter().position(|it| it.name == name);
    found.ok_or_else(|| ObjectError::Option {
        option: option.to_owned(),
        what: format!(
            "there is no program `{name}`; its programs: {}",
            listed(programs.iter().map(|it| it.name.as_str()))
        ),
    })
}

/// Adds a program with a probe for each kernel that it runs in.
fn add(program: &ReadProgram, wishes: &Wishes, plan: &mut Plan) -> Result<(), ObjectError> {
    let refused = |what| ObjectError::Program { section: program.section.clone(), program: program.name.clone(), what };
    if !section::is_on_gpu(&program.name) && !wishes.on_gpu.contains(&program.name) {
        return Err(refused(
            "programs on the CPU are not supported yet; one for the GPU has a name that begins with cuda__, or is \
             named by --on-gpu"
                .into(),
        ));
    }
    let (place, kernels) = section::of_gpu(&program.section).map_err(refused)?;
    let kind = ProgramKind::Device { place: place.name().into(), kernels: kernels.join(",") };
    let converted = Program {
        name: program.name.clone(),
        kind,
        insns: program.insns.clone(),
        map_refs: program.map_refs.clone(),
        lines: program.lines.clone(),
    };
    if let Some((insn, what)) = helpers::refused_on_gpu(program, wishes.allows_exit) {
        return Err(ObjectError::Insn {
            section: program.section.clone(),
            program: program.name.clone(),
            insn,
            line: line(&converted, insn, &plan.image),
            what,
        });
    }
    let site = site(&converted);
    let id = plan.image.add_program(converted);
    plan.probes.extend(kernels.iter().map(|it| probe(id, place, it, program, site)));
    Ok(())
}

fn probe(id: ProgramId, place: DeviceEvent, kernel: &str, program: &ReadProgram, site: Site) -> Probe {
    Probe {
        target: Target::Kernels(KernelPattern::new(kernel)),
        name: program.section.clone(),
        program: Some(id),
        site,
        ..Probe::of(Event::Device(place), Place::Gpu)
    }
}

/// Returns where an instruction is in the source: ` (x.bpf.c:3)`.
fn line(program: &Program, insn: usize, image: &Image) -> String {
    let place = program.line_of(insn).and_then(|it| Some((&image.sources.get(it.file)?.0, it.line)));
    place.map_or_else(String::new, |(file, line)| format!(" ({file}:{line})"))
}

/// Returns where a program begins in the source.
fn site(program: &Program) -> Site {
    let site = |it: &xputrace_bytecode::Line| Site { file: FileId(it.file as u32), offset: 0, line: it.line };
    program.lines.first().map(site).unwrap_or_default()
}

/// Returns the source files, or the object itself if it doesn't name them.
fn sources(object: &str, files: &[(String, String)]) -> Sources {
    let file = |(name, text): &(String, String)| SourceFile { name: name.clone(), text: text.clone() };
    let mut files: Vec<SourceFile> = files.iter().map(file).collect();
    if files.is_empty() {
        files.push(SourceFile { name: object.to_owned(), text: String::new() });
    }
    Sources { files }
}

/// Returns what the collector records. The software GPU runs programs over kernels' records.
fn demand(wishes: &Wishes) -> Demand {
    let demand = Demand { activities: Activities::of(&[Activity::Kernel]), ..Demand::default() };
    demand.joining(|_| wishes.joins)
}
