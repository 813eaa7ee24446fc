//! Decides where each handler runs, and why: `explain` prints the reasons.

use super::at_launch::is_later;
use super::scan::{How, Scan};
use rustc_hash::FxHashSet;
use xputrace_model::plan::{DeviceWay, LaunchFilter, Place, ProbeScope, ReturnWay};
use xputrace_model::schema::{self, DeviceEvent, Event, Field};
use xputrace_script::handler::{Handler, Per};

/// The maps whose plain values CPU probes exchange with other handlers.
#[derive(Debug, Default)]
pub(super) struct CpuMaps {
    pub(super) written: FxHashSet<String>,
    pub(super) read: FxHashSet<String>,
}

impl CpuMaps {
    pub(super) fn of<'s, 'a: 's>(handlers: impl Iterator<Item = (&'a Handler, &'s Scan<'a>)>) -> CpuMaps {
        let mut maps = CpuMaps::default();
        for it in handlers.filter(|it| is_cpu_probe(it.0)).flat_map(|it| &it.1.uses) {
            match it.how {
                How::Assign(_) => _ = maps.written.insert(it.map.clone()),
                How::Read | How::Contains => _ = maps.read.insert(it.map.clone()),
                How::Method(_) | How::Passed => {}
            }
        }
        maps
    }
}

fn is_cpu_probe(handler: &Handler) -> bool {
    handler.interpreted.is_none() && handler.event.is_of_cpu()
}

/// Returns a handler's place and the reasons.
pub(super) fn place(handler: &Handler, scan: &Scan, cpu_maps: &CpuMaps) -> (Place, Vec<String>) {
    let (place, mut why) = match handler.event {
        _ if handler.interpreted.is_some() => (Place::Interpreter, interpreted(handler)),
        Event::Interval | Event::Begin | Event::End => (Place::Interpreter, interpreted(handler)),
        Event::Uprobe | Event::Uretprobe | Event::Usdt | Event::Tracepoint | Event::Profile => {
            (Place::Linux, vec!["CPU probe: runs in linux, at the event".into()])
        }
        // Whether it is joined with its launch is known once all handlers are.
        Event::Activity(_) => (Place::Tracer, Vec::new()),
        Event::Launch => launch(scan, cpu_maps),
        Event::Host(_) => (Place::Tracer, vec![format!("recorded {}", handler.event.about().recorded)]),
        Event::Device(_) => (Place::Gpu, device_code(handler)),
    };
    if handler.event == Event::Uretprobe && place == Place::Linux {
        why.push(returns(handler.options.returns).into());
    }
    if handler.options.scope() == ProbeScope::System {
        why.push("system scope: slows every process that runs the probed code".into());
    }
    (place, why)
}

fn device_code(handler: &Handler) -> Vec<String> {
    let way = match handler.options.via {
        Some(DeviceWay::Patch) => {
            Some("their machine code is patched: CUPTI is not used in the process meanwhile".to_owned())
        }
        Some(DeviceWay::Twin) | None => None,
    };
    let launches = handler.options.launches();
    let which =
        |it: LaunchFilter| format!("at launches that it chooses ({}): others run the kernel as it is", it.text());
    let chosen = (launches != LaunchFilter::ALL).then(|| which(launches));
    [Some(device_threads(handler).to_owned()), way, chosen].into_iter().flatten().collect()
}

fn device_threads(handler: &Handler) -> &'static str {
    match handler.options.per {
        _ if handler.event == Event::Device(DeviceEvent::BlockEnd) => {
            "device code: runs in the last thread of each block that ends, in the kernels that match"
        }
        Per::Thread => "device code: runs in each thread of the kernels that match",
        Per::Warp => {
            "device code: runs once for the threads of a warp that are there together, in the kernels that match"
        }
        Per::Block => "device code: runs in the first thread of each block, in the kernels that match",
    }
}

fn returns(way: ReturnWay) -> &'static str {
    match way {
        ReturnWay::AtReturn => {
            "returns are probed at the function's `ret` instructions, without touching the stack: 3 to 12 us per return, \
             because Linux single-steps them"
        }
        ReturnWay::Trampoline => {
            "returns are probed by Linux's trampoline, as `return: \"trampoline\"` says: about 1 us per return, but a program \
             that unwinds, moves or switches its stack meanwhile, in a signal handler too, is killed, and one that \
             reads its return address gets a wrong one"
        }
    }
}

fn interpreted(handler: &Handler) -> Vec<String> {
    vec![match handler.event {
        Event::Interval | Event::Begin | Event::End => {
            format!("`{}` handlers run in the interpreter and can use all of Rhai", handler.event.name())
        }
        _ => "wrapped in `interpret(…)`: about 1 us per event".into(),
    }]
}

fn launch(scan: &Scan, cpu_maps: &CpuMaps) -> (Place, Vec<String>) {
    let during = |why: String| {
        (
            Place::Linux,
            vec![format!("{why}: runs during the launch, at the collector's marker function, about 1 us per launch")],
        )
    };
    let after = |why: &str| (Place::Tracer, vec![format!("{why}: runs after the launch returns")]);
    if scan.sets_tag.is_some() {
        return during("sets `tag`".into());
    }
    if let Some(it) = scan.uses.iter().find(|it| it.how.reads() && cpu_maps.written.contains(&it.map)) {
        return during(format!("reads `{}`, which a CPU probe writes", it.map));
    }
    match (scan.uses.iter().find(|it| it.how.changes() && cpu_maps.read.contains(&it.map)), later_field(scan)) {
        (Some(it), None) => during(format!("changes `{}`, which a CPU probe reads", it.map)),
        (Some(_), Some(field)) => after(&format!("reads `{field}`, which is not known during the launch")),
        (None, _) => after("neither sets `tag` nor exchanges values with CPU probes"),
    }
}

/// Returns a field that a launch handler reads and that is known only after the launch.
pub(super) fn later_field(scan: &Scan) -> Option<&'static str> {
    let is_later = |it: &&Field| is_later(it.name) && scan.reads.has(it);
    schema::LAUNCH.iter().find(is_later).map(|it| it.name)
}
