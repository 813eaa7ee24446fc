//! The probes of a plan, and their programs.

use super::build::{Build, Engine};
use super::emit::Emitter;
use super::typed::Checked;
use super::unit::Unit;
use xputrace_bytecode::ProgramKind;
use xputrace_model::context::device;
use xputrace_model::plan::{LaunchFilter, Place, Probe, ProbeId, ProbePlace, ProgramId, ReturnWay};
use xputrace_model::schema::{DeviceEvent, Event};
use xputrace_script::handler::Handler;

impl Build<'_> {
    /// Adds a handler's probe, and its programs if it is compiled and the script has no errors.
    pub(super) fn handler(&mut self, unit: &Unit, fit: bool) {
        let handler = unit.handler;
        let id = ProbeId::at(self.plan.probes.len());
        let mut probe = Probe {
            target: handler.target.clone(),
            name: handler.name.clone(),
            returns: handler.options.returns,
            closure: handler.interpreted,
            scope: handler.options.scope(),
            texts: unit.checked.as_ref().map_or(Vec::new(), |it| it.texts.clone()),
            sees_unjoined: unit.sees_unjoined(),
            arguments: unit.scan.arguments.iter().map(|it| it.0.to_owned()).collect(),
            usdt_arguments: unit.checked.as_ref().map_or(Vec::new(), |it| it.usdt_arguments.clone()),
            switch: self.plan.switch_of(handler.declared),
            launches: if unit.place == Place::Gpu { handler.options.launches() } else { LaunchFilter::ALL },
            site: handler.site,
            why: unit.why.clone(),
            ..Probe::of(handler.event, unit.place)
        };
        if let Some(checked) = unit.checked.as_ref().filter(|_| fit) {
            self.add_program(handler, checked, id, &mut probe);
            if checked.entry_args.is_some() {
                probe.entry_program = self.entry_program(handler, checked, id);
            }
            if handler.event == Event::Uretprobe && probe.returns == ReturnWay::AtReturn {
                probe.tail_program = self.tail_program(handler, checked, id);
            }
        }
        self.plan.probes.push(probe);
    }

    fn add_program(&mut self, handler: &Handler, checked: &Checked, id: ProbeId, probe: &mut Probe) {
        let (engine, kind) = match (probe.place, handler.event, &handler.target) {
            (Place::Gpu, event, ProbePlace::Kernels(kernels)) => {
                let (place, kernels) = (event.name().to_owned(), kernels.pattern().text().to_owned());
                (Engine::Gpu, ProgramKind::Device { place, kernels })
            }
            (Place::Tracer | Place::Interpreter, ..) => (Engine::Tracer, ProgramKind::Syscall),
            (_, Event::Uretprobe, _) => (Engine::Linux, ProgramKind::Uretprobe),
            (_, Event::Tracepoint, ProbePlace::Tracepoint { category, name }) => {
                (Engine::Linux, ProgramKind::Tracepoint { category: category.clone(), name: name.clone() })
            }
            (_, Event::Profile, _) => (Engine::Linux, ProgramKind::PerfEvent),
            _ => (Engine::Linux, ProgramKind::Uprobe),
        };
        if handler.event == Event::Device(DeviceEvent::Memory) {
            // Twins of kernels set them.
            device::Access::ALL.iter().map(|it| it.text()).chain(device::SPACES.iter().copied()).for_each(|it| {
                self.string(it);
            });
        }
        let name = format!("{}_{}", handler.event.name(), id.0);
        let mut emitter = Emitter::new(self, handler, checked, engine, id);
        emitter.prologue();
        emitter.block(&checked.body);
        probe.reads = Some(emitter.reads).filter(|_| engine == Engine::Tracer);
        probe.program = emitter.finish(name, kind).map(|it| self.plan.image.add_program(it));
    }

    fn entry_program(&mut self, handler: &Handler, checked: &Checked, probe: ProbeId) -> Option<ProgramId> {
        let mut emitter = Emitter::new(self, handler, checked, Engine::Linux, probe);
        emitter.leave_entry();
        let program = emitter.finish(format!("entry_{}", probe.0), ProgramKind::Uprobe)?;
        Some(self.plan.image.add_program(program))
    }

    fn tail_program(&mut self, handler: &Handler, checked: &Checked, probe: ProbeId) -> Option<ProgramId> {
        let mut emitter = Emitter::new(self, handler, checked, Engine::Linux, probe);
        emitter.count_tail_call();
        let program = emitter.finish(format!("tail_{}", probe.0), ProgramKind::Uprobe)?;
        Some(self.plan.image.add_program(program))
    }
}
