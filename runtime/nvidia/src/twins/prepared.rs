//! What twins and patches of a script's device handlers are made with, before anything is started for them.

use super::made::OwnLaunch;
use super::objects;
use anyhow::{Result, anyhow, bail};
use xputrace_bytecode::{BpfMapId, Home, MapKind};
use xputrace_model::diagnostic::Site;
use xputrace_model::loss::Loss;
use xputrace_model::object::{DirectLaunch, ObjectHome};
use xputrace_model::plan::{DeviceEvent, DeviceHandler, DeviceWay, DeviceWays, PatternOfHandler, Plan, ProgramId};
use xputrace_model::schema::Unit;
use xputrace_pipeline::{DeviceLayout, DeviceSite};
use xputrace_render::human;
use xputrace_twins::{GpuMap, Handler, HandlerSite, Maker, MakerError, Origin};
use xputrace_wire::device::{MOST_ARRAYS, MOST_BLOCK_BYTES, MOST_PATCH_HANDLERS};

/// What a script's device handlers have become.
pub struct Prepared {
    pub maker: Maker,
    pub layout: DeviceLayout,
    /// The kernels of each handler; of those that run in kernels of their own, which come last, none.
    pub kernels: Vec<PatternOfHandler>,
    /// What runs in kernels of its own, in this order.
    pub launches: Vec<OwnLaunch>,
}

/// Prepares a script's device handlers; `None` if it has none, or a compiled object that can run on the software GPU alone.
///
/// # Errors
/// A handler does what kernels of a real GPU can't.
pub fn prepared(plan: &Plan) -> Result<Option<Prepared>> {
    match Prepared::of(plan) {
        Err(_) if plan.object.is_some() => Ok(None),
        made => made,
    }
}

impl Prepared {
    /// As [`prepared`], but an object that can't run on a real GPU is an error.
    pub fn of(plan: &Plan) -> Result<Option<Self>> {
        let parts = DevicePrograms::of(plan);
        if parts.handlers.is_empty() {
            return Ok(None);
        }
        if plan.device_ways == DeviceWays::One(DeviceWay::Patch) && parts.handlers.len() > MOST_PATCH_HANDLERS {
            bail!(too_many_for_patches(parts.handlers.len()));
        }
        plan.object.iter().try_for_each(|it| objects::check(it, plan))?;
        let origin = parts.origin(plan);
        let maker = parts.maker(origin, plan)?;
        refuse_oversized(plan, &maker)?;
        let n_shared = maker.arrays().len();
        if n_shared > MOST_ARRAYS {
            bail!("{n_shared} arrays are shared by a GPU and Linux: {MOST_ARRAYS} can be");
        }
        let layout = parts.layout(&maker, origin, plan);
        Ok(Some(Prepared { maker, layout, kernels: parts.kernels, launches: parts.launches }))
    }
}

/// What a plan has for GPUs.
#[derive(Default)]
struct DevicePrograms {
    handlers: Vec<Handler>,
    /// Where each handler is in the source.
    sites: Vec<Site>,
    programs: Vec<ProgramId>,
    kernels: Vec<PatternOfHandler>,
    launches: Vec<OwnLaunch>,
}

impl DevicePrograms {
    fn of(plan: &Plan) -> Self {
        let mut parts = DevicePrograms::default();
        let conditions = plan.conditions();
        for it in plan.device_handlers() {
            let Some(program) = it.program else { continue };
            let condition = conditions.iter().position(|known| Some(*known) == it.condition).map(|it| it as u8);
            parts.kernels.push(it.kernels.clone());
            parts.add(plan, it.place, program, condition, it.site);
        }
        for DirectLaunch { probe, program, shape } in plan.object.iter().flat_map(|it| &it.launches) {
            parts.launches.push(OwnLaunch { handler: parts.handlers.len(), shape: *shape });
            // A place that no kernel is asked about: it has no pattern.
            parts.add(plan, DeviceEvent::Entry, *program, None, plan.probes[probe.index()].site);
        }
        parts
    }

    fn add(&mut self, plan: &Plan, place: DeviceEvent, program: ProgramId, condition: Option<u8>, site: Site) {
        self.handlers.push(Handler { place, program: plan.image.programs[program].clone(), condition });
        self.sites.push(site);
        self.programs.push(program);
    }

    /// Returns what the handlers are: a script's also where an object was built of one.
    fn origin(&self, plan: &Plan) -> Origin {
        match &plan.object {
            Some(it) if !self.programs.iter().all(|at| it.with_context.contains(at)) => {
                Origin::Object { allows_exit: it.allows_exit }
            }
            _ => Origin::Script,
        }
    }

    fn maker(&self, origin: Origin, plan: &Plan) -> Result<Maker> {
        let named = |handler: usize| plan.image.programs[self.programs[handler]].name.clone();
        let made = Maker::new(origin, self.handlers.clone(), &maps(plan), &|text| string_id(plan, text));
        made.map_err(|error| match error {
            MakerError::Handler { handler, refusal } if plan.object.is_some() => {
                anyhow!("program `{}`, instruction {}: {}", named(handler), refusal.insn, refusal.what)
            }
            MakerError::Handler { handler, refusal } => {
                anyhow!("the device handler at {} can't run on a GPU: {}", self.sites[handler].line, refusal.what)
            }
            other => anyhow!("the script's device handlers can't run on a GPU: {other}"),
        })
    }

    fn layout(&self, maker: &Maker, origin: Origin, plan: &Plan) -> DeviceLayout {
        let place = |handler: usize, insn| match &plan.object {
            Some(_) => objects::line(&plan.image.programs[self.programs[handler]], insn),
            None => self.sites[handler],
        };
        let site = |it: &HandlerSite| device_site(it, origin, place(it.handler, it.insn));
        DeviceLayout {
            maps: maker.maps().to_vec(),
            arena: maker.arena().clone(),
            sites: maker.sites().iter().map(site).collect(),
        }
    }
}

pub(super) fn too_many_for_patches(n_handlers: usize) -> String {
    format!("patches of machine code can have {MOST_PATCH_HANDLERS} handlers, and the script has {n_handlers}")
}

/// Returns the id that a text of the script has in the run.
fn string_id(plan: &Plan, text: &str) -> Option<u64> {
    plan.strings.iter().position(|it| &**it == text).map(|it| it as u64)
}

/// Returns the maps of the script that are on the GPU.
fn maps(plan: &Plan) -> Vec<Option<GpuMap<'_>>> {
    // What readers merge: aggregations, and counters of losses.
    let is_merged = |map| {
        let mut tables = plan.tables.iter().filter(|it| it.storage.gpu() == Some(map));
        tables.any(|it| it.kind.is_aggregation()) || plan.gpu_losses == Some(map)
    };
    let is_outer = |at: usize| {
        let map = plan.object.as_ref().and_then(|it| it.maps.get(at));
        map.is_some_and(|it| it.home == ObjectHome::Shared && it.kind == MapKind::Array)
    };
    let of = |(at, spec)| GpuMap { spec, has_parts: is_merged(BpfMapId::at(at)), is_outer: is_outer(at) };
    let maps = plan.image.maps.iter().enumerate();
    maps.map(|it| (it.1.home == Home::Gpu || is_outer(it.0)).then(|| of(it))).collect()
}

/// Refuses maps that no GPU is given memory for.
fn refuse_oversized(plan: &Plan, maker: &Maker) -> Result<()> {
    let n_bytes = maker.arena().n_bytes();
    if n_bytes <= MOST_BLOCK_BYTES {
        return Ok(());
    }
    let bytes_of = |map: usize| {
        let parts = maker.arena().parts(map).into_iter().flat_map(|it| [&it.states, &it.keys, &it.values]);
        parts.map(|it| it.end - it.start).sum::<u64>()
    };
    let largest = (0..maker.maps().len()).max_by_key(|map| bytes_of(*map)).unwrap_or_default();
    let name = plan.tables.iter().find(|it| it.storage.gpu() == Some(BpfMapId::at(largest))).map(|it| &it.name);
    let name = name.unwrap_or(&plan.image.maps[largest].name);
    let line = user_of(plan, BpfMapId::at(largest)).map_or_else(String::new, |it| format!("{it}: "));
    bail!(
        "{line}the maps on the GPU need {}, and at most {} can be had. The largest is `{name}` with {}: give it fewer elements, \
         map(#{{name: \"{}\", size: …}})",
        bytes(n_bytes),
        bytes(MOST_BLOCK_BYTES),
        bytes(bytes_of(largest)),
        name.trim_start_matches('@')
    )
}

fn bytes(n: u64) -> String {
    human(i64::try_from(n).unwrap_or(i64::MAX), Unit::Bytes)
}

/// Says which handler uses a map: `script.rhai:3`.
fn user_of(plan: &Plan, map: BpfMapId) -> Option<String> {
    let uses = |it: &DeviceHandler<'_>| {
        it.program.is_some_and(|at| plan.image.programs[at].map_refs.iter().any(|used| used.1 == map))
    };
    let site = plan.device_handlers().find(uses)?.site;
    Some(format!("{}:{}", plan.sources.files.get(site.file.0 as usize)?.name, site.line))
}

/// What a site counts and writes. Handlers of scripts count in a map what their ring had no room for.
fn device_site(site: &HandlerSite, origin: Origin, at: Site) -> DeviceSite {
    let loss = match (site.record, origin) {
        (None, _) => Some(Loss::InstructionLimit),
        (Some(_), Origin::Object { .. }) => Some(Loss::DeviceRingFull),
        (Some(_), Origin::Script) => None,
    };
    DeviceSite { loss, record: site.record, at }
}
