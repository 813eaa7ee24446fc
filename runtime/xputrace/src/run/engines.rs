//! The two engines of a live run, loaded.

use crate::stacks;
use anyhow::{Result, anyhow};
use std::sync::Arc;
use xputrace_bytecode::vm::RemoteMap;
use xputrace_bytecode::{BpfMapId, MapSpec};
use xputrace_linux::Linux;
use xputrace_model::plan::{Place, Plan};
use xputrace_pipeline::Pipeline;

/// Loads the plan's programs and maps into Linux; returns `None` if no handler runs there.
pub fn linux(plan: &Plan) -> Result<Option<Linux>> {
    match plan.probes.iter().any(|it| it.place == Place::Linux) {
        true => Ok(Some(Linux::load(plan).map_err(|it| named(plan, it))?)),
        false => Ok(None),
    }
}

/// Creates the tracer's own engine, which can access maps in Linux.
pub fn pipeline(plan: &Arc<Plan>, linux: Option<&Linux>) -> Result<Pipeline> {
    let mut remote = |map: BpfMapId, _: &MapSpec| {
        let handle = linux?.map(map)?.clone();
        Some(Box::new(handle) as Box<dyn RemoteMap>)
    };
    Pipeline::new(plan.clone(), stacks::demangle, &mut remote).map_err(|it| named(plan, it))
}

/// Names the compiled object that an error is about.
fn named(plan: &Plan, error: impl std::error::Error + Send + Sync + 'static) -> anyhow::Error {
    match &plan.object {
        // What the engine says of a program is enough: there is no script.
        Some(object) => anyhow!("{}: {}", object.file, error.source().map_or(error.to_string(), |it| it.to_string())),
        None => error.into(),
    }
}
