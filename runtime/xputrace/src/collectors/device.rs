//! What kernels of a process leave in device memory: takes it over, and what became of the process's device code.

use crate::run::Running;
use std::io;
use xputrace_model::loss::Loss;
use xputrace_model::plan::DeviceWay;
use xputrace_nvidia_tracer::twins::outcome;
use xputrace_pipeline::ProcessIndex;
use xputrace_rendezvous::{Clocks, ConditionCounts, DeviceRegion};
use xputrace_wire::device::CopyExtent;

/// Takes over what a process's kernels have left in device memory, as far as it was copied. Returns whether they have
/// written records since the last time.
pub fn read(region: &DeviceRegion, extent: CopyExtent, process: ProcessIndex, running: &mut Running) -> bool {
    match take(region, extent, process, running) {
        Ok(has_records) => has_records,
        Err(error) => {
            running.report().note_about_process(&format!("device memory could not be read: {error}"));
            false
        }
    }
}

fn take(region: &DeviceRegion, extent: CopyExtent, process: ProcessIndex, running: &mut Running) -> io::Result<bool> {
    let copies = region.copies(extent)?;
    let (mut has_records, mut queue) = (false, running.queue());
    if region.has_ring() {
        let read = running.state().pipeline.state_mut().ingest_device_records(process, &copies, &mut queue);
        read.iter().try_for_each(|it| region.set_read(*it))?;
        has_records = read.iter().any(|it| it.found_any);
    }
    if extent == CopyExtent::Whole {
        running.state().pipeline.state_mut().set_device_memory(process, copies);
    }
    // Maps that records ask to print have what was copied with them.
    running.settle(queue);
    Ok(has_records)
}

/// Says what became of a process's images and launches, where handlers could not run, and counts contexts of which the end
/// was not read. Returns what is known of its clocks.
pub fn account(
    region: &DeviceRegion,
    way: DeviceWay,
    (process, pid): (ProcessIndex, u32),
    running: &mut Running,
) -> Clocks {
    let Ok(counts) = region.counts() else { return Clocks::default() };
    running.end_programs(process, counts.programs);
    running.state().losses.add(Loss::DeviceCopyMissing, counts.n_unfinished);
    running.state().losses.add(Loss::DeviceArgumentsUnknown, counts.without_arguments);
    for (condition, ConditionCounts { sampled, unprobed }) in counts.conditions.iter().enumerate() {
        running.state().pipeline.add_sampled(condition, *sampled, *unprobed);
    }
    let notes = outcome::notes(running.plan(), way, &counts);
    notes.iter().for_each(|it| running.report().note_about_process(&format!("process {pid}: {it}")));
    counts.clocks
}
