//! What device code can do with maps. A word has one writing side: atomics of a CPU and a GPU on one word lose updates.
//! So aggregations and sums have a part on the GPU, and other values are written there or elsewhere. And what device
//! handlers can ask of launches.

use super::scan::Use;
use super::tables::{LaunchWords, Purpose, Shapes};
use super::typed::MapId;
use super::unit::Unit;
use super::wishes::Wishes;
use xputrace_model::context::device::{MOST_CONDITIONS, launch_word};
use xputrace_model::context::word;
use xputrace_model::diagnostic::Diagnostic;
use xputrace_model::plan::{Activity, Calls, Demand, Detail, Details, DeviceWay, DeviceWays, Place, Plan};
use xputrace_model::schema::{self, DeviceEvent, Event, Field, From};
use xputrace_model::table::Scalar;
use xputrace_script::handler::{Handler, Staged};

/// Reports maps of device handlers that cannot be kept on the GPU.
pub(super) fn check_maps(staged: &Staged, units: &[Unit], shapes: &Shapes) -> Vec<Diagnostic> {
    let on_gpu = (0..shapes.list.len()).filter(|it| shapes.list[*it].in_gpu);
    on_gpu.flat_map(|map| MapUses::of(staged, units, shapes, map).mistakes()).collect()
}

/// Returns how all device handlers get into kernels, if any of them says it: the others follow.
fn said(staged: &Staged) -> Option<DeviceWay> {
    staged.handlers.iter().find_map(|it| it.options.via)
}

/// Returns which ways there are, and the mistakes in what the script says of them.
pub(super) fn ways(staged: &Staged, units: &[Unit], shapes: &Shapes, wishes: Wishes) -> (DeviceWays, Vec<Diagnostic>) {
    match said(staged) {
        Some(DeviceWay::Patch) => {
            let mistakes = check_same(staged, DeviceWay::Patch).chain(unpatchable(staged, units, shapes));
            (DeviceWays::One(DeviceWay::Patch), mistakes.collect())
        }
        Some(way) => (DeviceWays::One(way), check_same(staged, way).collect()),
        None if wishes.chooses_way && units.iter().any(|it| it.place == Place::Gpu) => {
            let first = unpatchable(staged, units, shapes).next().map(|it| it.message);
            (DeviceWays::Either { unpatchable: first }, Vec::new())
        }
        None => (DeviceWays::default(), Vec::new()),
    }
}

/// Reports device handlers that say another way than the first one that says any.
fn check_same(staged: &Staged, way: DeviceWay) -> impl Iterator<Item = Diagnostic> {
    let first = staged.handlers.iter().find(|it| it.options.via.is_some());
    let others = staged.handlers.iter().filter(move |it| it.options.via.is_some_and(|it| it != way));
    let mistake = move |it: &Handler| {
        let error = via_error(it, "all device handlers get into a process's kernels in one way".to_owned());
        let error = first.into_iter().fold(error, |error, it| error.also(it.declared_at.clone(), "another way"));
        error.help("let each of them have the same `via`")
    };
    others.map(mistake)
}

/// Returns what of a script patches can't do: where they are insisted on, each is an error.
fn unpatchable<'a>(
    staged: &'a Staged,
    units: &'a [Unit<'a>],
    shapes: &'a Shapes,
) -> impl Iterator<Item = Diagnostic> + 'a {
    let of_handlers = staged.handlers.iter().filter_map(|it| unpatchable_handler(staged, it));
    let maps = (0..shapes.list.len()).filter(|it| shapes.list[*it].in_gpu);
    let of_maps = maps.filter_map(|map| MapUses::of(staged, units, shapes, map).unpatchable_launch());
    of_handlers.chain(fields_of_patched_kernels(units)).chain(of_maps)
}

fn unpatchable_handler(staged: &Staged, handler: &Handler) -> Option<Diagnostic> {
    let error = |message: &str| via_error(handler, message.to_owned());
    Some(match handler.event {
        Event::Device(place) if !place.can_be_patched() => {
            let (unknown, what_to_do) = unknown_to_patches(place);
            error(&format!("patches of machine code don't know {unknown}"))
                .help(format!("`{}` needs a twin: {what_to_do}", place.name()))
        }
        Event::Device(_) if handler.options.stream.is_some() => {
            error("in which stream a launch is isn't known where kernels are patched")
                .help("`stream` needs a twin: leave `via` out")
        }
        event if needs_activity_records(handler) => {
            let message =
                format!("`{}` needs CUPTI, which can't be used in a process whose kernels are patched", event.name());
            let first = staged.handlers.iter().find(|it| it.options.via.is_some());
            let error =
                first.into_iter().fold(error(&message), |it, first| it.also(first.declared_at.clone(), "patches"));
            error
                .help("run the two in scripts of their own, one after the other")
                .help("`kernel` and `launch`, of kernels and graphs, can be beside patches")
        }
        _ => return None,
    })
}

/// Returns what patches don't know of an event that they can't have, and what to do.
fn unknown_to_patches(place: DeviceEvent) -> (&'static str, &'static str) {
    let without_via = "leave `via` out";
    match place {
        DeviceEvent::Line => ("source lines", "leave `via` out, and compile with `nvcc -lineinfo`"),
        DeviceEvent::BlockEnd => ("which thread of a block ends last", without_via),
        _ => ("where that is", without_via),
    }
}

fn via_error(handler: &Handler, message: String) -> Diagnostic {
    Diagnostic::error("via", message, handler.declared_at.clone())
}

/// Whether only CUPTI tells of a handler's event. Patches tell of kernels, and the Sanitizer API of launches.
fn needs_activity_records(handler: &Handler) -> bool {
    match handler.event {
        Event::Activity(activity) => activity != Activity::Kernel,
        Event::Launch => !Calls::LAUNCHES.contains_all(handler.options.calls()),
        Event::Host(_) => true,
        _ => false,
    }
}

/// Whether kernels and their launches are events, but may be those of patched code.
pub(super) fn has_patched_kernels(staged: &Staged, ways: &DeviceWays) -> bool {
    let is_one = |it: &Handler| matches!(it.event, Event::Activity(_) | Event::Launch);
    let may_be_patched = matches!(ways, DeviceWays::One(DeviceWay::Patch) | DeviceWays::Either { unpatchable: None });
    may_be_patched && staged.handlers.iter().any(is_one)
}

/// Returns what is demanded where they are events. Up to when kernels can be handled follows from launches then.
pub(super) fn patched(demand: Demand) -> Demand {
    let details = demand.details.with(Details::of(&[Detail::PatchedKernels]));
    Demand { details, ..demand.joining(|it| it == Activity::Kernel) }
}

/// What CUPTI alone tells of a kernel and of a launch.
const OF_ACTIVITY_RECORDS: [usize; 21] = [
    word::STREAM,
    word::STREAM_KIND,
    word::STREAM_PRIORITY,
    word::REGISTERS,
    word::STATIC_SHARED,
    word::DYNAMIC_SHARED,
    word::LOCAL_MEMORY,
    word::QUEUED,
    word::SUBMITTED,
    word::CAPTURE_USTACK,
    word::CAPTURE_PYSTACK,
    word::PREVIOUS_NAME,
    word::IDLE,
    word::LAUNCH_API,
    word::LAUNCH_RESULT,
    word::LAUNCH_STREAM,
    word::LAUNCH_STREAM_KIND,
    word::LAUNCH_STREAM_PRIORITY,
    word::LAUNCH_DYNAMIC_SHARED,
    word::LAUNCH_EXTERNAL,
    word::LAUNCH_EXTERNAL_KIND,
];

/// Reports fields of kernels and launches that CUPTI alone tells.
fn fields_of_patched_kernels<'a>(units: &'a [Unit<'a>]) -> impl Iterator<Item = Diagnostic> + 'a {
    let is_one = |it: &&Unit| matches!(it.handler.event, Event::Activity(_) | Event::Launch);
    let mistake = |unit: &Unit| {
        let reads = &unit.scan.reads;
        let untold: Vec<&str> =
            fields_of_records(unit.handler.event).filter(|it| reads.has(it)).map(|it| it.name).collect();
        let message = format!("nobody tells of these fields where kernels are patched: {}", untold.join(", "));
        let error = Diagnostic::error("via", message, unit.handler.declared_at.clone())
            .help("CUPTI does, which can't be used then: run the handler in a script of its own");
        (!untold.is_empty()).then_some(error)
    };
    units.iter().filter(is_one).filter_map(mistake)
}

fn fields_of_records(event: Event) -> impl Iterator<Item = &'static Field> {
    let fields = event.fields().iter().filter(move |_| event != Event::Launch).chain(schema::LAUNCH);
    let is_of_records = |it: &&Field| match it.from {
        From::Word(at) | From::Optional { value: at, .. } => OF_ACTIVITY_RECORDS.contains(&at),
        From::Probe => false,
    };
    fields.filter(is_of_records)
}

/// Reports tags that no launch has.
pub(super) fn check_tags(units: &[Unit]) -> Vec<Diagnostic> {
    let has_tags = units.iter().any(|it| it.scan.sets_tag.is_some());
    let waits = units.iter().filter_map(|it| Some((it.handler, it.handler.options.tag.filter(|_| !has_tags)?)));
    let error = |(handler, tag): (&Handler, i64)| {
        let message = format!("no launch has the tag {tag}: no handler sets one");
        Diagnostic::error("never-tagged", message, handler.declared_at.clone())
            .help(format!("write `launch(|l| if … {{ l.tag = {tag}; }});`"))
    };
    waits.map(error).collect()
}

/// Reports more conditions than collectors know.
pub(super) fn check_conditions(plan: &Plan, units: &[Unit]) -> Option<Diagnostic> {
    let n = plan.conditions().len();
    let handler = units.iter().rfind(|it| it.place == Place::Gpu).map(|it| it.handler)?;
    let message =
        format!("the script's device handlers run at {n} choices of launches; the limit is {MOST_CONDITIONS}");
    let error = Diagnostic::error("too-many-conditions", message, handler.declared_at.clone())
        .help("handlers with the same `every` and `tag`, of one declaration if it is switched, share one");
    (n > MOST_CONDITIONS).then_some(error)
}

/// A map that device code uses, and where it is used.
struct MapUses<'a> {
    staged: &'a Staged,
    shapes: &'a Shapes,
    map: MapId,
    uses: Vec<(Place, &'a Use<'a>)>,
}

impl<'a> MapUses<'a> {
    fn of(staged: &'a Staged, units: &'a [Unit<'a>], shapes: &'a Shapes, map: MapId) -> Self {
        let name = &shapes.list[map].name;
        let all = units.iter().flat_map(|unit| unit.scan.uses.iter().map(|it| (unit.place, it)));
        MapUses { staged, shapes, map, uses: all.filter(|it| it.1.map == *name).collect() }
    }

    fn name(&self) -> &str {
        &self.shapes.list[self.map].name
    }

    fn mistakes(&self) -> Vec<Diagnostic> {
        let all = [self.text_in_key(), self.evicts(), self.written_twice(), self.plain_by_launch()];
        all.into_iter().flatten().collect()
    }

    fn first(&self, passes: impl Fn(Place, &Use) -> bool) -> Option<&'a Use<'a>> {
        self.uses.iter().find(|it| passes(it.0, it.1)).map(|it| it.1)
    }

    fn error_at(&self, at: &Use, message: String) -> Diagnostic {
        Diagnostic::error("not-in-device-code", message, self.staged.label(at.file, at.at))
    }

    /// Device code knows names by their number.
    fn text_in_key(&self) -> Option<Diagnostic> {
        let at = self.first(|place, _| place == Place::Gpu)?;
        let parts = self.shapes.key_parts(self.map);
        let part = parts.iter().position(|it| matches!(it.kind, Scalar::Text(_)))? + 1;
        let message = format!(
            "part {part} of the key of `{}` is text elsewhere, which device code cannot write: there, a name is a number",
            self.name()
        );
        Some(self.error_at(at, message).help("use two maps"))
    }

    /// Launches that have the same field are one element once they are known, of whose values only sums can be made.
    fn plain_by_launch(&self) -> Option<Diagnostic> {
        let is_plain = self.shapes.purpose(self.map) == Some(Purpose::Plain) && !self.shapes.is_summed(self.map);
        let has_launch = self.shapes.launch_parts(self.map).iter().any(Option::is_some);
        let at = self.first(|place, _| place == Place::Gpu).filter(|_| is_plain && has_launch)?;
        let message = format!("`{}` has a field of the launch in its key, and so cannot be assigned to", self.name());
        Some(self.error_at(at, message).help("use an aggregation, such as `.max(…)`, or `+=`"))
    }

    /// Which call has launched a kernel, and in which stream, is known by CUPTI alone.
    fn unpatchable_launch(&self) -> Option<Diagnostic> {
        const KNOWN: [usize; 6] = [
            word::LAUNCH_USTACK,
            word::LAUNCH_PYSTACK,
            word::LAUNCH_START,
            word::LAUNCH_TID,
            word::LAUNCH_RANGE,
            word::LAUNCH_RANGE_PATH,
        ];
        let is_unknown = |it: &LaunchWords| launch_word(it.value).is_none_or(|it| !KNOWN.contains(&it));
        let has_unknown = self.shapes.launch_parts(self.map).iter().flatten().any(is_unknown);
        let at = self.first(|place, _| place == Place::Gpu).filter(|_| has_unknown)?;
        let message = format!(
            "the key of `{}` has a field of the launch that is not known where kernels are patched",
            self.name()
        );
        Some(
            self.error_at(at, message)
                .help("ustack, pystack, time, tid, nvtx and nvtx_path are known")
                .help("`#{via: \"twin\"}` has the others, for kernels with PTX"),
        )
    }

    fn evicts(&self) -> Option<Diagnostic> {
        let at = self.first(|place, _| place == Place::Gpu)?;
        let message = format!("`{}` is declared to evict, which device code cannot do", self.name());
        let mistake = self.error_at(at, message).help("remove `evict`, and declare the `size` that it needs");
        self.shapes.list[self.map].evict.then_some(mistake)
    }

    fn written_twice(&self) -> Option<Diagnostic> {
        if self.shapes.purpose(self.map) != Some(Purpose::Plain) || self.shapes.is_summed(self.map) {
            return None;
        }
        let name = self.name();
        let on_gpu = self.first(|place, it| place == Place::Gpu && it.how.changes());
        let elsewhere = self.first(|place, it| place != Place::Gpu && it.how.changes());
        match (on_gpu, elsewhere) {
            (Some(on_gpu), Some(elsewhere)) => {
                let message = format!("`{name}` is written here and in device code: a word has one writing side");
                let there = self.staged.label(on_gpu.file, on_gpu.at);
                Some(
                    self.error_at(elsewhere, message)
                        .also(there, "written in device code")
                        .help("use two maps")
                        .help("aggregations, and values that are only changed by `+=`, have a part for each side"),
                )
            }
            (Some(_), None) => {
                let read = self.first(|place, _| matches!(place, Place::Linux | Place::Tracer))?;
                let message = format!(
                    "`{name}` is written in device code; reading it in another compiled handler is not implemented yet"
                );
                Some(self.error_at(read, message).help("read it in an `interval` or `end` handler"))
            }
            (None, Some(elsewhere)) => {
                let read = self.first(|place, _| place == Place::Gpu)?;
                let message =
                    format!("`{name}` is written elsewhere; reading it in device code is not implemented yet");
                let there = self.staged.label(elsewhere.file, elsewhere.at);
                Some(
                    self.error_at(read, message)
                        .also(there, "written here")
                        .help("a variable of the script's top level is a constant in handlers: `let limit = 100;`"),
                )
            }
            (None, None) => None,
        }
    }
}
