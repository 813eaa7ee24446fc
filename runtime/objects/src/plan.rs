//! Puts the plan together.

use crate::error::{ObjectError, listed};
use crate::section::{GpuHook, Hook};
use crate::set::Setter;
use crate::wishes::{ReadFile, Wishes};
use crate::{helpers, launch, maps, section};
use std::sync::Arc;
use xputrace_bytecode::object::{self, Contents, LossSlot, ReadCode, ReadProgram, is_map_type_of_gpu};
use xputrace_bytecode::{BpfMapId, Image, Program, ProgramId, ProgramKind};
use xputrace_model::diagnostic::{FileId, Site, SourceFile, Sources};
use xputrace_model::loss::Loss;
use xputrace_model::object::Object;
use xputrace_model::plan::{
    Activities, Activity, Demand, DeviceEvent, KernelPattern, LossSite, PatternOfHandler, Place, Plan, Probe,
    ProbePlace, ProbeScope, ReturnWay,
};
use xputrace_model::schema::Event;

/// Converts an object to what a run needs. `file` is its name in messages.
///
/// # Errors
/// The bytes are no such object, it does what is not supported, or a wish names what it doesn't have.
pub fn plan(file: &str, bytes: &[u8], wishes: &Wishes, read: &ReadFile<'_>) -> Result<Plan, ObjectError> {
    let contents = object::read(bytes)?;
    let programs = Programs::of(&contents, wishes)?;
    let users: Vec<_> = BpfMapId::each(&contents.maps).map(|(id, it)| programs.users(id, it.kind)).collect();
    let specs = contents.maps.iter().zip(&users).map(|(it, users)| maps::spec(it, *users));
    let specs = specs.collect::<Result<Vec<_>, _>>()?;
    let shown = maps::shown(&contents, &specs, &users, wishes)?;
    let mut setter = Setter { maps: &contents.maps, specs: &specs, initial: maps::variables(&contents.maps) };
    wishes.set.iter().try_for_each(|it| setter.set(it, read))?;
    let initial = setter.initial;
    let elf = programs.are_in_linux().then(|| bytes.into());
    let mut plan = Plan {
        sources: sources(file, &contents.sources),
        image: Image { maps: specs, programs: Vec::new(), sources: contents.sources.clone() },
        demand: programs.demand(wishes),
        ..Plan::default()
    };
    let wrong: Vec<_> = programs.list.iter().filter_map(|it| it.add(wishes, &mut plan).err()).collect();
    ObjectError::all(wrong)?;
    count_losses(&contents, &mut plan)?;
    // What runs at a kernel's exit sees what was done at its entry, whatever their order in the object, and what runs at the end of
    // a block both.
    plan.probes.sort_by_key(|it| match it.event {
        Event::Device(DeviceEvent::BlockEnd) => 2,
        Event::Device(DeviceEvent::Exit) => 1,
        _ => 0,
    });
    plan.object = Some(Arc::new(Object {
        file: file.to_owned(),
        maps: shown,
        initial,
        elf,
        launches: launch::launches(&plan, &wishes.launch)?,
        with_context: with_context(&plan),
        allows_exit: wishes.allows_exit,
    }));
    Ok(plan)
}

/// Makes a script's loss maps those of the run.
fn count_losses(contents: &Contents, plan: &mut Plan) -> Result<(), ObjectError> {
    if contents.losses.is_empty() {
        return Ok(());
    }
    let sources = &plan.sources;
    let sites = contents.losses.iter().map(|it| loss_site(it, sources)).collect::<Result<_, _>>()?;
    plan.loss_sites = sites;
    let [of_linux, of_gpu] =
        maps::LOSS_MAPS.map(|name| contents.maps.iter().position(|it| it.name == name).map(BpfMapId::at));
    (plan.linux_losses, plan.gpu_losses) = (of_linux, of_gpu);
    Ok(())
}

fn loss_site(slot: &LossSlot, sources: &Sources) -> Result<LossSite, ObjectError> {
    let loss = Loss::named(&slot.kind).ok_or_else(|| ObjectError::Loss(slot.kind.clone()))?;
    let file = sources.files.iter().position(|it| it.name == slot.file).unwrap_or_default();
    Ok(LossSite { loss, site: Site { file: FileId(file as u32), offset: 0, line: slot.line }, table: None })
}

const LEGACY_MAPS: &str = "it runs in Linux, and libbpf, which loads it, doesn't know maps in SEC(\"maps\") any more: define \
                           them in SEC(\".maps\"); in Rust, with `#[btf_map]` of aya-ebpf";

/// The programs of an object that are to run.
struct Programs<'a> {
    list: Vec<Placed<'a>>,
}

/// A program, and where it is to run.
struct Placed<'a> {
    program: &'a ReadProgram,
    /// Its own, or the one that the user wants it in.
    section: String,
    is_wished: bool,
    is_on_gpu: bool,
}

impl<'a> Programs<'a> {
    fn of(contents: &'a Contents, wishes: &Wishes) -> Result<Self, ObjectError> {
        let placed = |program: &'a ReadProgram| Placed {
            program,
            section: program.section.clone(),
            is_wished: false,
            is_on_gpu: section::is_on_gpu(&program.name) || section::of_script(&program.section).is_some(),
        };
        let mut all = Programs { list: contents.programs.iter().map(placed).collect() };
        for wish in &wishes.attach {
            let option = format!("--attach {wish}");
            let Some((name, section)) = wish.split_once('=') else {
                return Err(ObjectError::Option {
                    option,
                    what: "write PROGRAM=SECTION, as in f=kprobe/KERNEL".into(),
                });
            };
            let it = all.named(name, &option)?;
            section.clone_into(&mut it.section);
            it.is_wished = true;
        }
        for name in &wishes.on_gpu {
            all.named(name, &format!("--on-gpu {name}"))?.is_on_gpu = true;
        }
        all.list.retain(|it| !section::is_left_out(&it.section));
        match all.list.iter().find(|it| !it.is_on_gpu) {
            None if all.list.is_empty() => Err(ObjectError::NoPrograms),
            Some(it) if contents.has_legacy_maps => Err(it.refused(LEGACY_MAPS.into())),
            _ => Ok(all),
        }
    }

    /// Returns the program of a name, for an option.
    fn named(&mut self, name: &str, option: &str) -> Result<&mut Placed<'a>, ObjectError> {
        let names = listed(self.list.iter().map(|it| it.program.name.as_str()));
        let found = self.list.iter_mut().find(|it| it.program.name == name);
        found.ok_or_else(|| ObjectError::Option {
            option: option.to_owned(),
            what: format!("there is no program `{name}`; its programs: {names}"),
        })
    }

    fn are_in_linux(&self) -> bool {
        self.list.iter().any(|it| !it.is_on_gpu)
    }

    /// Returns what programs use a map of this type. Linux has also those that no program uses.
    fn users(&self, map: BpfMapId, number: u32) -> maps::Users {
        let uses = |is_on_gpu| self.list.iter().any(|it| it.is_on_gpu == is_on_gpu && it.program.maps.contains(&map));
        let (used_in_linux, on_gpu) = (uses(false), uses(true));
        let in_linux = used_in_linux || (!on_gpu && self.are_in_linux() && !is_map_type_of_gpu(number));
        maps::Users { in_linux, on_gpu }
    }

    /// Returns what the collector records. The software GPU runs programs over kernels' records.
    fn demand(&self, wishes: &Wishes) -> Demand {
        if !self.list.iter().any(Placed::is_in_kernels) {
            return Demand::default();
        }
        let demand = Demand { activities: Activities::of(&[Activity::Kernel]), ..Demand::default() };
        demand.joining(|_| wishes.joins)
    }
}

impl Placed<'_> {
    /// Adds the program with its probes.
    fn add(&self, wishes: &Wishes, plan: &mut Plan) -> Result<(), ObjectError> {
        match self.is_on_gpu {
            true => self.add_on_gpu(wishes, plan),
            false => self.add_in_linux(wishes, plan),
        }
    }

    /// Whether it runs in kernels of the traced program.
    fn is_in_kernels(&self) -> bool {
        self.is_on_gpu && section::of_gpu(&self.section) != Ok(GpuHook::Direct)
    }

    fn refused(&self, what: String) -> ObjectError {
        ObjectError::Program { section: self.section.clone(), program: self.program.name.clone(), what }
    }

    /// Adds a program with a probe for each kernel that it runs in.
    fn add_on_gpu(&self, wishes: &Wishes, plan: &mut Plan) -> Result<(), ObjectError> {
        let hook = section::of_gpu(&self.section).map_err(|it| self.refused(it))?;
        let code = self.program.code.clone()?;
        let (event, kernels) = match hook {
            GpuHook::Kernels(place, kernels) => (Event::Device(place), kernels),
            GpuHook::Direct => (Event::Begin, Vec::new()),
        };
        let kind = ProgramKind::Device { place: event.name().into(), kernels: kernels.join(",") };
        let is_of_script = section::of_script(&self.section).is_some();
        let refusal = helpers::refused_on_gpu(&code.insns, wishes.allows_exit).filter(|_| !is_of_script);
        let converted = self.converted(kind, code);
        if let Some((insn, what)) = refusal {
            return Err(ObjectError::Insn {
                section: self.section.clone(),
                program: self.program.name.clone(),
                insn,
                line: line(&converted, insn, &plan.image),
                what,
            });
        }
        let site = site(&converted);
        let program = Some(plan.image.add_program(converted));
        let probe =
            |target| Probe { target, name: self.section.clone(), program, site, ..Probe::of(event, Place::Gpu) };
        match event {
            Event::Begin => plan.probes.push(probe(ProbePlace::None)),
            _ => {
                let patterns = PatternOfHandler::each(kernels.into_iter().map(KernelPattern::new));
                plan.probes.extend(patterns.into_iter().map(|it| probe(ProbePlace::Kernels(it))));
            }
        }
        Ok(())
    }

    /// Adds a program that libbpf loads, with its probe unless others call it.
    fn add_in_linux(&self, wishes: &Wishes, plan: &mut Plan) -> Result<(), ObjectError> {
        if self.section == "syscall" {
            return Err(self.refused(
                "a script's handler of an event of the GPU, which an object can't name: run the script itself".into(),
            ));
        }
        if self.program.is_in_map {
            let kind = match self.section.starts_with("uprobe") || self.section.starts_with("uretprobe") {
                true => ProgramKind::Uprobe,
                false => ProgramKind::Section(self.section.clone()),
            };
            plan.image.add_program(self.converted(kind, ReadCode::default()));
            return Ok(());
        }
        let hook = section::of_linux(&self.program.name, &self.section, self.is_wished);
        let hook = hook.map_err(|it| self.refused(it))?;
        if matches!(hook, Hook::ByLibbpf) && self.is_wished && self.section != self.program.section {
            section::can_be_wished(&self.section).map_err(|it| self.refused(it))?;
        }
        let (event, kind, target) = self.hooked(hook);
        let code = self.program.code.clone().unwrap_or_default();
        let converted = self.converted(kind, code);
        let site = site(&converted);
        let program = plan.image.add_program(converted);
        plan.probes.push(Probe {
            target,
            name: self.section.clone(),
            program: Some(program),
            scope: if wishes.in_processes { ProbeScope::Process } else { ProbeScope::System },
            returns: ReturnWay::Trampoline,
            site,
            ..Probe::of(event, Place::Linux)
        });
        Ok(())
    }

    fn hooked(&self, hook: Hook) -> (Event, ProgramKind, ProbePlace) {
        match hook {
            Hook::Function { event, file, function } => {
                let kind = if event == Event::Uretprobe { ProgramKind::Uretprobe } else { ProgramKind::Uprobe };
                (event, kind, ProbePlace::Function { object: file, function })
            }
            Hook::Tracepoint { category, name } => {
                let kind = ProgramKind::Tracepoint { category: category.clone(), name: name.clone() };
                (Event::Tracepoint, kind, ProbePlace::Tracepoint { category, name })
            }
            Hook::Samples { hz } => (Event::Profile, ProgramKind::PerfEvent, ProbePlace::Profile { hz }),
            Hook::ByLibbpf => {
                let section = self.section.clone();
                (Event::Tracepoint, ProgramKind::Section(section.clone()), ProbePlace::Section(section))
            }
        }
    }

    fn converted(&self, kind: ProgramKind, code: ReadCode) -> Program {
        let ReadCode { insns, map_refs, lines } = code;
        Program { name: self.program.name.clone(), kind, insns, map_refs, lines }
    }
}

/// Returns the programs that a script's compiler made.
fn with_context(plan: &Plan) -> Vec<ProgramId> {
    let of_script = plan.probes.iter().filter(|it| section::of_script(&it.name).is_some());
    of_script.filter_map(|it| it.program).collect()
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
